"""Notes and memory between processes of one host: two ends of a pair of sockets stand for two processes."""

from __future__ import annotations

import errno
import faulthandler
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from opstage.forks import tell_in_child
from opstage.interpreters.graph.cpu.scratch import CpuScratch
from opstage.interpreters.host import address_of
from opstage.interpreters.mesh import near
from opstage.interpreters.mesh.lending import Lending
from opstage.interpreters.mesh.mpi import MpiFabric
from opstage.interpreters.mesh.mpi_flight import HEADER, MpiFlight, nothing
from opstage.interpreters.mesh.near import INLINE, Near
from opstage.interpreters.mesh.words import Words
from opstage.interpreters.native.notes import NAME
from opstage.ops.errors import OutOfMemoryError, RankError
from tests.mesh import schedules

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are near on Linux alone")
CALLED = b"a sum".ljust(NAME, b"\0")


def pair() -> tuple[Near, Near]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Near({1: one}), Near({0: other})


def lent(sender: Near, count: int) -> Any:
    """A vector that stands in memory which the others can read."""
    return sender.empty(4 * count + 256)[256:].view(np.float32)


def tell(sender: Near, number: int, x: Any, *, stays: bool = True) -> None:
    sender.tell({1: x}, {1: number}, CALLED, stays=stays)


@pytest.mark.parametrize("x", [np.arange(6.0).reshape(2, 3), np.array(3, np.int8), np.zeros(0), np.zeros(INLINE, "?")])
def test_what_is_small_is_in_the_note(x: Any) -> None:
    one, other = pair()
    tell(one, 7, x)
    other.hear()
    note = other.notes.pop((0, 7))
    assert (note.name, note.block, note.vector.tobytes()) == (CALLED, 0, x.tobytes())


def test_what_is_lent_is_read_where_it_stands_until_it_was_read() -> None:
    one, other = pair()
    x = lent(one, 1 << 16)
    x[:] = 1.0
    tell(one, 1, x)
    x[-1] = 2.0  # nothing was copied
    other.hear()
    note = other.notes.pop((0, 1))
    seen = note.vector.view(np.float32)
    np.testing.assert_array_equal(seen, x)
    assert not seen.flags.writeable
    assert not one.is_read(address_of(x)) and one.is_read(address_of(np.zeros(3)))
    other.read(0, note)
    assert one.is_read(address_of(x))


def test_each_of_several_loans_must_be_read() -> None:
    one, other = pair()
    x = lent(one, 1 << 14)
    for number in (1, 2):
        tell(one, number, x[number:])
    other.hear()
    for number in (2, 1):  # in another order than they were lent
        assert not one.is_read(address_of(x))
        other.read(0, other.notes.pop((0, number)))
    assert one.is_read(address_of(x))


@pytest.mark.parametrize("first", [True, False])
def test_what_nobody_will_read_counts_as_read(first: bool) -> None:
    one, other = pair()
    x = lent(one, 1 << 14)
    if first:
        other.leave(0, 1)
    tell(one, 1, x)
    other.hear()
    if not first:
        other.leave(0, 1)
    assert one.is_read(address_of(x)) and not other.notes


def test_memory_that_is_dropped_is_forgotten_by_those_who_have_mapped_it() -> None:
    one, other = pair()
    for number in (1, 2):
        x = lent(one, 1 << 14)
        x[:] = number
        tell(one, number, x)
        del x
        gc.collect()
        tell(one, 0, np.zeros(1))
        other.hear()
        note = other.notes.pop((0, number))
        assert len(other._mapped) == 0
        assert note.vector.view(np.float32)[0] == number  # what is still read stays
        other.read(0, note)
        one.hear()
    assert len(one._blocks) == 0 and not one._lent


def test_one_that_ends_is_noticed_after_what_it_has_said() -> None:
    one, other = pair()
    tell(one, 1, np.zeros(0))
    for each in one._sockets.values():
        each.close()
    other.hear()
    assert (0, 1) in other.notes and other.ended == {0}
    with pytest.raises(ConnectionError):
        other.tell({0: np.zeros(0)}, {0: 1}, CALLED, stays=False)


def test_what_one_has_said_counts_though_it_ends_without_hearing_the_others() -> None:
    one, other = pair()
    tell(one, 1, np.arange(3))
    other.tell({0: np.zeros(0)}, {0: 1}, CALLED, stays=False)
    for each in one._sockets.values():
        each.close()
    other.hear()
    assert other.notes.pop((0, 1)).vector.tobytes() == np.arange(3).tobytes()
    assert other.ended == {0}


def test_one_that_has_ended_since_it_was_last_heard_is_named() -> None:
    one, other = pair()
    for each in other._sockets.values():
        each.close()
    with pytest.raises(ConnectionError) as told:
        tell(one, 1, np.zeros(0))
    assert told.value.args == (1,)


def test_one_that_takes_no_notes_is_an_error() -> None:
    one, _other = pair()
    one.timeout = 0.05
    with pytest.raises(TimeoutError):
        for number in range(1 << 16):
            tell(one, number, np.zeros(INLINE, np.uint8))


@pytest.mark.parametrize(
    "x", [np.arange(1 << 16, dtype=np.int32), np.zeros((300, 70), np.float32).T, np.ones(INLINE + 1, "?")]
)
def test_what_may_be_overwritten_is_copied_until_it_was_read(x: Any) -> None:
    one, other = pair()
    sent = np.ascontiguousarray(x)
    kept = sent.copy()
    tell(one, 1, sent, stays=False)
    sent[...] = 0
    tell(one, 2, sent, stays=False)  # the first copy is still to be read
    other.hear()
    first, second = other.notes.pop((0, 1)), other.notes.pop((0, 2))
    assert (first.vector.tobytes(), second.vector.tobytes()) == (kept.tobytes(), sent.tobytes())
    other.read(0, first)
    tell(one, 3, kept, stays=False)  # in the memory of the first
    other.hear()
    third = other.notes.pop((0, 3))
    assert third.block == first.block != second.block
    assert (second.vector.tobytes(), third.vector.tobytes()) == (sent.tobytes(), kept.tobytes())


def test_a_copy_for_several_is_kept_until_the_last_has_read() -> None:
    ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    one = Near({1: ends[0][0], 2: ends[1][0]})
    others = {1: Near({0: ends[0][1]}), 2: Near({0: ends[1][1]})}
    x = np.arange(INLINE, dtype=np.int32)
    one.tell({1: x, 2: x}, {1: 1, 2: 1}, CALLED, stays=False)
    for number in (1, 2):
        others[number].hear()
    assert len(one._copies) == 1
    others[1].read(0, others[1].notes.pop((0, 1)))
    one.tell({1: x + 1}, {1: 2}, CALLED, stays=False)
    np.testing.assert_array_equal(others[2].notes.pop((0, 1)).vector.view(np.int32), x)


def test_copies_that_all_have_read_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "_IDLE", 1 << 20)
    one, other = pair()
    for number in range(1, 8):
        tell(one, number, np.full(number << 16, number, np.uint8), stays=False)
        other.hear()
        note = other.notes.pop((0, number))
        assert (note.vector == number).all()
        other.read(0, note)
    assert sum(map(len, one._copies.values())) <= 1 << 20


def test_memory_that_the_system_does_not_give_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair()
    files = len(os.listdir("/proc/self/fd"))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(OutOfMemoryError, match=r"no 65536 bytes that processes can share.*No space left"):
            one.empty(1 << 16)
    assert len(os.listdir("/proc/self/fd")) == files
    tell(one, 1, lent(one, 1 << 14))
    with monkeypatch.context() as patched:
        patched.setattr(near.mmap, "mmap", full)
        with pytest.raises(OutOfMemoryError, match="that process 0 shares cannot be mapped"):
            other.hear()


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process has as many files open as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_with_all_its_files_open_says_so() -> None:
    one, other = pair()
    tell(one, 1, lent(one, 1 << 14))
    with no_more_files(), pytest.raises(OutOfMemoryError, match=r"cannot be mapped: .*Too many open files"):
        other.hear()


def _in_child(run: Callable[[], None]) -> int:
    """How a child of a fork ends that runs this: 0, an exit code, or less a signal."""
    child = os.fork()
    if not child:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_cannot_write_in_memory_that_its_parent_shares() -> None:
    one, other = pair()
    x = lent(one, 1 << 14)
    x[:] = 1.0

    def write() -> None:
        faulthandler.disable()
        x[:] = 2.0

    assert _in_child(write) == -signal.SIGSEGV
    assert (x == 1.0).all()
    tell(one, 1, x)
    other.hear()
    assert (0, 1) in other.notes


def test_a_compiled_program_in_a_fork_has_memory_of_its_own() -> None:
    one, _other = pair()
    scratch = CpuScratch()
    scratch.lends = Lending(None, one)  # type: ignore[arg-type]
    block = scratch.take(4096)
    block.memory[:] = 1
    scratch.give_back(block)

    def compute() -> None:
        scratch.take(4096).memory[:] = 2

    assert _in_child(compute) == 0
    assert (block.memory == 1).all()


def test_the_death_of_a_process_is_seen_although_a_fork_of_it_lives() -> None:
    one, other = pair()
    begin, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.read(begin, 1)  # until the parent is done
        os._exit(0)
    try:
        for each in one._sockets.values():
            each.close()
        while not other.ended:
            other.hear()
    finally:
        os.close(end)
        os.close(begin)
        os.waitpid(child, 0)


def test_a_fork_takes_no_part_in_collectives() -> None:
    one, other = pair()
    fabric = schedules.fabric(0, 2, one)
    tell_in_child(fabric, MpiFabric._leave_to_parent)
    fabric._hook = sys.excepthook

    def collective() -> None:
        with pytest.raises(RankError, match="a fork takes no part in collectives"):
            fabric.start({1: np.zeros(3)}, {1: np.zeros(3)}, "a sum")

    assert _in_child(collective) == 0
    other.hear()
    assert not other.notes and not other.ended


class Mpi:
    """What a wait asks of MPI."""

    BYTE = ANY_SOURCE = ANY_TAG = None
    Exception = OSError


class Status:
    count = 0

    def Get_count(self, _: Any) -> int:  # noqa: N802
        return self.count


class Request:
    """A message of so many bytes that has come."""

    def __init__(self, count: int):
        self._count = count

    def Test(self, status: Status | None = None) -> bool:  # noqa: N802
        if status is not None:
            status.count = self._count
        return True


class Comm:
    rank, size = 0, 2


@pytest.mark.parametrize(
    "head, body, said",
    [
        ((1, 8, CALLED), 8, None),
        ((1, 8, CALLED), 4, "process 1 of 2 on there has sent 4 bytes where 8 were expected"),
        ((1, 4, CALLED), 4, "process 1 of 2 on there has sent 4 bytes where 8 were expected"),
        ((1, 16, CALLED), 8, "has sent 16 bytes where 8 were expected"),
        ((2, 8, CALLED), 8, "is in number 2 a sum"),
        ((1, 8, b"other".ljust(NAME, b"\0")), 8, "is in number 1 other"),
    ],
)
def test_a_message_of_another_size_or_name_is_an_error(head: Any, body: int, said: str | None) -> None:
    fabric = object.__new__(MpiFabric)
    fabric._mpi, fabric._words, fabric._near, fabric._near_processes = Mpi, Words(Mpi, Comm), None, frozenset()
    fabric.process, fabric.processes, fabric.hosts, fabric.timeout, fabric.slept = 0, 2, ["here", "there"], 9.0, 0.0
    heads: dict[int, tuple[Any, bytearray]] = {1: (Request(0), bytearray(HEADER.pack(*head)))}
    room = {1: np.zeros(1)}
    flight = MpiFlight(fabric, {1: 1}, "a sum", CALLED, heads, {1: Request(body)}, {1: Status()}, {}, room, nothing)
    if said is None:
        flight.wait()
    else:
        with pytest.raises(RankError, match=said):
            flight.wait()
