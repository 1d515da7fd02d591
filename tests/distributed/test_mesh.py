"""`Mesh`, and the order of sums over its ranks."""

from __future__ import annotations

import itertools
import re

import pytest

import opstage
from opstage.distributed.collectives import covering, total
from opstage.ops.mesh import ALONE, Mesh


def test_ranks_are_numbered_with_the_last_axis_fastest() -> None:
    mesh = Mesh.parse(" data = 2, model=3 ")
    assert (str(mesh), mesh.ranks, mesh.names) == ("data=2,model=3", 6, ("data", "model"))
    places = [(mesh.coordinate(rank, "data"), mesh.coordinate(rank, "model")) for rank in range(6)]
    assert places == list(itertools.product(range(2), range(3)))
    assert [mesh.group(4, axis) for axis in ("data", "model", "other")] == [(1, 4), (3, 4, 5), (4,)]
    assert (mesh.size("model"), mesh.size("other"), mesh.coordinate(5, "other")) == (3, 1, 0)


def test_a_mesh_of_nothing_is_one_rank() -> None:
    assert Mesh.parse("") == Mesh.parse(" , ") == ALONE and ALONE.ranks == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ("data", "not an axis; expected name=size"),
        ("data=", "not an axis"),
        ("data=2x", "not an axis"),
        ("data=-2", "not an axis"),
        ("2=data", "not an axis"),
        ("data=0", "at least 1"),
        ("data=2,data=3", "two axes are called data"),
        ("data=1048576,model=2", "2,097,152 ranks; at most"),
        ("data=99999999999", "99,999,999,999 ranks; at most"),
        ("data=" + "9" * 5000, "not an axis"),
        ("data=²", "not an axis"),
        (4, "is not a mesh; expected text"),
    ],
)
def test_a_mesh_that_does_not_parse(text: str, message: str) -> None:
    with pytest.raises(opstage.UsageError, match=message):
        opstage.Options(mesh=text)


@pytest.mark.parametrize("ranks", range(1, 20))
def test_a_sum_is_one_tree_however_its_ranks_are_spread(ranks: int) -> None:
    """Joined with brackets, the order of additions is what is compared."""
    leaves = [str(rank) for rank in range(ranks)]

    def joined(known: dict[tuple[int, int], str]) -> str:
        return total(ranks, lambda level, i: known.get((level, i)), lambda a, b: f"({a}{b})")

    expected = joined({(0, i): leaf for i, leaf in enumerate(leaves)})
    assert re.findall(r"[0-9]+", expected.replace("(", " ").replace(")", " "))
    for first in range(ranks + 1):  # two processes
        sent: dict[tuple[int, int], str] = {}
        for lo, hi in ((0, first), (first, ranks)):
            own = {(0, i): leaves[i] for i in range(lo, hi)}
            for level, i in covering(lo, hi):
                sent[level, i] = _node(level, i, own, ranks)
        assert joined(sent) == expected


def _node(level: int, i: int, own: dict[tuple[int, int], str], ranks: int) -> str:
    if level == 0:
        return own[0, i]
    left = _node(level - 1, 2 * i, own, ranks)
    right = 2 * i + 1
    return f"({left}{_node(level - 1, right, own, ranks)})" if right << (level - 1) < ranks else left


def test_covering_nodes_are_disjoint_and_whole() -> None:
    for lo, hi in itertools.combinations_with_replacement(range(40), 2):
        ranks = [r for level, i in covering(lo, hi) for r in range(i << level, (i + 1) << level)]
        assert ranks == list(range(lo, hi))
