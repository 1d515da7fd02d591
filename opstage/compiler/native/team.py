"""The team: threads that wait for jobs, and a shared board in memory that holds the job.

A job is a kernel with its tasks in as many parts as there are workers. Any thread may claim a part, its own first: so
the owner of the job never waits for threads that have not started, and if they get no core it runs all parts itself.
The parts do not depend on which thread runs them, so neither do the result bits.

Threads wait by spinning briefly and then sleeping. A member that was preempted, in a part or while waiting, rests for a
while, longer each time, and the others run its parts: a preemption costs the waiting threads a time slice of
milliseconds, while a job may take microseconds.
"""

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

# mypy: disable-error-code="no-untyped-def"


# Offsets on the board, in bytes; data written by different threads are on separate cache lines.
LINE = 64
OWNED, MARK, DONE, WAITING, ASLEEP, JOB, FIXED = range(0, 7 * LINE, LINE)
"""Whether a thread owns the team; the number of the last job; how many of its parts members have finished; whether the
owner sleeps until they are finished; how many members sleep; the job; constants."""
COUNT, CLOCK, NANOSLEEP, SYSCALL, FUTEX = range(FIXED, FIXED + 40, 8)
CLAIMS = FIXED + LINE
"""A cache line for each part: the number of the last job for which it was claimed."""

SPIN, JOIN = 1_000_000, 150_000  # nanoseconds of spinning: of a member for a job, and of the owner for members
LOST = 80_000  # nanoseconds without a core that mean that another has it; less than JOIN, for that may be who waits
REST_FACTOR, LONGEST_REST = 10, 320_000_000  # for how many times as long a member then rests; nanoseconds at most
_FUTEX_CALLS = {"x86_64": 202, "aarch64": 98}  # the number of futex(2), by processor


def _member_factory() -> Any:
    intrinsics = import_module("opstage.compiler.native.intrinsics")
    address, int64s, be_member = import_module("numpy").uint64, intrinsics.int64s, intrinsics.be_member

    def kernel(lo, hi, worker, arguments):
        """Start a thread, with the addresses of its number and of the board."""
        given = int64s(address(lo), 2)
        be_member(address(given[1]), given[0])

    return kernel


def has_team() -> bool:
    """Whether this system supports a team."""
    return sys.platform == "linux" and platform.machine() in _FUTEX_CALLS and ctypes.sizeof(ctypes.c_void_p) == 8


@cache
def board(workers: int) -> int:
    """Start `workers` - 1 threads and return the address of their board, which is never freed."""
    kernel = compile_kernel("member", inspect.getsource(_member_factory), _member_factory)
    library = ctypes.CDLL(None)
    size = CLAIMS + LINE * workers
    at = _immortal(size + 16 * workers)
    words = (ctypes.c_int64 * (size // 8)).from_address(at)
    for place, value in (
        (COUNT, workers),
        (CLOCK, library_address("clock_gettime")),
        (NANOSLEEP, library_address("nanosleep")),
        (SYSCALL, library_address("syscall")),
        (FUTEX, _FUTEX_CALLS[platform.machine()]),
    ):
        words[place // 8] = value
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for Python's threads
    try:
        for member in range(1, workers):
            given = (ctypes.c_int64 * 2).from_address(at + size + 16 * member)
            given[0], given[1] = member, at
            thread = ctypes.c_ulong()
            create = library.pthread_create
            create.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
            if create(ctypes.byref(thread), None, kernel.address, ctypes.addressof(given)) != 0:
                break  # no more threads are available: the others run the parts
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return at


@cache
def library_address(name: str) -> int:
    """Return the address of a function of the C library."""
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


def _immortal(size: int) -> int:
    """Return the address of zeroed memory that is never freed, since members may read it until the process ends."""
    allocate = ctypes.CDLL(None).mmap
    allocate.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    allocate.restype = ctypes.c_void_p
    at: int = allocate(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if at == ctypes.c_void_p(-1).value:
        raise MemoryError("the system gives no memory for the board of the threads")
    return at
