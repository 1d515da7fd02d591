"""Sums whose notes machine code writes and reads: two or more ends of sockets stand for the processes of a host."""

from __future__ import annotations

import gc
import os
import socket
import sys
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from opstage.forks import tell_in_child
from opstage.interpreters.host import address_of
from opstage.interpreters.mesh.board import Board
from opstage.interpreters.mesh.direct import DirectExchange, direct_exchange
from opstage.interpreters.mesh.hosting import Hosting
from opstage.interpreters.mesh.mpi import MpiFabric
from opstage.interpreters.mesh.near import Near
from opstage.interpreters.mesh.sums import Sum, add_up
from opstage.interpreters.mesh.words import FAILED, Words
from opstage.interpreters.native.notes import BRIEFLY, CHUNK, INLINE, MUCH, NOTES, SPIN
from opstage.ops.errors import OutOfMemoryError, RankError
from opstage.ops.mesh import mesh_of
from tests.mesh import schedules
from tests.mesh.test_near import _in_child, no_more_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are near on Linux alone")


def nears(count: int) -> list[Near]:
    gc.collect()  # closes the files of those before
    ends: list[dict[int, Any]] = [{} for _ in range(count)]
    for a, b in combinations(range(count), 2):
        ends[a][b], ends[b][a] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = [Near(sockets, Board(process, sockets)) for process, sockets in enumerate(ends)]
    for each in made:
        each.hear()
    return made


class Rank:
    """A process with one rank, which sums a vector that stands in memory which others can read."""

    def __init__(self, near: Near, process: int, count: int, size: int, dtype: str, program: str = ""):
        self.near, self.fabric = near, schedules.fabric(process, count, near)
        self.sum = Sum(Hosting(mesh_of(f"data={count}"), self.fabric), "data", (size,), np.dtype(dtype), program)
        self.memory = near.empty(64 + size * np.dtype(dtype).itemsize)
        self.value, self.out = self.memory[64:].view(dtype), np.zeros(size, dtype)
        self.words = np.array([address_of(self.value), address_of(self.out)])
        self.direct = self.another()

    def another(self) -> DirectExchange:
        made = direct_exchange(self.sum, self.words, [0], [1])
        assert made is not None
        return made

    @property
    def at(self) -> int:
        return address_of(self.memory)

    def begin(self) -> bool:
        return self.direct.begin(self.at)

    def end(self) -> bool:
        """End it; return whether machine code could."""
        at_once = self.direct.end()
        if not at_once:
            self.direct.finish([self.value], [{0: self.out}])
        return at_once


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("more, shift", [(0, 0), (5, 0), (5, 3)])
def test_a_large_sum_is_written_past_the_caches(dtype: str, more: int, shift: int) -> None:
    rng, size = np.random.default_rng(0), MUCH // np.dtype(dtype).itemsize + more
    one, other = ranks(2, size, dtype)
    room = np.zeros(size + 100, dtype)
    first = -address_of(room) % 64 // room.itemsize + shift  # a multiple of 64 bytes, or not
    for each in (one, other):
        each.value[:] = rng.standard_normal(size)
        each.value[rng.integers(0, size, 50)] = rng.choice([np.nan, np.inf, -np.inf, -0.0], 50)
    one.out = room[first : first + size]
    one.words[1] = address_of(one.out)
    for _ in range(2):
        assert one.begin() and other.begin()
        one.end(), other.end()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(one.out, one.value + other.value)
    np.testing.assert_array_equal(one.out, other.out)
    assert not room[:first].any() and not room[first + size :].any()


def ranks(count: int, size: int, dtype: str = "float32") -> list[Rank]:
    return [Rank(near, process, count, size, dtype) for process, near in enumerate(nears(count))]


SIZES = (1, 2, INLINE // 8, INLINE // 4, INLINE // 4 + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 77)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_sum_has_the_bits_of_the_tree(count: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for size in SIZES:
        group = ranks(count, size, dtype)
        for run in range(3):
            values = [(rng.standard_normal(size) * 10.0 ** rng.integers(-30, 30)).astype(dtype) for _ in group]
            if run == 2:
                for value in values:
                    value[rng.random(size) < 0.3] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e-44])
            wanted = np.empty(size, dtype)
            add_up(count, {(0, i): value for i, value in enumerate(values)}, wanted)
            for each, value in zip(group, values):
                each.value[:] = value
                assert each.begin()
            at_once = [each.end() for each in group]
            assert all(at_once) or run == 0
            for each in group:
                np.testing.assert_array_equal(each.out, wanted)
                numbers = ~np.isnan(wanted)  # of two nans of other signs NumPy gives either, by where they stand
                np.testing.assert_array_equal(np.signbit(each.out[numbers]), np.signbit(wanted[numbers]))
        for each in group:
            assert each.near.is_read(each.at)


@pytest.mark.parametrize("size", [1, 1000])
def test_ends_may_be_long_after_begins_and_in_another_order(size: int) -> None:
    one, other = ranks(2, size)
    second = [each.another() for each in (one, other)]
    for each in (one, other):
        each.value[:] = 1 + each.fabric.process
        assert each.begin()
    for each, also in zip((one, other), second):
        assert also.begin(each.at)
    for each, also in zip((one, other), second):
        assert also.end() or also.finish([each.value], [{0: each.out}]) is None
        assert (each.out == 3).all()
        each.out[:] = 0
        assert (each.end() or size > INLINE // 4) and (each.out == 3).all()
        assert each.near.is_read(each.at) or size > 1
    assert one.near.is_read(one.at) and other.near.is_read(other.at)


def test_memory_counts_as_read_only_once_all_have_read_it() -> None:
    group = ranks(3, 1000)
    for each in group:
        each.value[:] = 1
    first = group[0]
    assert first.near.is_read(first.at)
    for each in group:
        assert each.begin()
    for each in group[1:]:
        assert not first.near.is_read(first.at)
        each.end()
    assert first.near.is_read(first.at) and not group[1].near.is_read(group[1].at)


@pytest.mark.parametrize("size", [1, 1000])
def test_a_full_ring_is_left_to_the_sockets(size: int) -> None:
    one, other = ranks(2, size)
    other.value[:] = 1
    others = [other.another() for _ in range(NOTES + 3)]
    begun = [each.begin(other.at) for each in others]
    assert begun == [True] * NOTES + [False] * 3
    assert (other.fabric.counts[0], other.fabric.sent) == (NOTES, NOTES * 4 * size)
    flights = [other.sum.begin([other.value], stays=True) for _ in range(3)]
    for i in range(NOTES + 3):
        one.value[:] = i
        assert one.begin()
        one.end()
        assert (one.out == 1 + i).all()
        if i < NOTES:
            assert others[i].end() or others[i].finish([other.value], [{0: other.out}]) is None
        else:
            flights[i - NOTES].end([{0: other.out}])
    assert other.near.is_read(other.at) and one.near.is_read(one.at)


@pytest.mark.parametrize("size, program", [(7, ""), (500, ""), (6, " (other inputs)")])
def test_another_collective_is_an_error_on_both(size: int, program: str) -> None:
    first, second = nears(2)
    one, other = Rank(first, 0, 2, 6, "float32"), Rank(second, 1, 2, size, "float32", program)
    assert one.begin() and other.begin()
    for each in (one, other):
        with pytest.raises(RankError, match=r"another collective|bytes where"):
            each.end()


def test_what_is_begun_by_sockets_is_not_taken_for_what_comes_by_the_board() -> None:
    one, other = ranks(2, 100)
    one.value[:], other.value[:] = 1, 2
    flight = other.sum.begin([other.value], stays=True)
    assert one.begin() and not one.end()
    flight.end([{0: other.out}])
    assert (one.out == 3).all() and (other.out == 3).all()


def test_memory_in_the_place_of_memory_that_was_dropped_is_not_taken_for_it() -> None:
    one, other = ranks(2, 1000)
    for value in (1.0, 5.0):
        for each in (one, other):
            each.value[:] = value
            assert each.begin()
        if value == 1.0:
            assert not one.end() and not other.end()
            at = one.at
            del one.value, one.memory
            gc.collect()
            one.memory = one.near.empty(64 + 4 * 1000)
            one.value = one.memory[64:].view("float32")
            one.words[0] = address_of(one.value)
            assert one.at == at, "the system gave other memory, so this shows nothing"
    assert one.end() and not other.end()
    assert (one.out == 10).all() and (other.out == 10).all()


def test_notes_that_are_never_taken_count_as_read_once_they_are_abandoned() -> None:
    one, other = ranks(2, 1000)
    assert one.begin() and other.begin()
    other.direct.abandon()
    other.near.hear()
    assert one.near.is_read(one.at)
    one.end()
    assert other.near.is_read(other.at)


def test_a_sum_that_is_interrupted_as_soon_as_its_notes_are_written_can_be_abandoned() -> None:
    one, other = ranks(2, 1000)
    kernel = one.direct._begin

    def interrupted(arguments: int) -> None:
        kernel(arguments)
        raise KeyboardInterrupt

    one.direct._begin = interrupted
    with pytest.raises(KeyboardInterrupt):
        one.begin()
    one.direct.abandon()
    assert other.begin()
    other.end()
    one.near.hear()
    assert other.near.is_read(other.at)


def test_memory_may_be_dropped_before_the_note_about_it_is_seen() -> None:
    one, other = ranks(2, 1000)
    one.value[:], other.value[:] = 1, 2
    assert one.begin() and other.begin()
    assert not one.end()
    del one.value, one.memory
    gc.collect()
    one.near.tell({1: np.zeros(1)}, {1: 99}, b"", stays=False)  # with which the others hear of it
    assert not other.end()
    assert (other.out == 3).all()


def test_waiting_is_counted() -> None:
    one, other = ranks(2, 1)
    assert one.begin() and not one.direct.end()
    least = SPIN if (os.cpu_count() or 1) > 1 else BRIEFLY
    assert 1e-9 * least <= one.fabric.waited < 1.0
    before = one.fabric.waited
    assert other.begin() and other.direct.end() and one.direct.end()
    assert (one.fabric.waited, other.fabric.waited) == (before, 0.0)


def test_one_that_sleeps_is_woken_by_machine_code() -> None:
    one, other = ranks(2, 1)
    for each, by in ((one, other), (other, one)):
        each.near.board.say_asleep(True)  # type: ignore[union-attr]
        assert not each.near._poll.poll(0)
        by.begin()
        assert each.near._poll.poll(0)
        each.near.board.say_asleep(False)  # type: ignore[union-attr]
    one.near.board.say_asleep(True)  # type: ignore[union-attr]
    one.near.hear()
    assert not one.near._poll.poll(0)
    one.near.rest(10.0, lambda: True)  # does not sleep if it is done, and says that it is awake
    assert other.near.board is not None and not other.near.board.is_asleep(0)


def test_what_comes_while_all_are_asked_is_no_standstill() -> None:
    one, other = ranks(2, 1000)
    one.value[:], other.value[:] = 1, 2

    def answers() -> dict[int, str]:
        assert other.begin()
        return {1: "the same collective"}

    one.fabric.timeout, one.fabric._words.answers = 0.0, answers  # type: ignore[method-assign]
    assert one.begin()
    one.end()
    assert (one.out == 3).all()


def test_a_failure_is_heard_of_without_a_sleep() -> None:
    """It is told over MPI, which says at first that nothing has come."""

    class Status:
        def Get_source(self) -> int:  # noqa: N802
            return 1

        def Get_tag(self) -> int:  # noqa: N802
            return FAILED

    class Comm(schedules.Comm):
        probes = iter([False, True, False, False])

        def Iprobe(self, *_: Any) -> bool:  # noqa: N802
            return next(self.probes)

        def recv(self, **_: Any) -> str:
            return "a file is gone"

    first, second = nears(2)
    one = schedules.fabric(0, 2, first)
    one._words = Words(type("Mpi", (schedules.Mpi,), {"Status": Status}), Comm(0, 2))
    del first._poll
    second.call()
    with pytest.raises(RankError, match="process 1 of 2 on here has failed: a file is gone"):
        one.watch_near(lambda: False, list, "what the other one says")


@pytest.mark.parametrize("at", ["the beginning", "the beginning by sockets", "the end"])
def test_a_death_that_mpi_knows_of_is_the_error_of_the_collective(at: str) -> None:
    class Failure(Exception):
        def Get_error_string(self) -> str:  # noqa: N802
            return "Process Failure"

    class Comm(schedules.Comm):
        def Iprobe(self, *_: Any) -> bool:  # noqa: N802
            raise Failure

    first, second = nears(2)
    one = Rank(first, 0, 2, 1000, "float32")
    mpi = type("Mpi", (schedules.Mpi,), {"Exception": Failure})
    one.fabric._mpi, one.fabric._words = mpi, Words(mpi, Comm(0, 2))
    assert at != "the end" or one.begin()
    for each in second._sockets.values():
        each.close()
    with pytest.raises(RankError, match=r"process 1 of 2 on here has died in collective 1, all_reduce over data"):
        if at == "the end":
            one.end()
        elif at == "the beginning":
            one.begin()
        else:
            one.sum.begin([one.value])
    with pytest.raises(RankError, match=r"Process Failure in collective 1, .*: another process has died"):
        one.fabric.listen()


def test_the_last_note_of_one_that_ends_is_seen() -> None:
    one, other = ranks(2, 100)
    one.value[:], other.value[:] = 1, 2
    assert one.begin() and other.begin()
    for each in one.near._sockets.values():
        each.close()
    other.near.hear()
    assert other.near.ended == {0}
    other.end()
    assert (other.out == 3).all()
    assert other.begin()
    other.fabric.timeout = 5.0
    with pytest.raises(RankError, match="process 0 of 2 on here has died"):
        other.end()


def test_a_fork_neither_writes_nor_reads_notes() -> None:
    one, other = ranks(2, 100)
    tell_in_child(one.fabric, MpiFabric._leave_to_parent)
    one.fabric._hook = sys.excepthook
    one.value[:], other.value[:] = 1, 2

    def collective() -> None:
        assert not one.begin() and not one.direct.end()
        with pytest.raises(RankError, match="a fork takes no part in collectives"):
            one.sum.begin([one.value])

    assert _in_child(collective) == 0
    other.near.hear()
    assert not other.near.notes and not other.near.ended
    assert one.begin() and other.begin()
    one.end()
    assert (one.out == 3).all()


def test_a_board_is_closed_once_it_was_sent() -> None:
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    made = nears(3)
    mappings = 9  # of which each keeps a descriptor of its own
    assert len(os.listdir("/proc/self/fd")) == files + 6 + mappings
    for near in made:
        for each in near._sockets.values():
            each.close()


def test_a_process_with_all_its_files_open_says_so() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first, second = Near({1: one}, Board(0, [1])), Near({0: other}, Board(1, [0]))
    with no_more_files(), pytest.raises(OutOfMemoryError, match=r"cannot be mapped: .*Too many open files"):
        second.hear()
    assert first.board is not None
