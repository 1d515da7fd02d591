"""Simulated CUDA threads as greenlets: one switch per barrier, where numba's simulator has an OS thread each.

It also supports warp shuffles and votes, which numba's lacks, and reports threads that wait at different barriers.

A warp runs up to the next barrier of its block before another warp runs: the first warp before the second in every
other block, and after it in the rest. So a race between warps gives wrong results here, as it may on a GPU. A scheduler
that synchronised all warps at every shuffle would hide most races. Unwritten memory holds nan.

Most threads never wait, and many do nothing, so a greenlet runs threads in order until one waits: that thread keeps the
greenlet, and the next gets another.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import cache
from types import CodeType
from typing import Any, final

import numba.cuda
import numpy as np
from greenlet import getcurrent, greenlet
from numba.cuda.simulator import kernelapi
from typing_extensions import override

WARP = 32
_BLOCK = "syncthreads"


class DivergenceError(RuntimeError):
    """Threads wait at barriers that can never be passed."""


class _Thread:
    """One thread of a block: its indices, the barrier at which it waits, and the value that it exchanges there.

    number    its index in the block
    run       the greenlet in which it waits, once it has waited
    """

    __slots__ = ("threadIdx", "blockIdx", "number", "waits_at", "value", "block", "run", "ended")

    def __init__(self, index: Any, block_index: Any, number: int, block: _Block):
        self.threadIdx = index
        self.blockIdx = block_index
        self.number = number
        self.block = block
        self.waits_at: str | None = None
        self.value: Any = None
        self.run: Any = None
        self.ended = False


_current: _Thread


@cache
def _indices(threads: int) -> list[Any]:
    """Return the indices of the threads of a block."""
    return [kernelapi.Dim3(x, 0, 0) for x in range(threads)]


class _Block:
    """A block of threads, run to completion."""

    def __init__(self, kernel: Callable[..., None], at: Any, threads: int, arguments: tuple[Any, ...]):
        self._kernel = kernel
        self._arguments = arguments
        self.main: Any = getcurrent()
        self.shared: dict[tuple[CodeType, int], Any] = {}
        self.threads = [_Thread(index, at, i, self) for i, index in enumerate(_indices(threads))]

    def run(self) -> None:
        warps = [self.threads[first : first + WARP] for first in range(0, len(self.threads), WARP)]
        if last_warp_first(tuple(self.threads[0].blockIdx)):
            warps.reverse()
        started = False
        while True:
            for warp in warps:
                self._run_warp(warp, started)
            started = True
            ended = sum(thread.ended for thread in self.threads)
            if ended == len(self.threads):
                return
            if ended:
                reached = len(self.threads) - ended
                raise DivergenceError(f"{_BLOCK} was reached by {reached} of {len(self.threads)} threads; others ended")

    def _run_warp(self, warp: Sequence[_Thread], started: bool) -> None:
        """Run a warp until all its threads have ended or wait at a block barrier."""
        try:
            if started:
                self._resume(warp)
            else:
                self._start(warp)
            while ready := [thread for thread in warp if not thread.ended]:
                barriers = {thread.waits_at for thread in ready}
                if barriers == {_BLOCK}:
                    return
                if len(barriers) > 1:
                    break
                self._resume(ready)
            else:
                return
        except Exception as error:
            place = f"thread {list(_current.threadIdx)} of block {list(_current.blockIdx)}"
            raise type(error)(f"{place}: {error}").with_traceback(error.__traceback__) from None
        places = sorted(map(str, barriers))
        raise DivergenceError(f"threads of one block wait at different barriers: {', '.join(places)}")

    def _start(self, warp: Sequence[_Thread]) -> None:
        """Run every thread to its first barrier or its end."""
        waiting = iter(warp)
        while True:
            run = greenlet(self._run_threads, self.main)
            run.gr_context = copy_context()  # it holds NumPy's error state
            run.switch(waiting)
            if run.dead:
                return
            _current.run = run

    def _run_threads(self, waiting: Iterator[_Thread]) -> None:
        """Run threads in order, until one has waited."""
        for thread in waiting:
            _become(thread)
            self._kernel(*self._arguments)
            thread.ended = True
            if thread.run is not None:
                return

    def _resume(self, ready: Sequence[_Thread]) -> None:
        """Run every thread from its barrier to its next one or its end."""
        for thread in ready:
            thread.run.switch()


def _become(thread: _Thread) -> None:
    """Set the thread and block indices that kernels see."""
    global _current
    _current = thread
    cuda.threadIdx, cuda.blockIdx = thread.threadIdx, thread.blockIdx


def last_warp_first(block: Sequence[int]) -> bool:
    """Return whether the warps of a block run in reverse order."""
    return sum(block) % 2 == 1


def _wait(barrier: str) -> None:
    thread = _current
    thread.waits_at = barrier
    thread.block.main.switch()
    _become(thread)


def wait_for_block() -> None:
    """Implement syncthreads."""
    _wait(_BLOCK)


def _shuffled(value: Any, source: Callable[[int], int]) -> Any:
    thread = _current
    thread.value = value
    _wait("shfl_sync")
    threads, lane = thread.block.threads, thread.number % WARP
    first, wanted = thread.number - lane, source(lane)
    found = threads[first + wanted].value if 0 <= wanted < WARP and first + wanted < len(threads) else value
    _wait("the end of shfl_sync")
    return found


def exchange(value: Any, distance: int) -> Any:
    """Implement shfl_xor_sync, with all threads of a warp."""
    return _shuffled(value, lambda own: own ^ distance)


def _unwritten(shape: Any, dtype: Any) -> Any:
    """Return memory with values that are unlikely results: nan, or the minimal integer."""
    return np.full(shape, _fill(dtype), dtype)


@cache
def _fill(dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    return dtype.type(np.nan if dtype.kind == "f" else np.iinfo(dtype).min)


class _Shared:
    """Implements `cuda.shared`: an array per source line, shared by the threads of a block."""

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        frame = sys._getframe(1)
        known, place = _current.block.shared, (frame.f_code, frame.f_lineno)
        if place not in known:
            known[place] = _unwritten(shape, dtype)
        return known[place]


class _Local:
    """Implements `cuda.local`: an array per thread."""

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        return _unwritten(shape, dtype)


@final
class _Cuda(kernelapi.FakeCUDAModule):  # type: ignore[misc]  # numba is not typed
    """Implements `numba.cuda` for kernels, with the indices of the current thread; supports one launch at a time."""

    threadIdx: Any = None  # noqa: N815  # the names of CUDA
    blockIdx: Any = None  # noqa: N815
    shared = _Shared()
    local = _Local()
    laneid = property(lambda self: _current.number % WARP)

    def __init__(self) -> None:
        super().__init__((1, 1, 1), (1, 1, 1), 0)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of numba.cuda that this class does not define."""
        return getattr(numba.cuda, name)

    @override
    def grid(self, n: int) -> Any:
        if n != 1:
            return super().grid(n)
        return self.blockIdx.x * self.blockDim.x + self.threadIdx.x

    @override
    def syncthreads(self) -> None:
        wait_for_block()

    @override
    def syncthreads_count(self, value: Any) -> int:
        return self._vote(value, lambda values: sum(map(bool, values)))

    @override
    def syncthreads_and(self, value: Any) -> int:
        return self._vote(value, all)

    @override
    def syncthreads_or(self, value: Any) -> int:
        return self._vote(value, any)

    def _vote(self, value: Any, outcome: Callable[[list[Any]], Any]) -> int:
        thread = _current
        thread.value = value
        _wait(_BLOCK)
        result = int(outcome([each.value for each in thread.block.threads]))
        _wait(_BLOCK)
        return result

    def syncwarp(self, mask: int = 0xFFFFFFFF) -> None:
        _wait("syncwarp")

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        return _shuffled(value, lambda own: lane % WARP)

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        return _shuffled(value, lambda own: own + delta)

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:
        return _shuffled(value, lambda own: own - delta)

    def shfl_xor_sync(self, mask: int, value: Any, delta: int) -> Any:
        return exchange(value, delta)


cuda = _Cuda()
_launching = threading.Lock()


def launch(kernel: Callable[..., None], blocks: int, threads: int, *arguments: Any) -> None:
    """Run a kernel, with vectors as pointers, on `blocks` blocks of `threads` threads."""
    with _launching, np.errstate(all="ignore"):
        cuda.gridDim, cuda.blockDim = kernelapi.Dim3(blocks, 1, 1), kernelapi.Dim3(threads, 1, 1)
        for block in range(blocks):
            _Block(kernel, kernelapi.Dim3(block, 0, 0), threads, arguments).run()
