"""The arena: one block of memory for all intermediate results of a program, and their offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from .occupancy import Occupancy

ALIGNMENT = 64
"""Bytes: a cache line, and the longest vector."""


class Item(NamedTuple):
    """A value that needs `nbytes` from fusion group `first` to fusion group `last`.

    into        another item of the same size whose last read is elementwise in the loop that writes this one, so
                this one may overwrite it
    """

    key: Hashable
    nbytes: int
    first: int
    last: int
    into: Hashable = None


class _Allocation(NamedTuple):
    """An offset shared by items that overwrite each other in turn."""

    nbytes: int
    first: int
    last: int
    keys: list[Hashable]


def arrange(items: Sequence[Item], alignment: int = ALIGNMENT) -> tuple[dict[Hashable, int], int]:
    """Return the offset of every item and the total size. Items that are live at the same time do not overlap, except
    through `into`.

    Offsets are multiples of `alignment`.

    Items are placed from the largest to the smallest, each into the smallest gap among those live at the same time. So
    the few large items, which determine the total size, are packed tightly, and small ones fill the gaps.
    """
    blocks = sorted(_blocks(items, alignment), key=lambda block: (-block.nbytes, block.first))
    times = sorted({block.first for block in blocks})  # overlapping lifetimes overlap at the later one's start
    at = {time: i for i, time in enumerate(times)}
    occupancy = Occupancy(len(times))
    offsets: dict[Hashable, int] = {}
    total = 0
    for block in blocks:
        first, last = at[block.first], bisect_right(times, block.last) - 1
        offset = _gap(block.nbytes, *occupancy.taken(first, last))
        occupancy.add(offset, offset + block.nbytes, first, last)
        offsets.update(dict.fromkeys(block.keys, offset))
        total = max(total, offset + block.nbytes)
    return offsets, total


def _blocks(items: Sequence[Item], alignment: int) -> Iterable[_Allocation]:
    """Combine items that overwrite each other into one allocation."""
    blocks: dict[Hashable, _Allocation] = {}  # by the last item in the allocation
    for item in sorted(items, key=lambda item: item.first):
        before = blocks.pop(item.into) if item.into is not None else None
        if before is None:
            nbytes = max(1, -(-item.nbytes // alignment)) * alignment
            blocks[item.key] = _Allocation(nbytes, item.first, item.last, [item.key])
        else:
            blocks[item.key] = before._replace(last=item.last, keys=[*before.keys, item.key])
    return blocks.values()


def _gap(nbytes: int, starts: Sequence[int], stops: Sequence[int]) -> int:
    """Return the start of the smallest gap of at least `nbytes` between runs, given by sorted starts and sorted stops.

    Where as many runs have stopped as have started, no run is open. So if there is a gap after the i-th stop, it ends
    at the start with index i + 1.
    """
    gaps = [(start - stop, stop) for start, stop in zip(starts, (0, *stops)) if start - stop >= nbytes]
    return min(gaps)[1] if gaps else stops[-1] if stops else 0
