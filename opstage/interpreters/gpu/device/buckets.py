"""Memory that was given back, kept by size for the next who asks.

Sizes are rounded up to one of eight between a power of two and the next, so at most an eighth is wasted and a step of
training, whose tensors have the same sizes as those of the step before, finds each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

Block = TypeVar("Block")

SMALLEST = 512
"""Bytes. What the driver aligns allocations to, at least."""


def rounded(nbytes: int) -> int:
    """The size of the bucket from which so many bytes are taken."""
    if nbytes <= SMALLEST:
        return SMALLEST
    below = 1 << ((nbytes - 1).bit_length() - 1)
    step = max(SMALLEST, below // 8)
    return -(-nbytes // step) * step


@final
class Buckets(Generic[Block]):
    """Blocks that nobody uses now, by their rounded size.

    allocate, free   how a block of so many bytes is made, and how it ends
    kept             bytes of the blocks that nobody uses
    """

    def __init__(self, allocate: Callable[[int], Block], free: Callable[[Block], None]):
        self._allocate = allocate
        self._free = free
        self._blocks: dict[int, list[Block]] = {}
        self.kept = 0

    def take(self, nbytes: int) -> Block:
        """A block of at least so many bytes."""
        size = rounded(nbytes)
        blocks = self._blocks.get(size)
        if blocks:
            self.kept -= size
            return blocks.pop()
        return self._allocate(size)

    def give(self, block: Block, nbytes: int) -> None:
        """Keep a block that was taken for so many bytes."""
        size = rounded(nbytes)
        self.kept += size
        self._blocks.setdefault(size, []).append(block)

    def trim(self) -> int:
        """End every block that is kept; how many bytes that were."""
        blocks, self._blocks = self._blocks, {}
        kept, self.kept = self.kept, 0
        for each in blocks.values():
            for block in each:
                self._free(block)
        return kept
