"""Notes between processes of one host in memory that they share, written and read by machine code.

A process has a board, which only it writes and the others read. On it is a ring of notes for each other process, how
many notes it has taken of theirs, and how much of their memory it has read. A note is valid once its first word has the
number that is its turn; so neither side needs a lock, and neither makes a system call unless the other one sleeps.

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
TURN, NUMBER, BLOCK, OFFSET, NBYTES, NAMED = range(6)
"""The words of a note: whose turn it is, the number of its exchange, where its vector stands and its bytes, and from
there on the name; then the vector itself if no block is named."""
INLINE_AT = 8 * NAMED + NAME
NOTE = 512
INLINE = NOTE - INLINE_AT
"""Bytes up to which a vector is within a note."""
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

# The words of an exchange of one vector with each of several peers.
(
    OPEN,  # the address of a word that is 0 where notes must not be used
    COUNTS,  # of the number of exchanges with each process
    SENT,  # of the bytes that were sent in all, and of the nanoseconds that were waited
    WAITED,
    CALLED,  # of the name
    SIZE,  # bytes of the vector
    FROM,  # the address of the word with the vector's address, and of that with the sum's
    INTO,
    OWN_BLOCK,  # of three words about the block in which the vector stands: number, address and bytes; or zeros
    SEND,  # of the C library's send and clock_gettime
    CLOCK,
    PATIENCE,  # the nanoseconds to wait
    VECTORS,  # of the addends' addresses, in the order of ranks, and of those of CHUNK numbers of each sum
    ADDITIONS,  # of pairs of these: what is added up one after the other
    SUMS,  # how many there are
    OWN,  # which addend is that of this process
    PEERS,  # how many there are
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
    OWN_TAKEN,  # of the number that were taken, and of how often memory of each block was read
    OWN_READ,
    BLOCK_KNOWN,  # its block that is mapped: number, address and bytes
    BLOCK_AT,
    BLOCK_BYTES,
    ADDEND,  # which addend is its vector, and where it was found
    FOUND,
    PEER,
) = range(17)


def begin_kernel() -> Kernel:
    """Return the kernel that writes a note for each peer."""
    return compile_kernel("begin_exchange", inspect.getsource(_begin_factory), _begin_factory)


def end_kernel(dtype: str) -> Kernel:
    """Return the kernel that waits briefly for the peers' notes, and adds up what they name."""
    return compile_kernel(f"end_exchange_{dtype}", inspect.getsource(_end_factory) + dtype, lambda: _end_factory(dtype))


def _modules() -> Any:
    return (import_module(f"opstage.interpreters.native.{name}") for name in ("memory", "shared", "access"))


def _begin_factory() -> Any:
    memory, shared, access = _modules()
    int64s, load, store, address = memory.int64s, shared.load, shared.store, np.uint64
    send, get, put = memory.send_byte, access.load("uint8"), access.store("uint8", access.written(0))

    def kernel(lo, hi, worker, arguments):
        w = int64s(arguments, WORDS)
        w[DONE] = 0
        able = int64s(w[OPEN], 1)[0] != 0
        size, at, count = w[SIZE], int64s(w[FROM], 1)[0], w[PEERS]
        block = int64s(w[OWN_BLOCK], 3)
        inside = size <= INLINE
        if not inside:
            able = able and block[0] != 0 and block[1] <= at and at + size <= block[1] + block[2]
        for i in range(count):
            p = int64s(arguments + address(8 * (WORDS + PEER * i)), PEER)
            able = able and int64s(p[WRITTEN], 1)[0] - load(address(p[TAKEN])) < NOTES
        if able:
            name = int64s(w[CALLED], NAME // 8)
            for i in range(count):
                p = int64s(arguments + address(8 * (WORDS + PEER * i)), PEER)
                numbers, written = int64s(w[COUNTS], 1 << 40), int64s(p[WRITTEN], 1)
                numbers[p[PROCESS]] += 1
                p[EXCHANGE] = numbers[p[PROCESS]]
                place = p[RING] + NOTE * (written[0] % NOTES)
                note = int64s(place, NOTE // 8)
                note[NUMBER], note[NBYTES] = p[EXCHANGE], size
                note[BLOCK] = 0 if inside else block[0]
                note[OFFSET] = 0 if inside else at - block[1]
                for j in range(NAME // 8):
                    note[NAMED + j] = name[j]
                if inside:
                    for j in range(size):
                        put(place + INLINE_AT, j, get(at, j))
                else:
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


def _end_factory(dtype: str) -> Any:
    memory, shared, access = _modules()
    int64s, load, store, time, address = memory.int64s, shared.load, shared.store, shared.time_by, np.uint64
    send, get, put = memory.send_byte, access.load(dtype, "addends"), access.store(dtype, "addends")
    bytes_of_one, registers = np.dtype(dtype).itemsize, import_module("opstage.interpreters.native.registers")
    vector = registers.registers(dtype)
    wide, lanes, fetch, add, stream = registers.BYTES, vector.lanes, vector.load, vector.add, vector.stream

    def kernel(lo, hi, worker, arguments):
        w = int64s(arguments, WORDS)
        w[DONE] = 0
        able = int64s(w[OPEN], 1)[0] != 0
        size, count = w[SIZE], w[PEERS]
        name = int64s(w[CALLED], NAME // 8)
        began, moment = 0, 0
        for i in range(count if able else 0):
            p = int64s(arguments + address(8 * (WORDS + PEER * i)), PEER)
            taken = load(address(p[OWN_TAKEN]))
            place = p[THEIR_RING] + NOTE * (taken % NOTES)
            come = load(address(place)) == taken + 1
            while able and not come:
                moment = time(address(w[CLOCK]), 1)
                if began == 0:
                    began = moment
                able = moment < began + w[PATIENCE]
                come = load(address(place)) == taken + 1
            if able:
                note = int64s(place, NOTE // 8)
                able = note[NUMBER] == p[EXCHANGE] and note[NBYTES] == size
                for j in range(NAME // 8):
                    able = able and note[NAMED + j] == name[j]
                if note[BLOCK] == 0:
                    p[FOUND] = place + INLINE_AT
                else:
                    p[FOUND] = p[BLOCK_AT] + note[OFFSET]
                    able = able and note[BLOCK] == p[BLOCK_KNOWN] and note[OFFSET] + size <= p[BLOCK_BYTES]
        waited = int64s(w[WAITED], 1)
        waited[0] += moment - began
        if able:
            vectors, pairs, sums = int64s(w[VECTORS], 1 << 20), int64s(w[ADDITIONS], 1 << 20), w[SUMS]
            vectors[w[OWN]] = int64s(w[FROM], 1)[0]
            for i in range(count):
                p = int64s(arguments + address(8 * (WORDS + PEER * i)), PEER)
                vectors[p[ADDEND]] = p[FOUND]
            out, numbers, first = int64s(w[INTO], 1)[0], size // bytes_of_one, 0
            if sums == 1 and size >= MUCH and out % wide == 0:
                a, b, vectors_of_it = vectors[pairs[0]], vectors[pairs[1]], numbers // lanes
                for j in range(vectors_of_it):
                    stream(out + wide * j, add(fetch(a + wide * j), fetch(b + wide * j)))
                first = vectors_of_it * lanes
            while first < numbers:
                length, start = min(CHUNK, numbers - first), first * bytes_of_one
                for i in range(sums):
                    left, right = pairs[2 * i], pairs[2 * i + 1]
                    a = vectors[left] + (start if left <= count else 0)
                    b = vectors[right] + (start if right <= count else 0)
                    to = out + start if i == sums - 1 else vectors[count + 1 + i]
                    for j in range(length):
                        put(to, j, get(a, j) + get(b, j))
                first += CHUNK
            for i in range(count):
                p = int64s(arguments + address(8 * (WORDS + PEER * i)), PEER)
                taken = load(address(p[OWN_TAKEN]))
                note = int64s(p[THEIR_RING] + NOTE * (taken % NOTES), NOTE // 8)
                if note[BLOCK] != 0:
                    read = address(p[OWN_READ] + 8 * (note[BLOCK] % BLOCKS))
                    store(read, load(read) + 1)
                store(address(p[OWN_TAKEN]), taken + 1)
                if load(address(p[ASLEEP])) != 0:
                    send(address(w[SEND]), p[SOCKET])
            w[DONE] = 1

    return kernel


def _peek_factory() -> Any:
    memory, shared, access = _modules()
    int64s, load, store, address = memory.int64s, shared.load, shared.store, np.uint64
    get, put = access.load("uint8"), access.store("uint8", access.written(0))

    def kernel(lo, hi, worker, arguments):
        """Copy the next note of a ring: given its address, that of the number that were taken, and room."""
        w = int64s(arguments, 4)
        taken = load(address(w[1]))
        place = w[0] + NOTE * (taken % NOTES)
        w[3] = 0
        if load(address(place)) == taken + 1:
            for j in range(NOTE):
                put(w[2], j, get(place, j))
            store(address(w[1]), taken + 1)
            w[3] = 1

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
