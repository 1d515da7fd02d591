"""The bytes of an arena in use at each time, in two trees over the times at which blocks begin."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import final


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
