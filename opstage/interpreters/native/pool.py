"""The pool of threads, and schedules of kernels that it runs.

The pool is OpenMP's, reached by `parallel_for` of an extension module that comes with numba and needs nothing of it.
What goes through a schedule is a kernel too. So a process that finds its kernels on disk runs them without numba, which
takes 70 MB to load a function that is compiled for parallel execution.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import ctypes
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module, machinery
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from ...forks import make_lock
from ..at_once import Action
from .blas import find_blas
from .compiler import Kernel, compile_kernel, import_numba


class Step(NamedTuple):
    """A kernel with its tasks 0 … tasks, divided among the workers if `parallel`, and its arguments' words."""

    kernel: Kernel
    tasks: int
    arguments: npt.NDArray[np.uint64]
    parallel: bool = True


@final
class Schedule:
    """Steps to be run one after the other, all by one call. Memory that the arguments point to must stay alive."""

    __slots__ = ("_steps", "_table", "_words", "action")

    def __init__(self, steps: Sequence[Step]):
        self._steps = tuple(steps)  # their kernels and arguments are only pointed to below
        self._table = np.array(
            [
                (step.kernel.address, step.tasks if step.parallel else -step.tasks, step.arguments.ctypes.data)
                for step in steps
            ],
            np.int64,
        )
        self._words = np.array([self._table.ctypes.data, *_fixed_words(), *[0] * 4, _alone.ctypes.data], np.int64)
        self.action: Action = partial(_drive(), 0, len(self._steps), 0, self._words.ctypes.data)

    def run(self) -> None:
        """Do all steps. Python's lock is released meanwhile."""
        self.action()


def call(kernel: Kernel, tasks: int, arguments: npt.NDArray[np.uint64]) -> None:
    """Do one step now."""
    Schedule((Step(kernel, tasks, arguments),)).run()


@cache
def thread_switches() -> tuple[int, int]:
    """The addresses by which OpenBLAS is told to use one thread while a schedule runs, and as many as before after."""
    blas = find_blas()
    return (blas.set_threads, blas.get_threads) if blas is not None else (0, 0)


# What goes through a schedule ----------------------------------------------------------------------------------------

_WORDS = 13
"""The words of a schedule.

0 its table: of each step the kernel, the tasks, negative where they are not divided, and the arguments;
1 … 3 set_threads, get_threads, parallel_for; 4 the kernel of `_part`; 5 the numbers of the workers, 6 how many, 7 how
many bytes a number has; 8 … 11 what `_part` is given: kernel, tasks, arguments, workers; 12 the address of `_alone`
"""
_NUMBERS, _COUNT, _STRIDE, _GIVEN = (np.uint64(8 * word) for word in (5, 6, 7, 8))  # bytes; unsigned, as addresses are


def _drive_factory() -> Any:
    memory = import_module("opstage.interpreters.native.memory")
    int64s, call_kernel, call_team = memory.int64s, memory.call_kernel, memory.call_team
    call_number, ask_number = memory.call_number, memory.ask_number
    words, numbers, count, stride, given = _WORDS, _NUMBERS, _COUNT, _STRIDE, _GIVEN

    def kernel(lo, hi, worker, arguments):
        w = int64s(arguments, words)
        table = int64s(w[0], 3 * hi)
        before = 1
        if w[1] != 0:
            before = ask_number(w[2])
            if before != 1:
                call_number(w[1], 1)
        for step in range(lo, hi):
            function, tasks, own = table[3 * step], table[3 * step + 1], table[3 * step + 2]
            if tasks < 0:
                call_kernel(function, 0, -tasks, 0, own)
            elif w[6] == 1:
                call_kernel(function, 0, tasks, 0, own)
            elif int64s(w[12], 1)[0] != 0:
                for i in range(w[6]):
                    call_kernel(function, tasks * i // w[6], tasks * (i + 1) // w[6], i, own)
            else:
                w[8], w[9], w[10], w[11] = function, tasks, own, w[6]
                call_team(
                    w[3], w[4], arguments + numbers, arguments + count, arguments + stride, arguments + given, w[6]
                )
        if before != 1:
            call_number(w[1], before)

    return kernel


def _part_factory() -> Any:
    memory = import_module("opstage.interpreters.native.memory")
    int64s, call_kernel = memory.int64s, memory.call_kernel

    def kernel(arrays, counts, strides, given):
        """As `parallel_for` calls it: with pointers to an array, its length and its stride, for one worker or more."""
        w = int64s(given, 4)
        count = int64s(counts, 1)[0]
        workers = int64s(int64s(arrays, 1)[0], count)
        for i in range(count):
            worker = workers[i]
            call_kernel(w[0], w[1] * worker // w[3], w[1] * (worker + 1) // w[3], worker, w[2])

    return kernel


@cache
def _drive() -> Callable[[int, int, int, int], None]:
    kernel = compile_kernel("drive", inspect.getsource(_drive_factory), _drive_factory)
    integer = ctypes.c_int64
    return ctypes.CFUNCTYPE(None, integer, integer, integer, ctypes.c_uint64)(kernel.address)


@cache
def _fixed_words() -> tuple[int, ...]:
    """Words 1 … 7."""
    part = compile_kernel("part", inspect.getsource(_part_factory), _part_factory)
    numbers = _worker_numbers()
    return *thread_switches(), _parallel_for(), part.address, numbers.ctypes.data, len(numbers), numbers.itemsize


@cache
def _worker_numbers() -> npt.NDArray[np.int64]:
    return np.arange(workers())


# The threads ---------------------------------------------------------------------------------------------------------

_lock = make_lock()


_alone = np.zeros(1, np.int64)
"""Not 0 in a process whose threads stayed behind in its parent: what the workers do is done one after the other."""


def is_alone() -> bool:
    """Whether this process was forked from one that had started its threads. OpenMP cannot start them again."""
    return bool(_alone[0])


def _in_child() -> None:
    parallel: Any = sys.modules.get("numba.np.ufunc.parallel")
    if _parallel_for.cache_info().currsize or (parallel is not None and getattr(parallel, "_is_initialized", True)):
        _alone[0] = 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@cache
def workers() -> int:
    """How many threads the pool has: as many as numba would, and asked of it only where it has been imported."""
    if "numba" in sys.modules:
        numba = import_numba()
        choose_layer(numba)
        return int(numba.get_num_threads())
    try:
        return max(1, int(os.environ["NUMBA_NUM_THREADS"]))
    except (KeyError, ValueError):
        known = getattr(os, "sched_getaffinity", None)
        return max(1, len(known(0)) if known is not None else os.cpu_count() or 1)


@cache
def _parallel_for() -> int:
    """The address of `parallel_for`, its threads started."""
    count = workers()
    with _lock:
        chosen = os.environ.get("NUMBA_THREADING_LAYER") not in (None, "default", "omp")
        layer = None if chosen or "numba" in sys.modules else _openmp()
        if layer is not None:
            ctypes.CFUNCTYPE(None, ctypes.c_int)(layer.launch_threads)(count)
        else:
            numba = import_numba()
            choose_layer(numba)
            numba.get_num_threads()  # starts them
            modules = {"omp": "omppool", "tbb": "tbbpool", "workqueue": "workqueue"}
            layer = import_module(f"numba.np.ufunc.{modules[numba.threading_layer()]}")
    return int(layer.parallel_for)


def _openmp() -> Any:
    """numba's module for OpenMP, without numba; None where there is none."""
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


def choose_layer(numba: Any) -> None:
    """OpenMP where there is one: it starts a step in 1 µs, numba's own work queue in 80."""
    if numba.config.THREADING_LAYER != "default":
        return  # the user's choice
    try:
        import_module("numba.np.ufunc.omppool")
    except ImportError:
        return
    numba.config.THREADING_LAYER = "omp"
