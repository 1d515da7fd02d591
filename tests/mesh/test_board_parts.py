"""Parts that machine code shares out and joins between processes: ends of sockets stand for the processes of a host."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from opstage.interpreters.host import Array, address_of
from opstage.interpreters.mesh.direct import DirectExchange, direct_exchange
from opstage.interpreters.mesh.hosting import Hosting
from opstage.interpreters.mesh.near import Near
from opstage.interpreters.mesh.parts import PreparedExchange, gather, scatter
from opstage.interpreters.mesh.sums import Sum, add_up
from opstage.interpreters.native.notes import CHUNK, INLINE, MOST_PIECES, MUCH, NOTES
from opstage.ops.errors import RankError
from opstage.ops.mesh import mesh_of
from tests.mesh import schedules
from tests.mesh.test_board import nears

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are near on Linux alone")

CALLS = ("sum", "scatter", "gather")
GUARD = 3
"""Elements between results, which stay as they are."""


class Rank:
    """A process with one rank and some members, which stand in memory that others can read, and results elsewhere.

    `sizes` has the elements of a part of each. A sum has a single member, and no parts.
    """

    def __init__(self, near: Near, count: int, process: int, sizes: Sequence[int], call: str, dtype: str = "float32"):
        self.near, self.fabric, self.sizes, self.call = near, schedules.fabric(process, count, near), sizes, call
        hosting, kind = Hosting(mesh_of(f"data={count}"), self.fabric), np.dtype(dtype)
        self.exchange: PreparedExchange = Sum(hosting, "data", tuple(sizes), kind, "")
        if call == "scatter":
            self.exchange = scatter(hosting, "data", [count * size for size in sizes], kind, "")
        elif call == "gather":
            self.exchange = gather(hosting, "data", sizes, kind, "")
        lengths = [count * size if call == "scatter" else size for size in sizes]
        self.memory = near.empty(64 + (sum(lengths) + GUARD * len(lengths)) * kind.itemsize)
        self.values = self._cut(self.memory[64:].view(kind), lengths)
        lengths = [count * size if call == "gather" else size for size in sizes]
        self.room = np.full(sum(lengths) + GUARD * len(lengths), 77, kind)
        self.outs = self._cut(self.room, lengths)
        self.words = np.array([address_of(each) for each in (*self.values, *self.outs)])
        self.direct = self.another()

    def _cut(self, vector: Array, lengths: Sequence[int]) -> list[Array]:
        """Members in another order than they stand in memory."""
        made, start = [], 0
        for length in lengths[::-1]:
            made.append(vector[start : start + length])
            start += length + GUARD
        return made[::-1]

    def another(self) -> DirectExchange:
        members = len(self.sizes)
        made = direct_exchange(self.exchange, self.words, range(members), range(members, 2 * members))
        assert made is not None
        return made

    def begin(self, at: int | None = None) -> bool:
        return self.direct.begin(address_of(self.memory) if at is None else at)

    def end(self) -> bool:
        """End it; return whether machine code could."""
        at_once = self.direct.end()
        if not at_once:
            self.direct.finish(self.values, [{0: out} for out in self.outs])
        return at_once

    def draw(self, rng: Any, special: bool) -> None:
        for value in self.values:
            value[:] = (100 * rng.standard_normal(len(value))).astype(value.dtype)
            if special and value.dtype.kind == "f":
                value[rng.random(len(value)) < 0.3] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e-44])


def ranks(count: int, sizes: Sequence[int], call: str, dtype: str = "float32") -> list[Rank]:
    return [Rank(near, count, process, sizes, call, dtype) for process, near in enumerate(nears(count))]


def wanted(group: Sequence[Rank], process: int, member: int) -> Array:
    """What a process is given of a member, without exchanges."""
    values, count = [each.values[member] for each in group], len(group)
    if group[0].call == "gather":
        return np.concatenate(values)
    if group[0].call == "scatter":
        values = [value.reshape(count, -1)[process] for value in values]
    made = np.empty_like(values[0])
    add_up(count, {(0, i): value for i, value in enumerate(values)}, made)
    return made


def require_results(group: Sequence[Rank]) -> None:
    for process, each in enumerate(group):
        for member, out in enumerate(each.outs):
            right = wanted(group, process, member)
            np.testing.assert_array_equal(out, right)
            numbers = ~np.isnan(right)
            np.testing.assert_array_equal(np.signbit(out[numbers]), np.signbit(right[numbers]))
            out[:] = 77
        assert (each.room == 77).all(), "something beside the results was written"
        assert each.near.is_read(address_of(each.memory))


SIZES: list[tuple[int, ...]] = [
    (1,),
    (3, 1, 2),
    (INLINE // 8 - 1, 1),
    (INLINE // 8, 1),
    (INLINE // 4 - 1, 1),
    (INLINE // 4, 1),
    (CHUNK, 1, CHUNK + 1, 3 * CHUNK + 77),
    (1,) * (MOST_PIECES + 1),
    (100,) * MOST_PIECES,
]


@pytest.mark.parametrize("call", ["scatter", "gather"])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_have_the_bits_and_the_bytes_of_python(call: str, count: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for sizes in SIZES:
        group = ranks(count, sizes, call, dtype)
        for run in range(3):
            for each in group:
                each.draw(rng, special=run == 2)
                assert each.begin()
            at_once = [each.end() for each in group]
            assert all(at_once) or run == 0
            require_results(group)
        sent = sum(sizes) * np.dtype(dtype).itemsize * (count - 1)
        assert [each.fabric.sent for each in group] == [3 * sent] * count
        for each in group:
            under_way = each.exchange.begin(each.values, stays=True)
            each.direct = under_way  # type: ignore[assignment]
        for each in group:
            each.direct.end([{0: out} for out in each.outs])  # type: ignore[call-arg]
        require_results(group)
        assert [each.fabric.sent for each in group] == [4 * sent] * count


@pytest.mark.parametrize("dtype", ["int64", "bool", "int8"])
@pytest.mark.parametrize("sizes", [(5, 2), (5000, 1, 300)])
def test_anything_can_be_joined_and_floats_summed(dtype: str, sizes: tuple[int, ...]) -> None:
    group = ranks(3, sizes, "gather", dtype)
    for run in range(2):
        for each in group:
            each.draw(np.random.default_rng(run), special=False)
            assert each.begin()
        assert [each.end() for each in group] == [True] * 3 or run == 0
        for process, each in enumerate(group):
            for member, out in enumerate(each.outs):
                np.testing.assert_array_equal(out, wanted(group, process, member))
    (near, _) = nears(2)
    with pytest.raises(AssertionError):
        Rank(near, 2, 0, sizes, "scatter", dtype)


def test_what_does_not_fit_in_a_note_is_left_to_python() -> None:
    (near, _) = nears(2)
    for call in ("scatter", "gather"):
        with pytest.raises(AssertionError):
            Rank(near, 2, 0, (100,) * (MOST_PIECES + 1), call)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("call", ["scatter", "gather"])
def test_large_parts(call: str, shift: int) -> None:
    """Whose sums are written past the caches, if the memory allows it."""
    group = ranks(2, (16 + shift, MUCH // 4 + 5, MUCH // 4), call)
    for _ in range(2):
        for each in group:
            each.draw(np.random.default_rng(each.fabric.process), special=False)
            assert each.begin()
        for each in group:
            each.end()
        require_results(group)


@pytest.mark.parametrize("call", ["scatter", "gather"])
@pytest.mark.parametrize("sizes", [(3, 4), (700, 20, 500)])
def test_machine_code_and_python_take_each_others_notes(call: str, sizes: tuple[int, ...]) -> None:
    one, other = group = ranks(2, sizes, call)
    for run in range(4):
        for each in group:
            each.draw(np.random.default_rng(run), special=False)
        flight = other.exchange.begin(other.values, stays=True)
        assert one.begin()
        if run % 2:
            flight.end([{0: out} for out in other.outs])
        assert not one.end()
        if not run % 2:
            flight.end([{0: out} for out in other.outs])
        require_results(group)


def test_a_sum_may_end_after_parts_that_began_later() -> None:
    """As that of the number of targets, while parameters are gathered."""
    one, other = nears(2)
    sums = [Rank(near, 2, process, (10,), "sum") for process, near in enumerate((one, other))]
    joins = [Rank(near, 2, process, (1000, 50), "gather") for process, near in enumerate((one, other))]
    for each, also in zip(sums, joins):
        also.fabric.counts = each.fabric.counts  # which are of one process
        also.direct = also.another()
    for run in range(NOTES):
        for each in (*sums, *joins):
            each.draw(np.random.default_rng(run), special=False)
        for each, also in zip(sums, joins):
            assert each.begin() and also.begin()
        for also in joins:
            assert also.end() or run == 0
        for also in joins:
            assert also.begin()
        assert [also.end() for also in joins] == [True, True]
        require_results(joins)
        assert [each.end() for each in sums] == [True, True] or run == 0
        require_results(sums)
        assert not one.notes and not other.notes


def exchanged(group: Sequence[Rank]) -> bool:
    """Exchange new values once; return whether machine code could begin everywhere."""
    for each in group:
        each.draw(np.random.default_rng(each.fabric.sent), special=False)
    flights: list[Any] = [None if each.begin() else each.exchange.begin(each.values) for each in group]
    for flight, each in zip(flights, group):
        if flight is None:
            each.end()
        else:
            flight.end([{0: out} for out in each.outs])
    for process, each in enumerate(group):
        for member, out in enumerate(each.outs):
            np.testing.assert_array_equal(out, wanted(group, process, member))
    return flights == [None] * len(group)


def test_a_note_that_nobody_takes_fills_the_ring_for_machine_code_alone() -> None:
    one, other = nears(2)
    sums = [Rank(near, 2, process, (10,), "sum") for process, near in enumerate((one, other))]
    joins = [Rank(near, 2, process, (1000, 50), "gather") for process, near in enumerate((one, other))]
    for each, also in zip(sums, joins):
        also.fabric.counts = each.fabric.counts
        also.direct = also.another()
    assert exchanged(joins)
    for each in sums:
        each.draw(np.random.default_rng(each.fabric.process), special=False)
        assert each.begin()
    could = [exchanged(joins) for _ in range(2 * NOTES)]
    assert could.index(False) == NOTES - 1 and could[NOTES]  # Python has taken all of them
    assert [each.end() for each in sums] == [False, False]
    require_results(sums)


def test_memory_of_parts_counts_as_read_only_once_all_have_read_it() -> None:
    for call in ("scatter", "gather"):
        group = ranks(3, (1000, 200), call)
        first, *others = group
        for each in group:
            each.draw(np.random.default_rng(0), special=False)
            assert each.begin()
        for each in others:
            assert not first.near.is_read(address_of(first.memory))
            each.end()
        assert first.near.is_read(address_of(first.memory))
        assert not others[0].near.is_read(address_of(others[0].memory))


def test_what_python_has_taken_is_not_waited_for() -> None:
    one, other = group = ranks(2, (1000, 30), "scatter")
    for run in range(2):
        for each in group:
            each.draw(np.random.default_rng(run), special=False)
            assert each.begin()
        one.near.hear()
        assert one.near.notes.keys() == {(1, run + 1)}
        assert not one.end() and one.fabric.counts[-2] == 0
        other.end()
        require_results(group)


@pytest.mark.parametrize("call", ["scatter", "gather"])
@pytest.mark.parametrize("last", [False, True])
def test_members_that_the_others_cannot_read_are_not_sent(call: str, last: bool) -> None:
    one, other = group = ranks(2, (1000, 30), call)
    for each in group:
        each.draw(np.random.default_rng(0), special=False)
        assert each.begin()
    for each in group:
        each.end()
    elsewhere = np.zeros(5000, np.float32)
    at = len(one.sizes) - 1 if last else 0
    for address in (
        address_of(elsewhere),
        address_of(one.memory) + len(one.memory) - 4 * 29,
        address_of(one.memory) - 4,
    ):
        one.words[at] = address
        counts = one.fabric.counts.copy()
        assert not one.begin()
        np.testing.assert_array_equal(one.fabric.counts, counts)
        other.near.hear()
        assert not other.near.notes


def test_other_pieces_of_the_same_bytes_are_taken_by_python() -> None:
    """Names and bytes are those of the vector, however it is cut into members."""
    first, second = nears(2)
    one, other = Rank(first, 2, 0, (1000, 30), "gather"), Rank(second, 2, 1, (30, 1000), "gather")
    for _ in range(2):
        for each in (one, other):
            each.draw(np.random.default_rng(each.fabric.process), special=False)
            assert each.begin()
        assert not one.end() and not other.end()
        np.testing.assert_array_equal(one.outs[0][1000:], np.concatenate(other.values)[:1000])
        np.testing.assert_array_equal(one.outs[1][30:], np.concatenate(other.values)[1000:])


def test_another_collective_is_an_error_on_both() -> None:
    first, second = nears(2)
    one, other = Rank(first, 2, 0, (1000, 30), "gather"), Rank(second, 2, 1, (515, 515), "scatter")
    assert one.begin() and other.begin()
    for each in (one, other):
        with pytest.raises(RankError, match="another collective"):
            each.end()


def test_parts_that_are_abandoned_keep_nobody_waiting() -> None:
    group = ranks(2, (1000, 30), "scatter")
    could = []
    for _ in range(2 * NOTES):
        could.append(exchanged(group))
        begun = [each.begin() for each in group]
        if all(begun):
            for each in group:
                each.direct.abandon()
                assert not each.direct.begun
    assert sum(could) > NOTES
    for each in group:
        each.near.hear()
    for each in group:
        assert each.near.is_read(address_of(each.memory)) and not each.near.notes
