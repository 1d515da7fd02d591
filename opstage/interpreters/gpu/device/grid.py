"""Launch sizes of kernels."""

from __future__ import annotations

from typing import NamedTuple

WARP = 32


class Grid(NamedTuple):
    """Launch sizes for a device.

    threads        threads of a block in kernels that stride over elements
    block          threads of a block that processes a single item
    shortest       minimal row length for a warp per row; shorter rows use one thread
    longest        maximal row length for a warp per row; longer rows use a block
    most_blocks    maximal number of blocks of a kernel that strides over its items
    """

    threads: int = 256
    block: int = 256
    shortest: int = WARP
    longest: int = 1024
    most_blocks: int = 2**31 - 1

    def each(self, count: int) -> tuple[int, int]:
        """Return (blocks, threads) for `count` elements."""
        return min(-(-count // self.threads), self.most_blocks), self.threads

    def each_row(self, rows: int, extent: int) -> tuple[int, int, int]:
        """Return (blocks, threads, lanes) for `rows` rows of `extent` numbers, with `lanes` threads on each row."""
        lanes = 1 if extent < self.shortest else WARP if extent <= self.longest else self.block
        threads = max(lanes, self.threads)
        return min(-(-rows * lanes // threads), self.most_blocks), threads, lanes

    def part(self, count: int) -> int:
        """Return the elements per row of `count` elements in total: one per lane of a warp, or more to limit the
        blocks."""
        steps = -(-count // (self.most_blocks * self.threads))
        return WARP * min(steps, self.longest // WARP)


GRID = Grid()
