"""Memory that the programs of an interpreter share: for what they compute on the way, and for their results."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np

from ....ops.amounts import show_bytes
from ....ops.errors import OutOfMemoryError
from ...codegen.arena import ALIGNMENT
from ...eager_cpu.memory import give_back_freed_memory
from ...host import Array, address_of

Kind = tuple[tuple[int, ...], Any]
"""Shape and dtype."""

_MUCH = 1 << 20
"""Bytes of a block."""

_ARRAYS_OF_A_RESULT = 3
"""One that is being made, one from the run before, one that somebody still reads."""


class ScratchBlock(NamedTuple):
    """Memory for one run, its first byte at a multiple of `ALIGNMENT`; its content is undefined."""

    memory: Array
    address: int

    @property
    def nbytes(self) -> int:
        """Its size."""
        return len(self.memory)


@final
class CpuScratch:
    """The memory of all programs of an interpreter.

    A run takes a block for its intermediate results and gives it back when it is done; so programs that run one after
    the other work in one block, as large as the largest of them needs. A run that begins while another one has it, in
    an op that Python computes, in another thread or in the handler of a signal, gets a block of its own, and the larger
    of the two is kept. Nothing here takes a lock: one may be interrupted anywhere.
    """

    __slots__ = ("_free", "_arrays", "_bytes", "_most")

    def __init__(self) -> None:
        self._free: list[ScratchBlock] = []  # one at most
        self._arrays: dict[Kind, deque[Array]] = {}  # by kind, the one of which an array was made last at the end
        self._bytes = 0  # of all these
        self._most = 0  # bytes of arrays for results that are kept

    def take(self, nbytes: int) -> ScratchBlock:
        """A block of at least so many bytes, which nobody else has. Raises OutOfMemoryError."""
        try:
            block = self._free.pop()
            if block.nbytes >= nbytes:
                return block
            del block  # before there is a larger one
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
        """It may be taken again."""
        kept = self._free[:1]
        if not kept or kept[0].nbytes < block.nbytes:
            self._free[:] = [block]

    def expect(self, results: int) -> None:
        """A program may ask for results of so many bytes in a run."""
        self._most = max(self._most, _ARRAYS_OF_A_RESULT * results)

    def results(self) -> Callable[[Kind], Array]:
        """An allocator of one run's results: arrays that nobody else holds. Call it once for each."""
        untried: dict[Kind, int] = {}

        def take(kind: Kind) -> Array:
            arrays = self._arrays.get(kind)
            if arrays is None:
                return self._made(kind)
            left = untried.get(kind, len(arrays))
            while left:
                left -= 1
                try:
                    array = arrays.popleft()  # so that nobody takes it between the question and the answer
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
            self._arrays[kind] = arrays  # as the last of all kinds
            self._bytes += made.nbytes
            if self._bytes > self._most:
                self._drop_oldest()
        return made

    def _drop_oldest(self) -> None:
        """Drop the kinds of which an array was made longest ago."""
        sizes = {kind: sum(array.nbytes for array in list(arrays)) for kind, arrays in list(self._arrays.items())}
        kept = sum(sizes.values())
        for kind, nbytes in sizes.items():
            if kept <= self._most:
                break
            self._arrays.pop(kind, None)
            kept -= nbytes
        self._bytes = kept

    def trim(self) -> None:
        """Keep nothing: what nobody holds is given back, and the next run takes its memory anew."""
        self._free.clear()
        self._arrays.clear()
        self._bytes = 0


def _references_of_an_array_taken_out() -> int:
    arrays = deque([np.empty(0)])
    array = arrays.popleft()
    return sys.getrefcount(array)


_ALONE = _references_of_an_array_taken_out()
