"""Strides and places: views are those of NumPy, and what lives at one time lies in different places."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opstage.compiler.codegen import arena as occupancy
from opstage.compiler.codegen import views
from opstage.compiler.codegen.arena import ALIGNMENT, Item, Occupancy, arrange
from opstage.compiler.codegen.views import View
from opstage.interpreters.graph.cpu import plan as planning
from opstage.interpreters.graph.cpu.plan import CpuPlan, optimise
from tests.graph.random_programs import random_graph

# Views ----------------------------------------------------------------------------------------------------------------


def seen(view: View, root: Any) -> Any:
    """A view of a vector, by NumPy's strides."""
    strides = [s * root.itemsize for s in view.strides]
    return np.lib.stride_tricks.as_strided(root[view.offset :], view.shape, strides)


def moved(view: View, array: Any, source: random.Random) -> tuple[View | None, Any]:
    """A view and an array after the same random step of layout."""
    shape, rank = view.shape, len(view.shape)
    kind = source.choice(("broadcast", "permute", "cut", "without", "reshape"))
    if kind == "broadcast" and array.size < 200:
        new = (source.randint(1, 3), *[n if n > 1 else source.randint(1, 3) for n in shape])
        return views.broadcast(view, new), np.broadcast_to(array, new)
    if kind == "permute":
        axes = tuple(source.sample(range(rank), rank))
        return views.permute(view, axes), array.transpose(axes)
    if kind == "cut" and rank:
        axis, step = source.randrange(rank), source.randint(1, 2)
        start = source.randrange(shape[axis])
        length = source.randint(1, (shape[axis] - start + step - 1) // step)
        taken = (slice(None),) * axis + (slice(start, start + (length - 1) * step + 1, step),)
        return views.cut(view, axis, start, length, step), array[taken]
    if kind == "without" and rank:
        axis = source.randrange(rank)
        index = source.randrange(shape[axis])
        return views.without(view, axis, index), array.take(index, axis)
    factors = [f for n in shape for f in ([2] * (n // 2) if n in (2, 4) else [n])]
    source.shuffle(factors) if source.random() < 0.3 else None
    if math.prod(factors) != array.size:
        return view, array
    new_shape: list[int] = []
    for f in factors:
        if new_shape and source.random() < 0.5:
            new_shape[-1] *= f
        else:
            new_shape += [1] * (source.random() < 0.2) + [f]
    return views.reshape(view, tuple(new_shape)), array.reshape(new_shape)


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_views_show_what_numpy_shows(first: int) -> None:
    for seed in range(first, first + 100):
        source = random.Random(seed)
        shape = tuple(source.choice((1, 2, 3, 4)) for _ in range(source.randint(0, 3)))
        root = np.arange(math.prod(shape))
        view: View = views.whole(0, shape)
        array: Any = root.reshape(shape)
        for _ in range(6):
            next_view, next_array = moved(view, array, source)
            if next_view is None:  # NumPy too can only copy
                before = seen(view, root)
                assert not np.shares_memory(before.reshape(next_array.shape), before), seed
                break
            view, array = next_view, next_array
            assert view.shape == array.shape, seed
            np.testing.assert_array_equal(seen(view, root), array, err_msg=f"seed {seed}")
            assert view.size == array.size
            assert not view.contiguous or list(array.flat) == list(range(view.offset, view.offset + array.size)), seed


def test_an_empty_view_takes_any_shape() -> None:
    view = views.reshape(views.permute(views.whole(3, (0, 2, 4)), (2, 0, 1)), (5, 0))
    assert view is not None and view.shape == (5, 0) and view.size == 0


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_axes_are_split_where_they_were_merged(sizes: list[int], data: Any) -> None:
    shape = tuple(sizes)
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    view = views.permute(views.whole(0, shape), axes)
    merged = views.merged(view.shape, view.strides)
    assert all(n > 1 for n, _ in merged)
    assert all(a[1] != b[0] * b[1] for a, b in pairwise(merged)), "two axes that one could be"
    assert views.split(merged, views.suffixes(view.shape)[:-1]) == [
        s for n, s in zip(view.shape, view.strides) if n > 1
    ]


@given(st.lists(st.lists(st.sampled_from((1, 2, 3, 4, 6, 8, 12, 24)), max_size=4), max_size=3))
def test_cuts_are_joined_where_each_divides_the_next(cuts: list[list[int]]) -> None:
    joined = views.chain(*map(tuple, cuts))
    every = sorted({c for each in cuts for c in each})
    divides = all(b % a == 0 for i, a in enumerate(every) for b in every[i + 1 :])
    assert joined == (tuple(every) if divides else None)


# The arena ------------------------------------------------------------------------------------------------------------

INTERVALS = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 12)).map(lambda t: (t[0], t[1], t[1] + t[2])),
    max_size=40,
)


def up(nbytes: int) -> int:
    return max(ALIGNMENT, (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)


@given(INTERVALS)
def test_items_that_live_at_one_time_never_overlap(intervals: list[tuple[int, int, int]]) -> None:
    items = [Item(i, *interval) for i, interval in enumerate(intervals)]
    offsets, total = arrange(items)
    assert set(offsets) == {item.key for item in items}
    for item in items:
        assert offsets[item.key] % ALIGNMENT == 0
        assert 0 <= offsets[item.key] <= total - up(item.nbytes)
    for i, a in enumerate(items):
        for b in items[:i]:
            if a.first <= b.last and b.first <= a.last:
                low, high = sorted((a, b), key=lambda item: offsets[item.key])
                assert offsets[low.key] + low.nbytes <= offsets[high.key], (a, b)
    alive = [sum(up(i.nbytes) for i in items if i.first <= t <= i.last) for t in range(50)]
    assert max(alive) <= total <= sum(up(item.nbytes) for item in items)


def test_memory_of_equal_pieces_is_used_again_without_a_gap() -> None:
    """As in a stack of alike layers: the arena is as large as what lives at one time."""
    for width in range(1, 5):
        items = [Item(i, 640, i, i + width - 1) for i in range(200)]
        assert arrange(items)[1] == 640 * width


def test_what_a_backward_pass_reads_leaves_no_holes() -> None:
    """Activations live from their layer to its derivative, and a large workspace between: nothing is lost to gaps."""
    layers = 30
    kept = [Item(i, 64 * (1 + i % 5), i, 2 * layers - i) for i in range(layers)]
    rooms = [Item(("room", i), 64 * (40 + i % 3), i, i) for i in range(2 * layers)]
    alive = [sum(i.nbytes for i in (*kept, *rooms) if i.first <= t <= i.last) for t in range(2 * layers + 1)]
    assert arrange([*kept, *rooms])[1] == max(alive)


def test_a_piece_takes_the_smallest_gap() -> None:
    gaps = [Item("low", 640, 0, 9), Item("wide", 512, 0, 4), Item("mid", 448, 0, 9), Item("narrow", 384, 0, 4)]
    offsets, total = arrange([*gaps, Item("top", 320, 0, 9), Item("small", 256, 5, 9)])
    assert offsets["small"] == offsets["narrow"] and total == 2304


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), max_size=12), st.data())
def test_what_is_written_over_another_item_has_its_place_alone(chains: list[list[int]], data: Any) -> None:
    """Chains of items, each written over the one before in the moment in which that is read for the last time."""
    items: list[Item] = []
    for c, lengths in enumerate(chains):
        nbytes, now = data.draw(st.integers(1, 900)), data.draw(st.integers(0, 12))
        for k, length in enumerate(lengths):
            items.append(Item((c, k), nbytes, now, now + length + 1, (c, k - 1) if k else None))
            now += length + 1
    offsets, _ = arrange(data.draw(st.permutations(items)))
    for c, lengths in enumerate(chains):
        assert len({offsets[c, k] for k in range(len(lengths))}) == 1
    for i, a in enumerate(items):
        for b in items[:i]:
            if a.key[0] != b.key[0] and a.first <= b.last and b.first <= a.last:  # type: ignore[index]
                low, high = sorted((a, b), key=lambda item: offsets[item.key])
                assert offsets[low.key] + low.nbytes <= offsets[high.key]


def test_places_do_not_depend_on_the_run() -> None:
    items = [Item(i, 64 * (i % 7 + 1), i % 11, i % 11 + i % 5) for i in range(60)]
    assert arrange(items) == arrange(list(items))


# The arena of a long program ------------------------------------------------------------------------------------------


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


LIVES = st.tuples(st.integers(0, 900), st.integers(0, 40), st.integers(0, 40))


@given(st.lists(st.tuples(LIVES, st.lists(st.integers(1, 4), max_size=2)), max_size=40))
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
