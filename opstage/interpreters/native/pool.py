"""The pool of threads, and schedules of kernels that it runs."""

# mypy: disable-error-code="no-untyped-call, untyped-decorator"
from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from .blas import find_blas
from .compiler import Kernel
from .folder import kept


class Step(NamedTuple):
    """A kernel with its tasks 0 … tasks, divided among the workers if `parallel`, and its arguments' words."""

    kernel: Kernel
    tasks: int
    arguments: npt.NDArray[np.uint64]
    parallel: bool = True


@final
class Schedule:
    """Steps to be run one after the other, all by one call. Memory that the arguments point to must stay alive."""

    __slots__ = ("_steps", "_functions", "_counts", "_arguments")

    def __init__(self, steps: Sequence[Step]):
        self._steps = tuple(steps)  # their kernels and arguments are only pointed to below
        self._functions = np.array([step.kernel.address for step in steps], np.uint64)
        self._counts = np.array([step.tasks if step.parallel else -step.tasks for step in steps], np.int64)
        self._arguments = np.array([step.arguments.ctypes.data for step in steps], np.uint64)

    def run(self) -> None:
        """Do all steps. Python's lock is released meanwhile."""
        _drive()(self._functions, self._counts, self._arguments, workers(), *thread_switches())


def call(kernel: Kernel, tasks: int, arguments: npt.NDArray[np.uint64]) -> None:
    """Do one step now."""
    Schedule((Step(kernel, tasks, arguments),)).run()


@cache
def workers() -> int:
    """How many threads the pool has."""
    numba = import_module("numba")
    return int(numba.get_num_threads())


@cache
def thread_switches() -> tuple[int, int]:
    """The addresses by which OpenBLAS is told to use one thread while a schedule runs, and as many as before after."""
    blas = find_blas()
    return (blas.set_threads, blas.get_threads) if blas is not None else (0, 0)


_lock = threading.Lock()


@cache
def _drive() -> Any:
    with _lock:
        numba = import_module("numba")
        choose_layer(numba)
        memory = import_module("opstage.interpreters.native.memory")
        call_kernel, call_number, ask_number = memory.call_kernel, memory.call_number, memory.ask_number
        prange = numba.prange

        def drive(functions, counts, arguments, threads, set_threads, get_threads):  # type: ignore[no-untyped-def]
            before = 0
            if set_threads != 0:
                before = ask_number(get_threads)
                if before != 1:
                    call_number(set_threads, 1)
            for step in range(len(functions)):
                function, count, words = functions[step], counts[step], arguments[step]
                if count < 0:
                    call_kernel(function, 0, -count, 0, words)
                else:
                    for worker in prange(threads):
                        call_kernel(function, count * worker // threads, count * (worker + 1) // threads, worker, words)
            if set_threads != 0 and before != 1:
                call_number(set_threads, before)

        signature = "void(uint64[::1], int64[::1], uint64[::1], int64, uint64, uint64)"
        return kept(lambda keep: numba.njit(signature, parallel=True, nogil=True, cache=keep)(drive))


def choose_layer(numba: Any) -> None:
    """OpenMP where there is one: it starts a step in 1 µs, numba's own work queue in 80."""
    if numba.config.THREADING_LAYER != "default":
        return  # the user's choice
    try:
        import_module("numba.np.ufunc.omppool")
    except ImportError:
        return
    numba.config.THREADING_LAYER = "omp"
