"""Memory shared by the programs of an interpreter: for intermediate results, and for reused results."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np

from ....compiler.codegen.arena import ALIGNMENT
from ....ops.amounts import show_bytes
from ....ops.errors import OutOfMemoryError
from ....ops.host_arrays import Array, address_of
from ...eager_cpu.memory import give_back_freed_memory

Kind = tuple[tuple[int, ...], Any]
"""Shape and dtype."""

_MUCH = 1 << 20
"""Bytes from which on a block is large."""

_ARRAYS_OF_A_RESULT = 3
"""One being computed, one of the previous run, and one still in use."""


class ScratchBlock(NamedTuple):
    """Memory for one run, aligned to `ALIGNMENT`; its content is undefined."""

    memory: Array
    address: int

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return len(self.memory)


@final
class CpuScratch:
    """The memory of all programs of an interpreter.

    A run takes a block for intermediate results and returns it at its end. So sequential runs share one block, as large
    as the largest of them needs. A concurrent run (inside an op computed by Python, in another thread, or in a signal
    handler) gets its own block, and the larger of the two is kept. No locks are used, since any call may be
    interrupted.
    """

    __slots__ = ("_free", "_arrays", "_bytes", "_most", "__weakref__")

    def __init__(self) -> None:
        self._free: list[ScratchBlock] = []  # at most one
        self._arrays: dict[Kind, deque[Array]] = {}  # by kind, ordered by last allocation
        self._bytes = 0  # of all arrays
        self._most = 0  # the limit of bytes of reused arrays

    def take(self, nbytes: int) -> ScratchBlock:
        """Take a block of at least `nbytes`. Raises OutOfMemoryError."""
        try:
            block = self._free.pop()
            if block.nbytes >= nbytes:
                return block
            del block  # release it before a larger one is allocated
        except IndexError:
            pass
        if nbytes >= _MUCH:
            give_back_freed_memory()
        try:
            whole = np.empty(nbytes + ALIGNMENT, np.uint8)
        except MemoryError:
            raise OutOfMemoryError(
                f"a compiled program needs {show_bytes(nbytes)} for what it computes on the way, and the system gives "
                "no more; take smaller batches, or let trim() of other trainers give back what they keep. What a step "
                "takes is predicted by opstage.training.memory, and by opstage check --memory"
            ) from None
        at = address_of(whole)
        start = -at % ALIGNMENT
        return ScratchBlock(whole[start : start + nbytes], at + start)

    def give_back(self, block: ScratchBlock) -> None:
        """Return a block for reuse."""
        kept = self._free[:1]
        if not kept or kept[0].nbytes < block.nbytes:
            self._free[:] = [block]

    def expect(self, results: int) -> None:
        """Expect a program that allocates `results` bytes of results in a run."""
        self._most = max(self._most, _ARRAYS_OF_A_RESULT * results)

    def results(self) -> Callable[[Kind], Array]:
        """Return an allocator for one run's results: arrays that have no other owner. Call it once per result."""
        untried: dict[Kind, int] = {}

        def take(kind: Kind) -> Array:
            arrays = self._arrays.get(kind)
            if arrays is None:
                return self._made(kind)
            left = untried.get(kind, len(arrays))
            while left:
                left -= 1
                try:
                    array = arrays.popleft()  # popped, so that no concurrent run can take it during the check
                except IndexError:
                    break
                alone = sys.getrefcount(array) == _ALONE
                arrays.append(array)
                if alone:
                    untried[kind] = left
                    return array
            untried[kind] = 0
            return self._made(kind)

        return take

    def _made(self, kind: Kind) -> Array:
        made = np.empty(*kind)
        if made.nbytes <= self._most:
            arrays = self._arrays.pop(kind, None) or deque()
            arrays.append(made)
            self._arrays[kind] = arrays  # move the kind to the end
            self._bytes += made.nbytes
            if self._bytes > self._most:
                self._drop_oldest()
        return made

    def _drop_oldest(self) -> None:
        """Drop the kinds whose last allocation is longest ago, until the rest fits the limit."""
        sizes = {kind: sum(array.nbytes for array in list(arrays)) for kind, arrays in list(self._arrays.items())}
        kept = sum(sizes.values())
        for kind, nbytes in sizes.items():
            if kept <= self._most:
                break
            self._arrays.pop(kind, None)
            kept -= nbytes
        self._bytes = kept

    def trim(self) -> None:
        """Release all unused memory; the next run allocates again."""
        self._free.clear()
        self._arrays.clear()
        self._bytes = 0


def _references_of_an_array_taken_out() -> int:
    arrays = deque([np.empty(0)])
    array = arrays.popleft()
    return sys.getrefcount(array)


_ALONE = _references_of_an_array_taken_out()
