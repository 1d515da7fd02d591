"""`Near`: the processes of one host, which pass notes through sockets and read each other's memory where it stands.

A note names an exchange. It carries a small vector; a large one stands in memory that the receiver maps once and reads
in place. The sender does not overwrite it until every receiver has answered `read`. Whoever waits sleeps in the kernel,
and a process that ends closes its sockets, so its death is seen at once. On Linux only: elsewhere no process is near
another.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import socket
import struct
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, final

import numpy as np

from ...forks import tell_in_child
from ...ops.errors import OutOfMemoryError
from ..host import Array, address_of
from ..native.notes import NAME
from .board import Board, forbid

INLINE = 1 << 14
"""Bytes up to which a vector is sent within a note."""

_IDLE = 1 << 26
"""Bytes of copies of vectors that are kept for reuse once all have read them."""

_NOTE, _READ, _MEMORY, _GONE, _BOARD = range(5)
_WAKE = b"\0"
"""Sent to one that sleeps, for it to look at the boards."""
_CALL = b"\1"
"""Sent to those who are to hear of a failure."""
_HEAD = struct.Struct(f"<qqqqq{NAME}s")
_LONGEST = _HEAD.size + INLINE
_FDS = socket.CMSG_SPACE(4) if hasattr(socket, "CMSG_SPACE") else 0


class SentNote(NamedTuple):
    """The note of a process about an exchange.

    block   the memory of its process in which its vector stands, or 0
    vector  its bytes, to be read only: those that came, if it is small, or those lent, which stay until `read`; a copy
            if they were lent in pieces
    posted  whether it stood on the board of its process
    """

    name: bytes
    block: int
    vector: Array
    posted: bool = False


class SharedBlock(NamedTuple):
    """Memory of this process that others can read."""

    number: int
    address: int
    nbytes: int
    fd: int
    known: set[int]


@final
class Near:
    """This process, and the others of its host by their sockets.

    notes   what has come and was not taken yet, by process and number of the exchange
    ended   the processes whose sockets are closed
    called  whether another one has called this one to listen, see `Words`
    timeout seconds after which one that takes no notes is an error
    board   where machine code writes and reads notes, see `Board`; None without
    changes how often memory was made or dropped
    """

    def __init__(self, sockets: Mapping[int, socket.socket], board: Board | None = None):
        self.processes = frozenset(sockets)
        self.notes: dict[tuple[int, int], SentNote] = {}
        self.ended: set[int] = set()
        self.called = False
        self.timeout = 60.0
        self._sockets = dict(sockets)
        self._poll = select.poll()
        for each in self._sockets.values():
            each.setblocking(False)
            self._poll.register(each, select.POLLIN)
        self._blocks: dict[int, SharedBlock] = {}
        self._made = 0
        self.changes = 0
        self._dropped: deque[int] = deque()  # blocks that are gone, of which the others have not heard
        self._lent: dict[int, int] = {}  # by block, how many readers have not said that they have read, if any
        self._copies: dict[int, Array] = {}  # blocks that hold copies of vectors
        self._mapped: dict[tuple[int, int], Array] = {}
        self._unread: set[tuple[int, int]] = set()  # exchanges whose notes nobody here will take
        self.board = board
        if board is not None:
            for process in self.processes:
                with suppress(ConnectionError):
                    self._send(process, _BOARD, 0, 0, nbytes=board.places.nbytes, fd=board.fd)
            board.close()
        tell_in_child(self, Near._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """Give up everything in the child of a fork: the memory is that of its parent, who goes on to write there."""
        for block in self._blocks.values():  # to read or write it is a crash, not a wrong number
            forbid(block.address, block.nbytes)
        for each in self._sockets.values():  # else the others could not see that the parent has died
            each.close()
        self.ended.update(self.processes)
        if self.board is not None:
            self.board.leave_to_parent()

    def stay(self) -> None:
        """Keep the sockets until the process ends: while it waits at its exit for the others, it has not died."""
        for each in self._sockets.values():
            each.detach()

    # Memory -----------------------------------------------------------------------------------------------------------

    def empty(self, nbytes: int) -> Array:
        """Return memory that the others can read. Raises OutOfMemoryError."""
        self._tell_dropped()
        size = max(1, nbytes)
        fd = -1
        try:
            fd = os.memfd_create("opstage")
            os.posix_fallocate(fd, 0, size)  # all of it now: a page that is missing later would be a crash
            memory = mmap.mmap(fd, size)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise OutOfMemoryError(f"the system gives no {nbytes} bytes that processes can share: {error}") from None
        self._made += 1
        made = np.frombuffer(memory, np.uint8)
        self._blocks[self._made] = SharedBlock(self._made, address_of(made), nbytes, fd, set())
        self.changes += 1
        weakref.finalize(memory, self._drop, self._made, fd).atexit = False
        return made

    def _drop(self, number: int, fd: int) -> None:
        """Note that the memory of a block was released, by any thread and at any point of this one."""
        os.close(fd)
        self._dropped.append(number)
        self.changes += 1  # last, for who sees it must see what was dropped

    def _tell_dropped(self) -> None:
        while self._dropped:
            number = self._dropped.popleft()
            for process in self._blocks.pop(number).known:
                with suppress(ConnectionError):
                    self._send(process, _GONE, 0, number)

    def block_at(self, address: int, nbytes: int = 1) -> SharedBlock | None:
        """Return the block in which memory stands, if it does in one."""
        if self._dropped:
            self._tell_dropped()  # for another one may have its addresses
        for block in self._blocks.values():
            if block.address <= address and address + nbytes <= block.address + block.nbytes:
                return block
        return None

    def socket_of(self, process: int) -> int:
        """Return the descriptor of the socket to a process."""
        return self._sockets[process].fileno()

    def mapped(self, process: int, block: int) -> Array | None:
        """Return a block of another process that is mapped here, to be read only."""
        return self._mapped.get((process, block))

    def _stand(self, x: Array, stays: bool) -> tuple[SharedBlock, int]:
        """Return where in which block others can read an array, or a copy of it."""
        block = self.block_at(address_of(x), x.nbytes) if stays else None
        if block is not None:
            return block, address_of(x) - block.address
        found = self._idle_copy(x.nbytes)
        if found is None:
            self.hear()
            found = self._idle_copy(x.nbytes)
        if found is None:
            idle = [number for number in self._copies if number not in self._lent]
            while idle and sum(map(len, self._copies.values())) + x.nbytes > _IDLE:
                del self._copies[idle.pop(0)]
            memory = self.empty(x.nbytes)
            found = self._made
            self._copies[found] = memory
        self._copies[found][: x.nbytes] = x.reshape(-1).view(np.uint8)
        return self._blocks[found], 0

    def _idle_copy(self, nbytes: int) -> int | None:
        for number, memory in self._copies.items():
            if number not in self._lent and nbytes <= len(memory) <= 2 * nbytes:
                return number
        return None

    def is_read(self, address: int) -> bool:
        """Return whether all have read what was lent of the block at an address."""
        if self._lent:
            self.hear()
        block = self.block_at(address) if self._lent or self.board is not None else None
        if block is None:
            return True
        return block.number not in self._lent and (self.board is None or self.board.is_read(block.number))

    # Notes ------------------------------------------------------------------------------------------------------------

    def tell(self, parts: Mapping[int, Array], numbers: Mapping[int, int], name: bytes, *, stays: bool) -> None:
        """Send each process its vector, in the note of the exchange that has its number.

        A small vector is sent. A large one is copied, unless it stands in memory of `empty` and, as `stays` says, is
        not overwritten until `is_read`. Raises ConnectionError for a process that has ended, and OutOfMemoryError.
        """
        if self._dropped:
            self._tell_dropped()
        stands: dict[int, tuple[SharedBlock, int]] = {}  # by vector: its block, and where in it
        for x in parts.values():
            if x.nbytes > INLINE:
                if id(x) not in stands:
                    stands[id(x)] = self._stand(x, stays)
                block, _ = stands[id(x)]
                self._lent[block.number] = self._lent.get(block.number, 0) + 1  # before any of them can be read
        for process, x in parts.items():
            number = numbers[process]
            if x.nbytes <= INLINE:
                self._send(process, _NOTE, number, 0, 0, x.nbytes, name, x.reshape(-1).view(np.uint8))
                continue
            block, offset = stands[id(x)]
            self.share(block, process)
            self._send(process, _NOTE, number, block.number, offset, x.nbytes, name)

    def share(self, block: SharedBlock, process: int) -> None:
        """Let a process map a block, before a note names it. Raises ConnectionError."""
        if process not in block.known:
            self._send(process, _MEMORY, 0, block.number, 0, block.nbytes, fd=block.fd)
            block.known.add(process)

    def read(self, process: int, note: SentNote) -> None:
        """Say that the vector of a note may be overwritten."""
        if not note.block:
            return
        with suppress(ConnectionError):  # then nobody waits for it
            if not note.posted:
                self._send(process, _READ, 0, note.block)
            elif self.board is not None:
                self.board.say_read(process, note.block)
                self.wake(process)

    def wake(self, process: int) -> None:
        """Let one that sleeps look at the boards. Raises ConnectionError."""
        if self.board is not None and self.board.is_asleep(process):
            with suppress(BlockingIOError):  # then it has something to read
                self._sockets[process].send(_WAKE)

    def call(self) -> None:
        """Let all others listen to what is said beside."""
        for each in self._sockets.values():
            with suppress(OSError):  # it has much to read, or has ended
                each.send(_CALL)

    def leave(self, process: int, number: int) -> None:
        """Take the note of an exchange, whenever it comes, for read."""
        note = self.notes.pop((process, number), None)
        if note is None:
            self._unread.add((process, number))
        else:
            self.read(process, note)

    def hear(self, at: tuple[int, int] | None = None) -> None:
        """Receive what has come, up to the note of a process about an exchange."""
        for process in self._sockets:
            self._receive(process, at)
            self._look(process)  # last, as what one has said counts though it has ended since
            if at in self.notes:
                return

    def _receive(self, process: int, at: tuple[int, int] | None = None) -> None:
        """Receive what a process has sent, up to a note."""
        each = self._sockets[process]
        while process not in self.ended:
            try:
                data, fds, _, _ = each.recvmsg(_LONGEST, _FDS)
            except BlockingIOError:
                break
            except ConnectionResetError:  # it has ended without hearing all, which is said before what it has sent
                continue
            if not data:
                self.ended.add(process)
                self._poll.unregister(each)
                break
            if data == _CALL:
                self.called = True
            elif data != _WAKE:
                self._take(process, data, fds)
            if at in self.notes:
                break

    def _look(self, process: int) -> None:
        """Take the notes that a process has written on its board."""
        if self.board is None:
            return
        for found in self.board.notes(process):
            if not found.block:
                vector = np.frombuffer(found.inline, np.uint8)
            else:
                if (process, found.block) not in self._mapped:
                    self._receive(process)  # where it was sent before
                block = self._mapped[process, found.block]
                pieces = [block[offset : offset + nbytes] for offset, nbytes in found.pieces]
                vector = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            self._keep(process, found.number, SentNote(found.name, found.block, vector, posted=True))

    def rest(self, seconds: float, done: Callable[[], bool]) -> None:
        """Sleep until something has come, at most so long, and not at all if it is done."""
        if self.board is None:
            self._poll.poll(1e3 * seconds)
            return
        self.board.say_asleep(True)
        try:
            self.hear()  # what was written before that was read
            if not done() and not self.called:
                self._poll.poll(1e3 * seconds)
        finally:
            self.board.say_asleep(False)

    def _keep(self, process: int, number: int, note: SentNote) -> None:
        if (process, number) in self._unread:
            self._unread.remove((process, number))
            self.read(process, note)
        else:
            self.notes[process, number] = note

    def _take(self, process: int, data: bytes, fds: Sequence[Any]) -> None:
        kind, number, block, offset, nbytes, name = _HEAD.unpack_from(data)
        if kind == _NOTE:
            if block:
                vector = self._mapped[process, block][offset : offset + nbytes]  # which keeps it, should it be dropped
            else:
                vector = np.frombuffer(data, np.uint8, offset=_HEAD.size)
            self._keep(process, number, SentNote(name, block, vector))
        elif kind == _READ:
            self._lent[block] -= 1
            if not self._lent[block]:
                del self._lent[block]
        elif kind in (_MEMORY, _BOARD):
            try:
                if not fds:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                (_, _, right), *_ = fds
                fd = int.from_bytes(right[:4], sys.byteorder)
                try:
                    if kind == _MEMORY:
                        memory = mmap.mmap(fd, max(1, nbytes), prot=mmap.PROT_READ)
                        self._mapped[process, block] = np.frombuffer(memory, np.uint8)
                    elif self.board is not None and self.board.places.nbytes == nbytes:
                        self.board.add(process, fd)
                finally:
                    os.close(fd)
            except (ValueError, OSError) as error:
                raise OutOfMemoryError(
                    f"memory of {nbytes} bytes that process {process} shares cannot be mapped: {error}"
                ) from None
        else:
            self._look(process)  # notes that were written before it was dropped
            self._mapped.pop((process, block), None)

    def _send(
        self,
        process: int,
        kind: int,
        number: int,
        block: int,
        offset: int = 0,
        nbytes: int = 0,
        name: bytes = b"",
        vector: Any = b"",
        fd: int | None = None,
    ) -> None:
        head = _HEAD.pack(kind, number, block, offset, nbytes, name)
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]
        each = self._sockets[process]
        since = None
        while process not in self.ended:
            try:
                each.sendmsg([head, vector], rights)
                return
            except ConnectionError:  # said by number, as by a process whose end was heard
                break
            except BlockingIOError:  # the other one is far behind; it may wait for room here, too
                since = time.monotonic() if since is None else since
                if time.monotonic() - since > self.timeout:
                    raise TimeoutError(process) from None
                self.hear()
                ready = select.poll()
                ready.register(each, select.POLLOUT)
                ready.poll(10.0)
        raise ConnectionResetError(process)
