"""The pool: threads that run kernels, and schedules of steps that one call runs.

On Linux the threads are a *team*: they wait for jobs at a shared board in memory. A job is a kernel with its tasks in
as many parts as there are workers. Any thread may claim a part, its own first: so the owner of the job never waits for
threads that have not started, and if they get no core it runs all parts itself. The parts do not depend on which
thread runs them, so neither do the result bits. Elsewhere numba's threads run the parts.

Threads of a team wait by spinning briefly and then sleeping. A member that was preempted, in a part or while waiting,
rests for a while, longer each time, and the others run its parts: a preemption costs the waiting threads a time slice
of milliseconds, while a job may take microseconds. The code that the threads run is in `intrinsics`."""

from __future__ import annotations

import ctypes
import inspect
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module, machinery
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from ...ops.host_arrays import address_of
from ...threads import make_lock, usable_cores
from ...transforms.base_program import Action
from .blas import find_blas
from .compiler import Kernel, compile_kernel, import_numba, library_function, map_memory

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


# The pool -------------------------------------------------------------------------------------------------------------


class KernelCall(NamedTuple):
    """A kernel with its tasks 0 … tasks, divided among the workers if `parallel`, and its argument words."""

    kernel: Kernel
    tasks: int
    arguments: npt.NDArray[np.uint64]
    parallel: bool = True


@final
class KernelSequence:
    """Steps to run in order by a single call. Memory that the arguments point to must stay alive."""

    __slots__ = ("_steps", "_table", "_words", "action")

    def __init__(self, steps: Sequence[KernelCall]):
        self._steps = tuple(steps)  # the table only points to their kernels and arguments
        self._table = np.array(
            [
                (step.kernel.address, step.tasks if step.parallel else -step.tasks, address_of(step.arguments))
                for step in steps
            ],
            np.int64,
        )
        self._words = schedule_words()
        self._words[_TABLE] = address_of(self._table)
        self.action: Action = partial(_drive(), 0, len(self._steps), 0, address_of(self._words))

    def run(self) -> None:
        """Run all steps, without the GIL."""
        self.action()


# The kernel that runs a schedule -------------------------------------------------------------------------------------

_TABLE, _SET_THREADS, _GET_THREADS, _BOARD, _ALONE, _PARALLEL_FOR, _PART, _NUMBERS, _COUNT, _STRIDE, _GIVEN = range(11)
_WORDS = _GIVEN + 4
"""The words of a schedule.

The address of its table: for each step the kernel, the tasks (negative if they are not divided) and the arguments. The
functions of the BLAS that set and get its threads. The board of the team, or 0. The address of `_alone`. Without a
team, numba's parallel_for, the kernel of `_part`, and the workers' numbers. How many workers there are. The bytes of a
number. What `_part` receives: kernel, tasks, arguments, workers.
"""


def _drive_factory() -> Any:
    from .intrinsics import ask_number, call_kernel, call_number, call_team, do_job, give, int64s, take

    address, words, given = np.uint64, _WORDS, _GIVEN
    numbers_at, count_at, stride_at, given_at = (address(8 * i) for i in (_NUMBERS, _COUNT, _STRIDE, _GIVEN))

    def kernel(lo, hi, worker, arguments):
        w = int64s(arguments, words)
        table_at, set_threads, get_threads, board_at, alone, parallel_for, part, _, count = w
        table, board = int64s(table_at, 3 * hi), address(board_at)
        before = 1
        if set_threads != 0:
            before = ask_number(get_threads)
            if before != 1:
                call_number(set_threads, 1)
        is_alone = count == 1 or int64s(alone, 1)[0] != 0
        has_team = board_at != 0 and not is_alone and take(board)
        for step in range(lo, hi):
            function, tasks, own = table[3 * step], table[3 * step + 1], table[3 * step + 2]
            if tasks < 0:
                call_kernel(function, 0, -tasks, 0, own)
            elif has_team:
                do_job(board, count, function, tasks, own)
            elif is_alone or board_at != 0:
                for i in range(count):
                    call_kernel(function, tasks * i // count, tasks * (i + 1) // count, i, own)
            else:
                w[given], w[given + 1], w[given + 2], w[given + 3] = function, tasks, own, count
                at = arguments + numbers_at, arguments + count_at, arguments + stride_at, arguments + given_at
                call_team(parallel_for, part, at[0], at[1], at[2], at[3], count)
        if has_team:
            give(board)
        if before != 1:
            call_number(set_threads, before)

    return kernel


def _part_factory() -> Any:
    from .intrinsics import call_kernel, int64s

    def kernel(arrays, counts, strides, given):
        """Run a part, called by `parallel_for` with pointers to an array, its length and its stride, for one or more
        workers."""
        function, tasks, own, team = int64s(given, 4)
        count = int64s(counts, 1)[0]
        workers = int64s(int64s(arrays, 1)[0], count)
        for i in range(count):
            worker = workers[i]
            call_kernel(function, tasks * worker // team, tasks * (worker + 1) // team, worker, own)

    return kernel


@cache
def _drive() -> Callable[[int, int, int, int], None]:
    """Return the kernel whose tasks are the steps of a schedule; its arguments are the schedule's words."""
    kernel = compile_kernel("drive", inspect.getsource(_drive_factory), _drive_factory)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3, ctypes.c_uint64)(kernel.address)


def schedule_words() -> npt.NDArray[np.int64]:
    """Return the words of a schedule, without its table."""
    return _fixed_words().copy()


@cache
def _fixed_words() -> npt.NDArray[np.int64]:
    made = np.zeros(_WORDS, np.int64)
    blas = find_blas()
    if blas is not None:
        made[_SET_THREADS], made[_GET_THREADS] = blas.set_threads, blas.get_threads
    made[_ALONE], made[_COUNT] = _alone.ctypes.data, workers()
    if workers() > 1:
        with _lock:
            made[_BOARD] = _board()
        if not made[_BOARD]:
            part = compile_kernel("part", inspect.getsource(_part_factory), _part_factory)
            made[_PARALLEL_FOR], made[_PART] = parallel_for(workers()), part.address
            made[_NUMBERS], made[_STRIDE] = _numbers().ctypes.data, _numbers().itemsize
    return made


@cache
def _board() -> int:
    return board(workers()) if has_team() else 0


@cache
def _numbers() -> npt.NDArray[np.int64]:
    return np.arange(workers())


# The threads ---------------------------------------------------------------------------------------------------------

_lock = make_lock()


_alone = np.zeros(1, np.int64)
"""Nonzero in a forked process without the pool's threads: steps then run on one thread."""


def _in_child() -> None:
    if _board.cache_info().currsize or (has_started() and not has_team()):
        _alone[0] = 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@cache
def workers() -> int:
    """Return the pool's number of threads: the same as numba's, read from numba only if it is imported."""
    if "numba" in sys.modules:
        numba = import_numba()
        return int(numba.get_num_threads() if has_started() else numba.config.NUMBA_NUM_THREADS)
    try:
        return max(1, int(os.environ["NUMBA_NUM_THREADS"]))
    except (KeyError, ValueError):
        return usable_cores()


# The team -------------------------------------------------------------------------------------------------------------


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
    from .intrinsics import be_member, int64s

    address = np.uint64

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
    at = map_memory(size + 16 * workers)  # never freed, since members may read it until the process ends
    words = (ctypes.c_int64 * (size // 8)).from_address(at)
    for place, value in (
        (COUNT, workers),
        (CLOCK, library_function("clock_gettime")),
        (NANOSLEEP, library_function("nanosleep")),
        (SYSCALL, library_function("syscall")),
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


# Numba's threads ------------------------------------------------------------------------------------------------------

# The OpenMP module of numba has no dependencies, so it is loaded without importing numba, which would take 70 MB to
# load a parallel function.

_openmp_lock = make_lock()


@cache
def parallel_for(workers: int) -> int:
    """Start the threads and return the address of `parallel_for`."""
    with _openmp_lock:
        chosen = os.environ.get("NUMBA_THREADING_LAYER") not in (None, "default", "omp")
        layer = None if chosen or "numba" in sys.modules else _openmp()
        if layer is not None:
            ctypes.CFUNCTYPE(None, ctypes.c_int)(layer.launch_threads)(workers)
        else:
            numba = import_numba()
            _choose_layer(numba)
            numba.get_num_threads()  # starts them
            modules = {"omp": "omppool", "tbb": "tbbpool", "workqueue": "workqueue"}
            layer = import_module(f"numba.np.ufunc.{modules[numba.threading_layer()]}")
    return int(layer.parallel_for)


def has_started() -> bool:
    """Whether threads were started, here or by another user of numba."""
    parallel: Any = sys.modules.get("numba.np.ufunc.parallel")
    return bool(parallel_for.cache_info().currsize) or (
        parallel is not None and getattr(parallel, "_is_initialized", True)
    )


def _openmp() -> Any:
    """Load numba's OpenMP module without numba; None if it is missing."""
    found = find_spec("numba")
    for folder in (found.submodule_search_locations if found is not None else None) or ():
        for suffix in machinery.EXTENSION_SUFFIXES:
            path = Path(folder, "np", "ufunc", f"omppool{suffix}")
            spec = spec_from_file_location("omppool", path) if path.exists() else None
            if spec is not None and spec.loader is not None:
                try:
                    module = module_from_spec(spec)
                    spec.loader.exec_module(module)
                except ImportError:
                    continue
                return module
    return None


def _choose_layer(numba: Any) -> None:
    """Choose OpenMP if available: it starts a step in 1 µs, numba's own work queue in 80."""
    if numba.config.THREADING_LAYER != "default":
        return  # the user's choice
    try:
        import_module("numba.np.ufunc.omppool")
    except ImportError:
        return
    numba.config.THREADING_LAYER = "omp"
