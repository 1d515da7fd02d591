"""Freed memory, kept by size for reuse.

Sizes are rounded up to one of eight between consecutive powers of two, so at most an eighth is wasted. A training step
has tensors of the same sizes as the previous step, and reuses all blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar, final

Block = TypeVar("Block")

SMALLEST = 512
"""Bytes: the minimal alignment of the driver's allocations."""


@lru_cache(maxsize=4096)
def rounded(nbytes: int) -> int:
    """Return the size of the bucket for `nbytes`."""
    if nbytes <= SMALLEST:
        return SMALLEST
    below = 1 << ((nbytes - 1).bit_length() - 1)
    step = max(SMALLEST, below // 8)
    return -(-nbytes // step) * step


@final
class Buckets(Generic[Block]):
    """Unused blocks by their rounded size.

    allocate, free   allocate a block of a size, and free a block
    kept             total bytes of unused blocks
    """

    def __init__(self, allocate: Callable[[int], Block], free: Callable[[Block], None]):
        self._allocate = allocate
        self._free = free
        self._blocks: dict[int, list[Block]] = {}
        self.kept = 0

    def take(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes`."""
        size = rounded(nbytes)
        blocks = self._blocks.get(size)
        if blocks:
            self.kept -= size
            return blocks.pop()
        return self._allocate(size)

    def give(self, block: Block, nbytes: int) -> None:
        """Keep a block that was taken for `nbytes`."""
        size = rounded(nbytes)
        self.kept += size
        self._blocks.setdefault(size, []).append(block)

    def trim(self) -> int:
        """Free all unused blocks; return their total size."""
        blocks, self._blocks = self._blocks, {}
        kept, self.kept = self.kept, 0
        for each in blocks.values():
            for block in each:
                self._free(block)
        return kept
