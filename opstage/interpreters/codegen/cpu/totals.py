"""Sums over rows in parts, which sizes alone decide: so their bits do not depend on how many workers take the parts."""

from __future__ import annotations

from ...native import access
from .texts import LoopSource
from .words import Address, LoweredLoop, Scratch

FEW = 1 << 13
"""Elements; a loop over fewer is not divided among the workers."""

_MOST, _ROWS = 16, 32
"""Parts at most, and the rows that are worth one of more than two: the sums of a part cost as much as a few rows."""


def parts_of_rows(rows: int, elements: int) -> int:
    """Return the number of parts of a sum over `rows`, of so many elements in all."""
    return 1 if elements < FEW else min(rows, _MOST, max(2, rows // _ROWS))


def total_loop(scratch: Scratch, out: Address, count: int, dtype: str) -> LoweredLoop:
    """Return a loop that adds the sums of the parts, in their order and in float64, into `count` elements at `out`."""
    text = f"""def kernel(lo, hi, worker, arguments):
    w = int64s(arguments, 4)
    for j in range(lo, hi):
        total = 0.0 + load(w[0], j)
        for part in range(1, w[2]):
            total = total + load(w[0] + part * w[3], j)
        store(w[1], j, {dtype}(total))"""
    accesses = (("load", "load", dtype, access.READ), ("store", "store", dtype, access.written(0)))
    return LoweredLoop(
        LoopSource("total", "", text, accesses), count, (scratch, out, scratch.parts, scratch.nbytes), ()
    )
