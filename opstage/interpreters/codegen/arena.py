"""One block of memory for all intermediate results of a program, and where in it each of them lies."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from .occupancy import Occupancy

ALIGNMENT = 64
"""Bytes: a cache line, and the longest vector."""


class Item(NamedTuple):
    """Something that needs `nbytes` from the first to the last of the fusion groups of these numbers.

    into        another item of as many bytes, which is read for the last time while this one is written, element by
                element: this one may take its place
    """

    key: Hashable
    nbytes: int
    first: int
    last: int
    into: Hashable = None


class _Allocation(NamedTuple):
    """One place, and the items that stand there one after the other."""

    nbytes: int
    first: int
    last: int
    keys: list[Hashable]


def arrange(items: Sequence[Item], alignment: int = ALIGNMENT) -> tuple[dict[Hashable, int], int]:
    """The offset of every item and the bytes of the whole; items that live at one time do not overlap, but for `into`.

    Every offset is a multiple of `alignment`.

    The largest come first, and each takes the smallest gap between those that live at its time: so the few large ones,
    which decide how much memory there is, lie close together, and small ones fill what is left.
    """
    blocks = sorted(_blocks(items, alignment), key=lambda block: (-block.nbytes, block.first))
    times = sorted({block.first for block in blocks})  # blocks that meet at all meet at the later one's first
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
    """Items that take each other's place as one."""
    blocks: dict[Hashable, _Allocation] = {}  # by the last item that is there
    for item in sorted(items, key=lambda item: item.first):
        before = blocks.pop(item.into) if item.into is not None else None
        if before is None:
            nbytes = max(1, -(-item.nbytes // alignment)) * alignment
            blocks[item.key] = _Allocation(nbytes, item.first, item.last, [item.key])
        else:
            blocks[item.key] = before._replace(last=item.last, keys=[*before.keys, item.key])
    return blocks.values()


def _gap(nbytes: int, starts: Sequence[int], stops: Sequence[int]) -> int:
    """The start of the smallest gap of so many bytes between runs, given by their starts and stops, each in order.

    Where as many runs have stopped as have started, none goes on: so the gap after the i-th stop, if there is one,
    reaches to the i-th start after the first.
    """
    gaps = [(start - stop, stop) for start, stop in zip(starts, (0, *stops)) if start - stop >= nbytes]
    return min(gaps)[1] if gaps else stops[-1] if stops else 0
