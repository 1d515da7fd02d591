"""Trees: order and paths of leaves, dataclasses, and errors that name the first path that differs."""

from __future__ import annotations

import threading
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opstage.ops import trees
from opstage.ops.errors import UsageError
from opstage.ops.trees import Scalars


@dataclass(frozen=True, slots=True)
class Linear:
    weight: Any
    bias: Any
    activation: str = field(default="relu", metadata={"static": True})

    def __post_init__(self) -> None:
        if self.weight is None:
            raise AssertionError("a weight is needed")


@dataclass
class Network:
    blocks: list[Linear]
    scale: Any = 1.0


@dataclass
class Loose:
    first: Any
    second: Any


@trees.leaf
@dataclass(frozen=True)
class Value:
    number: int


class Subvalue(Value):
    pass


Pair = namedtuple("Pair", "first second")


def test_paths_are_dotted() -> None:
    tree = {"head": Pair(1, {"w": 2}), "blocks": [{"mlp": {"w2": 3, "w1": 4}}, (5, None, 6)], "none": None}
    leaves, structure = trees.flatten(tree)
    assert leaves == [4, 3, 5, 6, 1, 2]
    expected = ["blocks.0.mlp.w1", "blocks.0.mlp.w2", "blocks.1.0", "blocks.1.2", "head.first", "head.second.w"]
    assert trees.paths(tree) == trees.structure_paths(structure) == expected
    assert trees.unflatten(structure, leaves) == tree


def test_the_order_of_a_dicts_keys_does_not_matter() -> None:
    first, second = trees.flatten({"b": 1, "a": 2}), trees.flatten({"a": 2, "b": 1})
    assert first == second
    assert list(trees.unflatten(first[1], [0, 0])) == ["b", "a"]


def test_a_leaf_is_a_tree() -> None:
    array = np.zeros(3)
    assert trees.flatten(array)[0][0] is array
    assert trees.paths(array) == [""]
    assert trees.show_path("") == "the root"
    assert trees.flatten(None)[0] == []


def test_dataclasses_are_nodes() -> None:
    tree = Network([Linear(1, 2), Linear(3, None, "tanh")], scale=4)
    leaves, structure = trees.flatten(tree)
    assert leaves == [1, 2, 3, 4]
    assert trees.paths(tree) == ["blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "scale"]
    rebuilt = trees.unflatten(structure, leaves)
    assert rebuilt == tree
    assert rebuilt.blocks[1].activation == "tanh"


def test_a_dataclass_is_rebuilt_without_its_checks() -> None:
    assert trees.map_leaves(lambda _: None, Linear(1, 2)).weight is None


def test_marked_dataclasses_are_leaves() -> None:
    assert trees.flatten([Value(1), Subvalue(2)])[0] == [Value(1), Subvalue(2)]


def test_dataclasses_are_registered_once_from_many_threads() -> None:
    @dataclass
    class Local:
        x: int

    results: list[list[int]] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        results.append(trees.flatten([Local(1), Local(2)])[0])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[1, 2]] * 8


def test_map_leaves_takes_several_trees() -> None:
    assert trees.map_leaves(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]}) == {"a": 11, "b": [22]}
    with pytest.raises(UsageError, match=r"tree 2 does not have the structure of the first tree: b\.0 is missing"):
        trees.map_leaves(lambda x, y: x, {"a": 1, "b": [2]}, {"a": 10, "b": []})


@pytest.mark.parametrize("tree", [{"a.b": 1, "a": {"b": 2}}, {1: 1, "1": 2}])
def test_a_path_belongs_to_one_leaf(tree: Any) -> None:
    with pytest.raises(UsageError, match="two leaves have the path"):
        trees.paths(tree)


@pytest.mark.parametrize(
    ("expected", "actual", "difference"),
    [
        ({"w": 1, "b": 2}, {"w": 1}, "b is missing"),
        ({"w": 1}, {"w": 1, "b": 2}, "b is not expected there"),
        ({"m": {"weight": 1}}, {"m": {"wieght": 1}}, "m.weight is missing (did you mean 'wieght'?)"),
        ({"a": [1, 2, 3]}, {"a": [1, 2]}, "a.2 is missing"),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, "a.2 is not expected there"),
        ({"a": [1, 2]}, {"a": (1, 2)}, "a is a tuple where a list is expected"),
        ({"a": 1}, {"a": {"b": 1}}, "a is a dict where a single leaf is expected"),
        ({"a": 1, "b": None}, {"a": 1, "b": 2}, "b is a single leaf where None is expected"),
        ([1], 1, "the root is a single leaf where a list is expected"),
        ({"l": Linear(1, 2)}, {"l": Linear(1, 2, "tanh")}, "l differs in its static fields"),
        ({"l": Linear(1, 2)}, {"l": Linear(1, None)}, "l.bias is None where a single leaf is expected"),
        ({"l": Linear(1, 2)}, {"l": Pair(1, 2)}, "l is a Pair where a Linear is expected"),
        (Pair(1, [2]), Pair(1, [2, 3]), "second.1 is not expected there"),
        ({"a": 1}, OrderedDict(a=1), "the root is an OrderedDict where a dict is expected"),
    ],
)
def test_the_first_difference_is_named(expected: Any, actual: Any, difference: str) -> None:
    expected_structure = trees.flatten(expected)[1]
    assert trees.first_difference(expected_structure, trees.flatten(actual)[1]) == difference
    with pytest.raises(UsageError) as error:
        trees.align(expected_structure, actual, "params", "grads")
    assert str(error.value) == f"grads does not have the structure of params: {difference}"


def test_align_returns_the_leaves() -> None:
    structure = trees.flatten({"a": 1, "b": 2})[1]
    assert trees.first_difference(structure, structure) is None
    assert trees.align(structure, {"b": 4, "a": 3}, "params", "grads") == [3, 4]


def test_unflatten_counts_the_leaves() -> None:
    with pytest.raises(UsageError, match="the structure has 2 leaves but 1 were given"):
        trees.unflatten(trees.flatten([1, 2])[1], [1])


KEYS = st.text("abc", min_size=1, max_size=3)
TREES = st.recursive(
    st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3) | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


def walk(tree: Any, path: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """Every leaf with its path, by plain recursion."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        parts: Any = [(key, tree[key]) for key in sorted(tree)]
    elif isinstance(tree, Pair):
        parts = [("first", tree.first), ("second", tree.second)]
    elif isinstance(tree, list):
        parts = enumerate(tree)
    else:
        return [(".".join(path), tree)]
    return [found for key, part in parts for found in walk(part, (*path, str(key)))]


@settings(derandomize=True, max_examples=200)
@given(TREES, TREES)
def test_any_tree(tree: Any, other: Any) -> None:
    leaves, structure = trees.flatten(tree)
    assert list(zip(trees.paths(tree), leaves, strict=True)) == walk(tree)
    assert trees.unflatten(structure, leaves) == tree
    other_structure = trees.flatten(other)[1]
    assert (trees.first_difference(structure, other_structure) is None) == (structure == other_structure)


# Lists of scalars ---------------------------------------------------------------------------------------------------


def test_lists_of_scalars_have_the_structure_of_lists_wherever_they_are() -> None:
    scalars = Scalars([1, Scalars([2, 3])])
    plain = [1, [2, 3]]
    both = [(scalars, plain), ({"w": (4, scalars)}, {"w": (4, plain)}), (Loose(scalars, 4), Loose(plain, 4))]
    for made, same in both:
        for _ in range(2):  # a first flattening may register a dataclass
            assert trees.flatten(made) == trees.flatten(same)
    assert type(trees.unflatten(trees.flatten(scalars)[1], [1, 2, 3])) is list


def test_trees_without_them_are_not_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    trees.flatten(Scalars([1, 2]))
    monkeypatch.setattr(trees.optree, "tree_map", pytest.fail)
    trees.flatten({"w": [1, (2, 3)], "b": Loose([4], 5)})
