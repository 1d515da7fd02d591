"""Notes between processes of one host in memory that they share, written and read by machine code.

A process has a board, which only it writes and the others read. On it is a ring of notes for each other process, how
many notes it has taken of theirs, and how much of their memory it has read. A note is valid once its first word has the
number that is its turn; so neither side needs a lock, and neither makes a system call unless the other one sleeps.
Notes may be taken in another order than that in which they were written; one is overwritten once it and all before it
were taken.

What a kernel cannot do, it leaves as it was for who called it: it waits for microseconds alone, and knows of no errors.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from .compiler import Kernel, compile_kernel

LINE = 64
NAME = 160
"""Bytes of the name of an exchange."""

NOTES = 32
"""Notes of a ring."""
TURN, NUMBER, BLOCK, NBYTES, PIECES, NAMED = range(6)
"""The words of a note: whose turn it is, the number of its exchange, where its vector stands, its bytes and in how many
pieces, and from there on the name. Then come the offset and the bytes of each piece, or the vector itself if no block
is named."""
INLINE_AT = 8 * NAMED + NAME
NOTE = 1024
INLINE = NOTE - INLINE_AT
"""Bytes up to which a vector is within a note."""
MOST_PIECES = INLINE // 16
BLOCKS = 64
"""Counters of what was read of a process; blocks whose numbers differ by as many have one together."""

SPIN, BRIEFLY = 200_000, 5_000
"""Nanoseconds in which a kernel waits for a note, about as long as going to sleep and waking up takes; and where there
are more processes than cores, so that the other one may be waiting for this very core."""
CHUNK = 2048
"""Numbers that are added at a time where there are more than two addends."""
MUCH = 1 << 22
"""Bytes from which a sum of two vectors is written past the caches, where it would not stay; so its memory is not read
before."""

# The words of an exchange of vectors with each of several peers: for each the concatenated pieces of some members.
(
    OPEN,  # the address of a word that is 0 where notes must not be used
    COUNTS,  # of the number of exchanges with each process
    SENT,  # of the bytes that were sent in all, and of the nanoseconds that were waited
    WAITED,
    CALLED,  # of the name
    SIZE,  # bytes of a vector
    OWN_BLOCK,  # of three words about the block in which the members stand: number, address and bytes; or zeros
    SEND,  # of the C library's send, clock_gettime and memcpy
    CLOCK,
    COPY,
    PATIENCE,  # the nanoseconds to wait
    VECTORS,  # of the addresses of a member's pieces, in the order of ranks, and of those of CHUNK numbers of each sum
    ADDITIONS,  # of pairs of these: what is added up one after the other
    SUMS,  # how many there are
    OWN,  # which of the pieces is that of this process
    PEERS,  # how many there are, and how many members
    MEMBERS,
    DONE,  # whether the last call has done its work
    WORDS,
) = range(19)
# The words of a peer, which follow.
(
    PROCESS,
    SOCKET,
    RING,  # the address of the notes for it, and of the number that were written
    WRITTEN,
    TAKEN,  # of the number that it has taken
    ASLEEP,  # and of whether it sleeps
    LENT,  # of how often it was lent memory of each block
    EXCHANGE,  # the number of the exchange
    THEIR_RING,  # the address of its notes for this process
    OWN_TAKEN,  # of the number that were taken, of the turns of the last ones, and of how often memory was read
    LAST_TAKEN,
    OWN_READ,
    BLOCK_KNOWN,  # its block that is mapped: number, address and bytes
    BLOCK_AT,
    BLOCK_BYTES,
    INDEX,  # which of the pieces is its own, and which of its notes was found
    FOUND,
    PEER,
) = range(18)
# The words of a member, which follow those of all peers.
(
    FROM,  # the address of the word with its address, and of that with its result's
    INTO,
    LENGTH,  # bytes of a piece
    STRIDE,  # from the piece for one rank to that for the next; 0 if all are sent the same
    MEMBER,
) = range(5)


def begin_kernel() -> Kernel:
    """Return the kernel that writes a note for each peer."""
    return compile_kernel("begin_exchange", inspect.getsource(_begin_factory), _begin_factory)


def sum_kernel(dtype: str) -> Kernel:
    """Return the kernel that waits briefly for the peers' notes, and adds up the pieces of each member."""
    content = inspect.getsource(_end_factory) + inspect.getsource(_sum_factory) + dtype
    return compile_kernel(f"end_sum_{dtype}", content, lambda: _end_factory(_sum_factory(dtype)))


def join_kernel() -> Kernel:
    """Return the kernel that waits briefly for the peers' notes, and joins the pieces of each member."""
    content = inspect.getsource(_end_factory) + inspect.getsource(_join_factory)
    return compile_kernel("end_join", content, lambda: _end_factory(_join_factory()))


def _modules() -> Any:
    return (import_module(f"opstage.interpreters.native.{name}") for name in ("memory", "shared", "access"))


def _words_factory() -> Any:
    """Return functions of the address of the arguments: the words of a peer, and of a member."""
    memory, *_ = _modules()
    int64s, address = memory.int64s, np.uint64

    def peer(arguments, i):
        return int64s(arguments + address(8 * (WORDS + PEER * i)), PEER)

    def member(arguments, m):
        peers = int64s(arguments, WORDS)[PEERS]
        return int64s(arguments + address(8 * (WORDS + PEER * peers + MEMBER * m)), MEMBER)

    return peer, member


def _begin_factory() -> Any:
    memory, shared, _ = _modules()
    int64s, load, store, address = memory.int64s, shared.load, shared.store, np.uint64
    (peer, member), send, copy = _words_factory(), memory.send_byte, memory.copy_bytes

    def kernel(lo, hi, worker, arguments):
        w = int64s(arguments, WORDS)
        w[DONE] = 0
        able = int64s(w[OPEN], 1)[0] != 0
        size, count, members = w[SIZE], w[PEERS], w[MEMBERS]
        block = int64s(w[OWN_BLOCK], 3)
        inside = size <= INLINE
        for m in range(0 if inside else members):
            q = member(arguments, m)
            at = int64s(q[FROM], 1)[0]
            end = at + q[LENGTH] + q[STRIDE] * count
            able = able and block[0] != 0 and block[1] <= at and end <= block[1] + block[2]
        for i in range(count):
            p = peer(arguments, i)
            able = able and int64s(p[WRITTEN], 1)[0] - load(address(p[TAKEN])) < NOTES
        if able:
            name = int64s(w[CALLED], NAME // 8)
            for i in range(count):
                p = peer(arguments, i)
                numbers, written = int64s(w[COUNTS], 1 << 40), int64s(p[WRITTEN], 1)
                numbers[p[PROCESS]] += 1
                p[EXCHANGE] = numbers[p[PROCESS]]
                place = p[RING] + NOTE * (written[0] % NOTES)
                note = int64s(place, NOTE // 8)
                note[NUMBER], note[NBYTES], note[PIECES] = p[EXCHANGE], size, members
                note[BLOCK] = 0 if inside else block[0]
                for j in range(NAME // 8):
                    note[NAMED + j] = name[j]
                to = place + INLINE_AT
                for m in range(members):
                    q = member(arguments, m)
                    at = int64s(q[FROM], 1)[0] + q[STRIDE] * p[INDEX]
                    if inside:
                        copy(address(w[COPY]), to, at, q[LENGTH])
                        to += q[LENGTH]
                    else:
                        piece = int64s(to, 2)
                        piece[0], piece[1] = at - block[1], q[LENGTH]
                        to += 16
                if not inside:
                    lent = int64s(p[LENT], BLOCKS)
                    lent[block[0] % BLOCKS] += 1
                written[0] += 1
                store(address(place), written[0])
                if load(address(p[ASLEEP])) != 0:
                    send(address(w[SEND]), p[SOCKET])
            sent = int64s(w[SENT], 1)
            sent[0] += size * count
            w[DONE] = 1

    return kernel


def _take_factory() -> Any:
    """Return the function that takes a note of a ring, given its turn from 0 on, and the addresses of the number of
    those that were taken together with all before them, and of the turns of the last ones."""
    memory, shared, _ = _modules()
    int64s, load, store, address = memory.int64s, shared.load, shared.store, np.uint64

    def take(turn, number, last):
        taken, turns = load(address(number)), int64s(last, NOTES)
        turns[turn % NOTES] = turn + 1
        while turns[taken % NOTES] == taken + 1:
            taken += 1
        store(address(number), taken)

    return take


def _sum_factory(dtype: str) -> Any:
    memory, _, access = _modules()
    int64s, get, put = memory.int64s, access.load(dtype, "addends"), access.store(dtype, "addends")
    bytes_of_one, registers = np.dtype(dtype).itemsize, import_module("opstage.interpreters.native.registers")
    vector = registers.registers(dtype)
    wide, lanes, fetch, add, stream = registers.BYTES, vector.lanes, vector.load, vector.add, vector.stream

    def add_up(w, out, length):
        """Write the sum of the pieces."""
        vectors, pairs, sums, count = int64s(w[VECTORS], 1 << 20), int64s(w[ADDITIONS], 1 << 20), w[SUMS], w[PEERS]
        numbers, first = length // bytes_of_one, 0
        if sums == 1 and length >= MUCH and out % wide == 0:
            a, b, vectors_of_it = vectors[pairs[0]], vectors[pairs[1]], numbers // lanes
            for j in range(vectors_of_it):
                stream(out + wide * j, add(fetch(a + wide * j), fetch(b + wide * j)))
            first = vectors_of_it * lanes
        while first < numbers:
            some, start = min(CHUNK, numbers - first), first * bytes_of_one
            for i in range(sums):
                left, right = pairs[2 * i], pairs[2 * i + 1]
                a = vectors[left] + (start if left <= count else 0)
                b = vectors[right] + (start if right <= count else 0)
                to = out + start if i == sums - 1 else vectors[count + 1 + i]
                for j in range(some):
                    put(to, j, get(a, j) + get(b, j))
            first += CHUNK

    return add_up


def _join_factory() -> Any:
    memory, *_ = _modules()
    int64s, copy, address = memory.int64s, memory.copy_bytes, np.uint64

    def join(w, out, length):
        """Write the pieces one after the other."""
        vectors = int64s(w[VECTORS], 1 << 20)
        for i in range(w[PEERS] + 1):
            copy(address(w[COPY]), out + length * i, vectors[i], length)

    return join


def _end_factory(combine: Any) -> Any:
    """Return the kernel that combines the pieces of each member by `combine(words, address of the result, bytes)`."""
    memory, shared, _ = _modules()
    int64s, load, store, time, address = memory.int64s, shared.load, shared.store, shared.time_by, np.uint64
    (peer, member), take, send = _words_factory(), _take_factory(), memory.send_byte

    def sought(p):
        """Return the turn of the note of the exchange; -1 while it may come, -2 if a later one has come without it."""
        turn, found = load(address(p[OWN_TAKEN])), -1
        place = p[THEIR_RING] + NOTE * (turn % NOTES)
        while found == -1 and load(address(place)) == turn + 1:
            number = int64s(place, NOTE // 8)[NUMBER]
            if number >= p[EXCHANGE]:
                found = turn if number == p[EXCHANGE] else -2
            turn += 1
            place = p[THEIR_RING] + NOTE * (turn % NOTES)
        return found

    def kernel(lo, hi, worker, arguments):
        w = int64s(arguments, WORDS)
        w[DONE] = 0
        able = int64s(w[OPEN], 1)[0] != 0
        size, count, members = w[SIZE], w[PEERS], w[MEMBERS]
        name = int64s(w[CALLED], NAME // 8)
        began, moment = 0, 0
        for i in range(count if able else 0):
            p = peer(arguments, i)
            turn = sought(p)
            while able and turn == -1:
                moment = time(address(w[CLOCK]), 1)
                if began == 0:
                    began = moment
                able = moment < began + w[PATIENCE]
                turn = sought(p)
            able = able and turn >= 0
            if able:
                p[FOUND] = p[THEIR_RING] + NOTE * (turn % NOTES)
                note = int64s(p[FOUND], NOTE // 8)
                able = note[NBYTES] == size and note[PIECES] == members
                for j in range(NAME // 8):
                    able = able and note[NAMED + j] == name[j]
                if note[BLOCK] != 0:
                    able = able and note[BLOCK] == p[BLOCK_KNOWN]
                    for m in range(members if able else 0):
                        piece, q = int64s(p[FOUND] + INLINE_AT + 16 * m, 2), member(arguments, m)
                        able = able and piece[1] == q[LENGTH] and piece[0] + piece[1] <= p[BLOCK_BYTES]
        waited = int64s(w[WAITED], 1)
        waited[0] += moment - began
        if able:
            vectors, start = int64s(w[VECTORS], 1 << 20), 0
            for m in range(members):
                q = member(arguments, m)
                vectors[w[OWN]] = int64s(q[FROM], 1)[0] + q[STRIDE] * w[OWN]
                for i in range(count):
                    p = peer(arguments, i)
                    within = p[FOUND] + INLINE_AT
                    inside = int64s(p[FOUND], NOTE // 8)[BLOCK] == 0
                    vectors[p[INDEX]] = within + start if inside else p[BLOCK_AT] + int64s(within + 16 * m, 2)[0]
                combine(w, int64s(q[INTO], 1)[0], q[LENGTH])
                start += q[LENGTH]
            for i in range(count):
                p = peer(arguments, i)
                note = int64s(p[FOUND], NOTE // 8)
                if note[BLOCK] != 0:
                    read = address(p[OWN_READ] + 8 * (note[BLOCK] % BLOCKS))
                    store(read, load(read) + 1)
                take(note[TURN] - 1, p[OWN_TAKEN], p[LAST_TAKEN])
                if load(address(p[ASLEEP])) != 0:
                    send(address(w[SEND]), p[SOCKET])
            w[DONE] = 1

    return kernel


def _peek_factory() -> Any:
    memory, shared, access = _modules()
    int64s, load, address = memory.int64s, shared.load, np.uint64
    take, get, put = _take_factory(), access.load("uint8"), access.store("uint8", access.written(0))

    def kernel(lo, hi, worker, arguments):
        """Take the next note of a ring: given its address, what `take` is given, and room."""
        w = int64s(arguments, 5)
        taken = load(address(w[1]))
        place = w[0] + NOTE * (taken % NOTES)
        w[4] = 0
        if load(address(place)) == taken + 1:
            for j in range(NOTE):
                put(w[3], j, get(place, j))
            take(taken, w[1], w[2])
            w[4] = 1

    return kernel


def _write_factory() -> Any:
    memory, shared, _ = _modules()
    int64s, store, address = memory.int64s, shared.store, np.uint64

    def kernel(lo, hi, worker, arguments):
        """Write a number, given its address: no later access of this thread is earlier for others."""
        w = int64s(arguments, 2)
        store(address(w[0]), w[1])

    return kernel


def peek_kernel() -> Kernel:
    """Return the kernel that takes a note from a ring."""
    return compile_kernel("take_note", inspect.getsource(_peek_factory), _peek_factory)


def write_kernel() -> Kernel:
    """Return the kernel that writes a number which other processes read."""
    return compile_kernel("write_shared", inspect.getsource(_write_factory), _write_factory)


@cache
def callable_of(kernel: Kernel) -> Callable[[int], None]:
    """Return a kernel as a function of the address of its arguments."""
    integer = ctypes.c_int64
    return partial(ctypes.CFUNCTYPE(None, integer, integer, integer, ctypes.c_uint64)(kernel.address), 0, 1, 0)
