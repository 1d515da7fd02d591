"""Threads of numba's simulator as greenlets: one switch per barrier, where the stock simulator has an OS thread each.

It also has the warp's shuffles and votes, which the stock one lacks, and says which threads wait at different barriers.

A warp runs as far as it can go alone, to the next barrier of its block, before another one does: the first warp before
the second in every other block, and after it in those between. So what one warp reads before another has written it, or
overwrites before another has read it, is wrong here as it may be on a GPU. A scheduler that let all warps wait at every
shuffle would hide most of that. Memory that a kernel has not written holds nan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import copy_context
from types import CodeType
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet
from numba.cuda.simulator import kernel as simulator_kernel
from numba.cuda.simulator import kernelapi
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

WARP = 32
_BLOCK = "syncthreads"


class DivergenceError(RuntimeError):
    """Threads wait at barriers that can never be passed."""


class _Thread:
    """One thread of a block: where it is, the barrier at which it waits, and what it brings there."""

    __slots__ = ("threadIdx", "blockIdx", "thread_id", "waits_at", "value", "block", "run")

    def __init__(self, index: Any, block_index: Any, thread_id: int, block: _BlockScheduler):
        self.threadIdx = index
        self.blockIdx = block_index
        self.thread_id = thread_id
        self.block = block
        self.waits_at: str | None = None
        self.value: Any = None
        self.run: Any = None


_current: _Thread


class _BlockScheduler:
    """Stands in for the simulator's BlockManager: runs one block of threads at a time."""

    def __init__(self, f: Callable[..., None], grid_dim: Any, block_dim: Any, debug: bool):
        self._f = f
        self._grid_dim = grid_dim
        self._block_dim = block_dim
        self.block_state = np.zeros(block_dim, np.bool_)
        self.threads: list[_Thread] = []
        self.main: Any = None
        self.shared: dict[tuple[CodeType, int], Any] = {}

    def run(self, grid_point: Any, *args: Any) -> None:
        dim = kernelapi.Dim3(*self._block_dim)
        block_index = kernelapi.Dim3(*grid_point)
        self.main = getcurrent()
        self.shared = {}
        indices = [(x, y, z) for z in range(dim.z) for y in range(dim.y) for x in range(dim.x)]
        self.threads = [_Thread(kernelapi.Dim3(*at), block_index, i, self) for i, at in enumerate(indices)]
        warps = [self.threads[first : first + WARP] for first in range(0, len(self.threads), WARP)]
        if last_warp_first(grid_point):
            warps.reverse()
        while True:
            for warp in warps:
                self._run_warp(warp, args)
            live = [thread for thread in self.threads if not thread.run.dead]
            if not live:
                return
            if len(live) != len(self.threads):
                raise DivergenceError(
                    f"{_BLOCK} was reached by {len(live)} of {len(self.threads)} threads; the others ended"
                )

    def _run_warp(self, warp: Sequence[_Thread], args: tuple[Any, ...]) -> None:
        """Run a warp as far as it goes alone: until all its threads have ended or wait for the block."""
        ready = [thread for thread in warp if thread.run is None or not thread.run.dead]
        while ready:
            for thread in ready:
                self._switch_to(thread, args)
            ready = [thread for thread in ready if not thread.run.dead]
            barriers = {thread.waits_at for thread in ready}
            if barriers == {_BLOCK}:
                return
            if len(barriers) > 1:
                places = sorted(map(str, barriers))
                raise DivergenceError(f"threads of one block wait at different barriers: {', '.join(places)}")

    def _switch_to(self, thread: _Thread, args: tuple[Any, ...]) -> None:
        """Run a thread to its next barrier, or to its end."""
        global _current
        _current, thread.waits_at = thread, None
        try:
            if thread.run is None:
                thread.run = greenlet(self._f, self.main)
                thread.run.gr_context = copy_context()  # in which NumPy keeps what it does about overflow
                thread.run.switch(*args)
            else:
                thread.run.switch()
        except Exception as error:
            place = f"thread {list(thread.threadIdx)} of block {list(thread.blockIdx)}"
            raise type(error)(f"{place}: {error}").with_traceback(error.__traceback__) from None


def last_warp_first(block: Sequence[int]) -> bool:
    """In which order the warps of a block run."""
    return sum(block) % 2 == 1


def _wait(barrier: str) -> None:
    global _current
    thread = _current
    thread.waits_at = barrier
    thread.block.main.switch()
    _current = thread


def wait_for_block() -> None:
    """syncthreads."""
    _wait(_BLOCK)


def _shuffled(value: Any, source: Callable[[int], int]) -> Any:
    thread = _current
    thread.value = value
    _wait("shfl_sync")
    threads, lane = thread.block.threads, thread.thread_id % WARP
    first, wanted = thread.thread_id - lane, source(lane)
    found = threads[first + wanted].value if 0 <= wanted < WARP and first + wanted < len(threads) else value
    _wait("the end of shfl_sync")
    return found


def exchange(value: Any, distance: int) -> Any:
    """shfl_xor_sync, with all of a warp."""
    return _shuffled(value, lambda own: own ^ distance)


def _unwritten(shape: Any, dtype: Any) -> Any:
    """Memory that holds what nobody would take for a result: nan, or the least integer."""
    memory = np.empty(shape, dtype)
    memory.fill(np.nan if memory.dtype.kind == "f" else np.iinfo(memory.dtype).min)
    return memory


class _Shared:
    """`cuda.shared`: an array for each line that asks for one, common to the threads of a block."""

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        frame = sys._getframe(1)
        known, place = _current.block.shared, (frame.f_code, frame.f_lineno)
        if place not in known:
            known[place] = _unwritten(shape, dtype)
        return known[place]


class _Local:
    """`cuda.local`: an array of a thread's own."""

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        return _unwritten(shape, dtype)


class _CudaModule(kernelapi.FakeCUDAModule):  # type: ignore[misc]  # numba is not typed
    """The `cuda` module that a kernel sees while it runs."""

    threadIdx = property(lambda self: _current.threadIdx)  # noqa: N815  # the names of CUDA
    blockIdx = property(lambda self: _current.blockIdx)  # noqa: N815
    laneid = property(lambda self: _current.thread_id % WARP)
    shared = _Shared()
    local = _Local()

    def syncthreads(self) -> None:
        wait_for_block()

    def syncthreads_count(self, value: Any) -> int:
        return self._vote(value, lambda values: sum(map(bool, values)))

    def syncthreads_and(self, value: Any) -> int:
        return self._vote(value, all)

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


def pointer(elements: Any) -> Any:
    """A vector as an argument of a kernel: numba would pass a copy of it and copy that back afterwards, so that of two
    arguments which are the same memory only one would see what the other wrote."""
    return FakeCUDAArray(elements)


def install() -> None:
    """Let the simulator run kernels this way."""
    simulator_kernel.BlockManager = _BlockScheduler
    simulator_kernel.FakeCUDAModule = _CudaModule
