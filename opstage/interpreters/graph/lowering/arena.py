"""One block of memory for all intermediate results of a program, and where in it each of them lies."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

ALIGNMENT = 64
"""Bytes: a cache line, and the longest vector."""


class Item(NamedTuple):
    """Something that needs `nbytes` from the first to the last of the units of these numbers.

    into        another item of as many bytes, which is read for the last time while this one is written, element by
                element: this one may take its place
    """

    key: Hashable
    nbytes: int
    first: int
    last: int
    into: Hashable = None


class _Block(NamedTuple):
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
    firsts, lasts, starts, stops = (np.empty(len(blocks), np.int64) for _ in range(4))
    offsets: dict[Hashable, int] = {}
    for placed, block in enumerate(blocks):
        beside = np.flatnonzero((firsts[:placed] <= block.last) & (lasts[:placed] >= block.first))
        beside = beside[np.argsort(starts[beside], kind="stable")]
        offset = _gap(block.nbytes, starts[beside].tolist(), stops[beside].tolist())
        firsts[placed], lasts[placed] = block.first, block.last
        starts[placed], stops[placed] = offset, offset + block.nbytes
        offsets.update(dict.fromkeys(block.keys, offset))
    return offsets, int(stops.max(initial=0))


def _blocks(items: Sequence[Item], alignment: int) -> Iterable[_Block]:
    """Items that take each other's place as one."""
    blocks: dict[Hashable, _Block] = {}  # by the last item that stands there
    for item in sorted(items, key=lambda item: item.first):
        before = blocks.pop(item.into) if item.into is not None else None
        if before is None:
            nbytes = max(1, -(-item.nbytes // alignment)) * alignment
            blocks[item.key] = _Block(nbytes, item.first, item.last, [item.key])
        else:
            blocks[item.key] = before._replace(last=item.last, keys=[*before.keys, item.key])
    return blocks.values()


def _gap(nbytes: int, starts: Sequence[int], stops: Sequence[int]) -> int:
    """The start of the smallest gap of so many bytes between blocks, which are in the order of their starts."""
    best = least = None
    end = 0
    for start, stop in zip(starts, stops):
        if start - end >= nbytes and (least is None or start - end < least):
            best, least = end, start - end
        end = max(end, stop)
    return end if best is None else best
