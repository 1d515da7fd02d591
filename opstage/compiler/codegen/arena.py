"""The arena: one block of memory for all intermediate results of a program, and their offsets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, final

# Occupancy over time --------------------------------------------------------------------------------------------------


@final
class Occupancy:
    """The blocks placed so far, each a range of bytes over a range of the times 0 … `times` - 1.

    A block overlaps the times `first` … `last` if it begins in them, after `first`, or is live at `first`. The first
    case is a range query in a tree of beginnings, the second a path query in a tree of lifetimes. So adding a block and
    querying overlaps each visit O(log times) nodes. A node holds the union of the bytes of its blocks, as sorted
    bounds, alternating starts and stops. Blocks are dense in an arena, so a union has few runs even with many blocks.
    """

    __slots__ = ("_leaves", "_begun", "_live")

    def __init__(self, times: int):
        self._leaves = 1 << max(0, times - 1).bit_length()
        self._begun: dict[int, list[int]] = {}  # by node: the bytes of blocks that begin in its times
        self._live: dict[int, list[int]] = {}  # of blocks live in all of its times, but not in all of its parent's

    def add(self, start: int, stop: int, first: int, last: int) -> None:
        """Mark the bytes `start` … `stop` - 1 as used from `first` to `last`."""
        for node in self._path(first):
            _unite(self._begun.setdefault(node, []), start, stop)
        for node in self._cover(first, last):
            _unite(self._live.setdefault(node, []), start, stop)

    def taken(self, first: int, last: int) -> tuple[list[int], list[int]]:
        """Return the starts and the stops of the runs of bytes that are used at some time from `first` to `last`.

        Runs may overlap; bytes between them are free. Starts and stops are each sorted, so where equally many precede a
        position, no run is open there.
        """
        found = [bounds for node in self._path(first) if (bounds := self._live.get(node)) is not None]
        if first < last:
            found += [bounds for node in self._cover(first + 1, last) if (bounds := self._begun.get(node)) is not None]
        starts: list[int] = []
        stops: list[int] = []
        for bounds in found:
            starts += bounds[::2]
            stops += bounds[1::2]
        starts.sort()
        stops.sort()
        return starts, stops

    def _path(self, time: int) -> Iterator[int]:
        """Yield the nodes that contain a time, from leaf to root."""
        node = time + self._leaves
        while node:
            yield node
            node >>= 1

    def _cover(self, first: int, last: int) -> Iterator[int]:
        """Yield the fewest nodes that together cover `first` … `last`."""
        low, high = first + self._leaves, last + self._leaves + 1
        while low < high:
            if low & 1:
                yield low
                low += 1
            if high & 1:
                high -= 1
                yield high
            low >>= 1
            high >>= 1


def _unite(bounds: list[int], start: int, stop: int) -> None:
    """Add a run to a union of disjoint, non-adjacent runs."""
    low, high = bisect_left(bounds, start), bisect_right(bounds, stop)
    if low < high or not low & 1:
        bounds[low:high] = [start, stop][low & 1 : 2 - (high & 1)]


# The arena ------------------------------------------------------------------------------------------------------------

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
