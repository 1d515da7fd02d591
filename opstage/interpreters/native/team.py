"""The team: threads that wait for jobs, and a board in memory on which they find them.

A job is a kernel with its tasks in as many parts as there are workers. Whoever comes first begins a part, its own
before those of others: so the thread that has the job waits for nobody who has not begun, and where the system gives
the others no core it does all parts by itself. Which parts there are does not depend on that, so neither do the bits.

Waiting is spinning for a moment and then sleep. A member that sees that it was put off its core, in the midst of a part
or while it waited, rests for a while, longer each time, and the others do its parts: to be put off costs those who wait
for it a time slice, milliseconds, where a job may take microseconds.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import ctypes
import inspect
import mmap
import platform
import signal
import sys
from functools import cache
from importlib import import_module
from typing import Any

from .compiler import compile_kernel

# The board, in bytes; what different threads write stands on lines of the cache of its own.
LINE = 64
OWNED, MARK, DONE, WAITING, ASLEEP, JOB, FIXED = range(0, 7 * LINE, LINE)
"""Whether a thread has the team; the number of the last job; how many of its parts are done by members; whether the
thread that has the job sleeps until they are; how many members sleep; the job; what never changes."""
COUNT, CLOCK, NANOSLEEP, SYSCALL, FUTEX = range(FIXED, FIXED + 40, 8)
CLAIMS = FIXED + LINE
"""A line for each part: the number of the last job of which it was begun."""

SPIN, JOIN = 1_000_000, 150_000  # nanoseconds for which a member waits for a job, and who has a job for members, awake
LOST = 80_000  # nanoseconds without a core that mean that another has it; less than JOIN, for that may be who waits
REST_FACTOR, LONGEST_REST = 10, 320_000_000  # for how many times as long a member then rests; nanoseconds at most
_FUTEX_CALLS = {"x86_64": 202, "aarch64": 98}  # the number of futex(2), by the processor


def _member_factory() -> Any:
    memory, shared = (import_module(f"opstage.interpreters.native.{name}") for name in ("memory", "shared"))
    address, int64s, be_member = import_module("numpy").uint64, memory.int64s, shared.be_member

    def kernel(lo, hi, worker, arguments):
        """As a thread begins: with the address of its number and the board's address, and nothing else."""
        given = int64s(address(lo), 2)
        be_member(address(given[1]), given[0])

    return kernel


def has_team() -> bool:
    """Whether there can be one on this system."""
    return sys.platform == "linux" and platform.machine() in _FUTEX_CALLS and ctypes.sizeof(ctypes.c_void_p) == 8


@cache
def board(workers: int) -> int:
    """The address of the board of so many workers, one less of which are started. It is never given back."""
    kernel = compile_kernel("member", inspect.getsource(_member_factory), _member_factory)
    library = ctypes.CDLL(None)
    size = CLAIMS + LINE * workers
    at = _immortal(size + 16 * workers)
    words = (ctypes.c_int64 * (size // 8)).from_address(at)
    for place, value in (
        (COUNT, workers),
        (CLOCK, _address(library.clock_gettime)),
        (NANOSLEEP, _address(library.nanosleep)),
        (SYSCALL, _address(library.syscall)),
        (FUTEX, _FUTEX_CALLS[platform.machine()]),
    ):
        words[place // 8] = value
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for Python's threads
    try:
        for member in range(1, workers):
            given = (ctypes.c_int64 * 2).from_address(at + size + 16 * member)
            given[0], given[1] = member, at
            thread = ctypes.c_ulong()
            create = library.pthread_create
            create.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
            if create(ctypes.byref(thread), None, kernel.address, ctypes.addressof(given)) != 0:
                break  # no more threads are to be had: the others do the parts
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return at


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _immortal(size: int) -> int:
    """The address of zeros that stay until the process ends, when members may still look at them."""
    allocate = ctypes.CDLL(None).mmap
    allocate.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    allocate.restype = ctypes.c_void_p
    at: int = allocate(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if at == ctypes.c_void_p(-1).value:
        raise MemoryError("the system gives no memory for the board of the threads")
    return at
