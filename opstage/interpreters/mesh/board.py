"""`Board`: memory in which a process of a host writes notes for the others, which machine code reads and writes.

Only its process writes a board, and the others map it to read. See `native.notes` for what stands on it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from ..host import address_of
from ..native.notes import (
    BLOCK,
    BLOCKS,
    INLINE_AT,
    LINE,
    NAMED,
    NBYTES,
    NOTE,
    NOTES,
    NUMBER,
    PIECES,
    callable_of,
    peek_kernel,
    write_kernel,
)

Words = npt.NDArray[np.int64]


class BoardNote(NamedTuple):
    """A note that was taken from a board: the number of its exchange, its name, and its vector, which stands in a block
    in pieces of some bytes from some offset on each or, if the block is 0, within the note."""

    number: int
    name: bytes
    block: int
    pieces: Sequence[Sequence[int]]
    inline: bytes


class BoardPlaces(NamedTuple):
    """Offsets in bytes on the boards of so many processes."""

    processes: int

    def taken(self, place: int) -> int:
        """Of the number of notes that were taken of a process at this place in their order."""
        return LINE * (1 + place)

    def read(self, place: int) -> int:
        """Of the counters of what was read of its memory."""
        return LINE * (1 + self.processes) + 8 * BLOCKS * place

    def ring(self, place: int) -> int:
        """Of the notes for it."""
        return (LINE + 8 * BLOCKS) * self.processes + LINE + NOTE * NOTES * place

    @property
    def nbytes(self) -> int:
        """Of a board."""
        return self.ring(self.processes)


@final
class Board:
    """The boards of this process and of others of its host.

    fd       of its own memory, for the others to map
    usable   a word that is 0 where no note may be written or read: in the child of a fork
    lent     by place, how often memory of each block was lent in notes on the board
    written  by place, the number of notes that were written
    taken    by place, the turns of the last notes that were taken
    """

    def __init__(self, process: int, others: Collection[int]):
        """Raises OSError if the system gives no memory to share."""
        self._order = sorted([process, *others])
        self.place = self._order.index(process)
        self.places = BoardPlaces(len(self._order))
        self.fd = os.memfd_create("opstage board")
        try:
            os.posix_fallocate(self.fd, 0, self.places.nbytes)
            self._own = np.frombuffer(mmap.mmap(self.fd, self.places.nbytes), np.int64)
        except OSError:
            os.close(self.fd)
            raise
        self.usable = np.ones(1, np.int64)
        self.lent: Words = np.zeros((self.places.processes, BLOCKS), np.int64)
        self.written: Words = np.zeros(self.places.processes, np.int64)
        self.taken: Words = np.zeros((self.places.processes, NOTES), np.int64)
        self._others: dict[int, Words] = {}
        self._write, self._peek = callable_of(write_kernel()), callable_of(peek_kernel())
        self._given = np.zeros(5, np.int64)
        self._note = np.zeros(NOTE, np.uint8)

    def add(self, process: int, fd: int) -> None:
        """Map the board of another process. Raises OSError."""
        memory = mmap.mmap(fd, self.places.nbytes, prot=mmap.PROT_READ)
        self._others[process] = np.frombuffer(memory, np.int64)

    def close(self) -> None:
        """Close the descriptor, which all have received."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def leave_to_parent(self) -> None:
        """Use nothing of it in the child of a fork."""
        self.usable[0] = 0
        forbid(address_of(self._own), self.places.nbytes)

    def place_of(self, process: int) -> int:
        """Return the place of a process in their order."""
        return self._order.index(process)

    def has(self, process: int) -> bool:
        """Return whether the board of another process is there."""
        return process in self._others and bool(self.usable[0])

    def own_at(self, offset: int) -> int:
        """Return an address on its own board."""
        return address_of(self._own) + offset

    def their_at(self, process: int, offset: int) -> int:
        """Return an address on the board of another process."""
        return address_of(self._others[process]) + offset

    # Sleep ------------------------------------------------------------------------------------------------------------

    def say_asleep(self, asleep: bool) -> None:
        """Say whether this process sleeps, before it looks once more whether something has come."""
        self._store(self.own_at(0), int(asleep))

    def is_asleep(self, process: int) -> bool:
        """Return whether another one has said that it sleeps."""
        return process in self._others and bool(self._word(process, 0))

    # Notes ------------------------------------------------------------------------------------------------------------

    def notes(self, process: int) -> Iterator[BoardNote]:
        """Take the notes of another process."""
        if not self.has(process):
            return
        given, place = self._given, self.place_of(process)
        while True:
            given[:4] = (
                self.their_at(process, self.places.ring(self.place)),
                self.own_at(self.places.taken(place)),
                address_of(self.taken[place]),
                address_of(self._note),
            )
            self._peek(address_of(given))
            if not given[4]:
                return
            words, data = self._note.view(np.int64), self._note.tobytes()
            block = int(words[BLOCK])
            inline = b"" if block else data[INLINE_AT : INLINE_AT + int(words[NBYTES])]
            pieces = words[INLINE_AT // 8 :][: 2 * int(words[PIECES]) if block else 0].reshape(-1, 2).tolist()
            yield BoardNote(int(words[NUMBER]), data[8 * NAMED : INLINE_AT], block, pieces, inline)

    # Memory -----------------------------------------------------------------------------------------------------------

    def say_read(self, process: int, block: int) -> None:
        """Say that memory of a block of another process, lent in a note on its board, may be overwritten."""
        at = self.places.read(self.place_of(process)) + 8 * (block % BLOCKS)
        self._store(self.own_at(at), int(self._own[at // 8]) + 1)

    def is_read(self, block: int) -> bool:
        """Return whether all have read what was lent of a block in notes on the board."""
        counter = block % BLOCKS
        at = self.places.read(self.place) + 8 * counter
        return all(self.lent[self.place_of(p), counter] == self._word(p, at) for p in self._others)

    def _word(self, process: int, at: int) -> int:
        return int(self._others[process][at // 8])

    def _store(self, address: int, number: int) -> None:
        self._given[:2] = address, number
        self._write(address_of(self._given))


def forbid(address: int, nbytes: int) -> None:
    """Make it a crash to read or write memory that is shared, which a child of a fork has from its parent."""
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), 0)
