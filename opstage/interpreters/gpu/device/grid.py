"""With how many threads a kernel is started."""

from __future__ import annotations

from typing import NamedTuple

WARP = 32


class Grid(NamedTuple):
    """Launch sizes that suit a device.

    threads        of a block that steps through elements
    block          of a block that works on one thing alone
    shortest       numbers of a row from which on a warp works on it; a shorter one takes one thread
    longest        numbers of a row at which a warp still works; a longer one takes a block
    most_blocks    of a kernel that steps through what it has to do
    """

    threads: int = 256
    block: int = 256
    shortest: int = WARP
    longest: int = 1024
    most_blocks: int = 2**31 - 1

    def each(self, count: int) -> tuple[int, int]:
        """(blocks, threads) for so many elements."""
        return min(-(-count // self.threads), self.most_blocks), self.threads

    def each_row(self, rows: int, extent: int) -> tuple[int, int, int]:
        """(blocks, threads, lanes) for `rows` rows of `extent` numbers, with `lanes` threads side by side on each."""
        lanes = 1 if extent < self.shortest else WARP if extent <= self.longest else self.block
        threads = max(lanes, self.threads)
        return min(-(-rows * lanes // threads), self.most_blocks), threads, lanes

    def part(self, count: int) -> int:
        """Elements of a row, of so many in all: one for each lane of a warp, or more, so that the blocks suffice."""
        steps = -(-count // (self.most_blocks * self.threads))
        return WARP * min(steps, self.longest // WARP)


GRID = Grid()
