"""One block of memory for all intermediate results of a program, and where in it each of them lies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

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


def arrange(items: Sequence[Item]) -> tuple[dict[Hashable, int], int]:
    """The offset of every item and the bytes of the whole; items that live at one time do not overlap, but for `into`.

    Each takes, when its time comes, the smallest free block in which it fits, else room at the end.
    """
    offsets: dict[Hashable, int] = {}
    free: list[tuple[int, int]] = []  # (offset, nbytes), by offset
    ending: dict[int, list[tuple[int, int]]] = {}
    total = now = 0
    for item in sorted(items, key=lambda item: (item.first, -item.nbytes)):
        for moment in range(now, item.first):
            for block in ending.pop(moment, ()):
                _release(free, block)
        now = item.first
        nbytes = max(1, -(-item.nbytes // ALIGNMENT)) * ALIGNMENT
        if item.into is not None:
            block = offsets[item.into], nbytes
            ending[item.first].remove(block)
            offsets[item.key] = block[0]
            ending.setdefault(item.last, []).append(block)
            continue
        fitting = [(size, offset) for offset, size in free if size >= nbytes]
        if fitting:
            size, offset = min(fitting)
            free.remove((offset, size))
            if size > nbytes:
                _release(free, (offset + nbytes, size - nbytes))
        elif free and free[-1][0] + free[-1][1] == total:
            offset = free.pop()[0]
            total = offset + nbytes
        else:
            offset, total = total, total + nbytes
        offsets[item.key] = offset
        ending.setdefault(item.last, []).append((offset, nbytes))
    return offsets, total


def _release(free: list[tuple[int, int]], block: tuple[int, int]) -> None:
    """Give a block back, in one piece with its free neighbours."""
    offset, size = block
    at = next((i for i, (o, _) in enumerate(free) if o > offset), len(free))
    if at < len(free) and offset + size == free[at][0]:
        size += free.pop(at)[1]
    if at > 0 and free[at - 1][0] + free[at - 1][1] == offset:
        before = free.pop(at - 1)
        offset, size, at = before[0], before[1] + size, at - 1
    free.insert(at, (offset, size))
