"""The arena of a long program: the places that scanning every block gives, found without scanning them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opstage.compiler.codegen import arena as occupancy
from opstage.compiler.codegen.arena import ALIGNMENT, Item, Occupancy, arrange
from opstage.interpreters.graph.cpu import plan as planning
from opstage.interpreters.graph.cpu.plan import CpuPlan, optimise
from tests.graph.random_programs import random_graph


def by_scanning(items: Sequence[Item]) -> tuple[dict[Hashable, int], int]:
    """What `arrange` promises, done by comparing each block with every one before it."""
    blocks: dict[Hashable, list[Any]] = {}  # by the last item: bytes, first, last, keys
    for item in sorted(items, key=lambda item: item.first):
        nbytes, first, _, keys = blocks.pop(
            item.into, (max(1, -(-item.nbytes // ALIGNMENT)) * ALIGNMENT, item.first, 0, [])
        )
        blocks[item.key] = [nbytes, first, item.last, [*keys, item.key]]
    placed: list[tuple[int, int, int, int]] = []  # start, stop, first, last
    offsets: dict[Hashable, int] = {}
    for nbytes, first, last, keys in sorted(blocks.values(), key=lambda block: (-block[0], block[1])):
        beside = sorted((a, b) for a, b, since, until in placed if since <= last and until >= first)
        end, gaps = 0, []
        for start, stop in beside:
            if start - end >= nbytes:
                gaps.append((start - end, end))
            end = max(end, stop)
        offset = min(gaps)[1] if gaps else end
        placed.append((offset, offset + nbytes, first, last))
        offsets.update(dict.fromkeys(keys, offset))
    return offsets, max([stop for _, stop, _, _ in placed], default=0)


INTERVALS = st.tuples(st.integers(0, 900), st.integers(0, 40), st.integers(0, 40))


@given(st.lists(st.tuples(INTERVALS, st.lists(st.integers(1, 4), max_size=2)), max_size=40))
def test_places_are_those_of_scanning(chains: list[tuple[tuple[int, int, int], list[int]]]) -> None:
    items: list[Item] = []
    for c, ((nbytes, first, length), more) in enumerate(chains):
        now = first + length
        items.append(Item((c, 0), nbytes, first, now))
        for k, longer in enumerate(more if length else ()):
            items.append(Item((c, k + 1), nbytes, now, now + longer, (c, k)))
            now += longer
    assert arrange(items) == by_scanning(items)


@pytest.mark.parametrize("first", [0, *[pytest.param(i, marks=pytest.mark.slow) for i in range(10, 100, 10)]])
def test_random_programs_have_the_places_of_scanning(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(items: Sequence[Item]) -> tuple[dict[Hashable, int], int]:
        found = arrange(items)
        assert found == by_scanning(items)
        met.append(len(items))
        return found

    met: list[int] = []
    monkeypatch.setattr(planning, "arrange", both)
    for seed in range(first, first + 10):
        print("seed", seed)
        CpuPlan(optimise(random_graph(seed, size=10 + seed % 40)[0])[0].body)
    assert sum(met) > 30


def gradient_of_a_chain(n: int) -> list[Item]:
    """What n ops keep for their gradients, nested in time, and a gradient that passes from op to op."""
    kept = [Item(("value", i), 64, i, 2 * n - i) for i in range(n)]
    return kept + [Item(("gradient", i), 64, n + i, n + i + 1) for i in range(n)]


CHAINS: dict[str, Callable[[int], list[Item]]] = {
    "a chain": lambda n: [Item(i, 64, i, i + 1) for i in range(2 * n)],
    "its gradient": gradient_of_a_chain,
    "of two sizes": lambda n: [i._replace(nbytes=64 * (1 + (i.key[1] % 2))) for i in gradient_of_a_chain(n)],  # type: ignore[index]
    "alive to the end": lambda n: [Item(i, 64, i, 2 * n) for i in range(2 * n)],
}


@pytest.mark.parametrize("kind", CHAINS)
def test_a_chain_takes_steps_in_proportion_to_its_length(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of bytes looked at and nodes written, for each block a few times the depth of the trees."""
    looked, written = 0, 0
    taken, unite = Occupancy.taken, occupancy._unite

    def counted(self: Occupancy, first: int, last: int) -> tuple[list[int], list[int]]:
        nonlocal looked
        starts, stops = taken(self, first, last)
        looked += len(starts)
        return starts, stops

    def uniting(bounds: list[int], start: int, stop: int) -> None:
        nonlocal written
        written += 1
        unite(bounds, start, stop)

    monkeypatch.setattr(Occupancy, "taken", counted)
    monkeypatch.setattr(occupancy, "_unite", uniting)
    for n in (200, 1000, 4000):
        looked = written = 0
        items = CHAINS[kind](n)
        offsets, total = arrange(items)
        depth = math.log2(len(items)) + 1
        assert looked <= 4 * depth * len(items)
        assert written <= 4 * depth * len(items)
        if n == 200:
            assert (offsets, total) == by_scanning(items)
