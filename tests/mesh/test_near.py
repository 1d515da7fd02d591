"""Notes and memory between processes of one host: two ends of a pair of sockets stand for two processes."""

from __future__ import annotations

import gc
import socket
import sys
from typing import Any

import numpy as np
import pytest

from opstage.interpreters.host import address_of
from opstage.interpreters.mesh.mpi import MpiFabric
from opstage.interpreters.mesh.mpi_flight import HEADER, MpiFlight, nothing
from opstage.interpreters.mesh.near import INLINE, NAME, Near
from opstage.interpreters.mesh.words import Words
from opstage.ops.errors import RankError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are near on Linux alone")
CALLED = b"a sum".ljust(NAME, b"\0")


def pair() -> tuple[Near, Near]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Near({1: one}), Near({0: other})


def lent(near: Near, count: int) -> Any:
    """A vector that stands in memory which the others can read."""
    return near.empty(4 * count + 256)[256:].view(np.float32)


def tell(near: Near, number: int, x: Any) -> None:
    near.tell(1, number, CALLED, x.nbytes, x, near.block_of(x))


@pytest.mark.parametrize("x", [np.arange(6.0).reshape(2, 3), np.array(3, np.int8), np.zeros(0), np.zeros(INLINE, "?")])
def test_what_is_small_is_in_the_note(x: Any) -> None:
    one, other = pair()
    one.tell(1, 7, CALLED, x.nbytes, x, None)
    other.hear()
    note = other.notes.pop((0, 7))
    assert (note.name, note.nbytes, note.vector.tobytes()) == (CALLED, x.nbytes, x.tobytes())


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
        other.hear()
        note = other.notes.pop((0, number))
        assert len(other._mapped) == 0
        assert note.vector.view(np.float32)[0] == number  # what is still read stays
        other.read(0, note)
        one.hear()
    assert len(one._blocks) == 0


def test_one_that_ends_is_noticed_after_what_it_has_said() -> None:
    one, other = pair()
    one.tell(1, 1, CALLED, 0, None, None)
    for each in one._sockets.values():
        each.close()
    other.hear()
    assert (0, 1) in other.notes and other.ended == {0}
    with pytest.raises(ConnectionError):
        other.tell(0, 1, CALLED, 0, None, None)


def test_one_that_takes_no_notes_is_an_error() -> None:
    one, _other = pair()
    one.timeout = 0.05
    with pytest.raises(TimeoutError):
        for number in range(1 << 16):
            one.tell(1, number, CALLED, INLINE, np.zeros(INLINE, np.uint8), None)


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
    fabric.process, fabric.processes, fabric.hosts, fabric.timeout, fabric.waited = 0, 2, ["here", "there"], 9.0, 0.0
    heads: dict[int, tuple[Any, bytearray]] = {1: (Request(0), bytearray(HEADER.pack(*head)))}
    room = {1: np.zeros(1)}
    flight = MpiFlight(fabric, {1: 1}, CALLED, heads, {1: Request(body)}, {1: Status()}, {}, room, nothing)
    if said is None:
        flight.wait()
    else:
        with pytest.raises(RankError, match=said):
            flight.wait()
