"""The loop that adds the workers' partial sums over rows, in the order of the workers."""

from __future__ import annotations

from ...native import access
from .texts import LoopSource
from .words import Address, LoweredLoop, WorkerScratch


def total_loop(scratch: WorkerScratch, out: Address, count: int, parts: int, dtype: str) -> LoweredLoop:
    """Return a loop that adds the workers' sums over rows, in worker order, into `count` elements at `out`."""
    text = """def kernel(lo, hi, worker, arguments):
    w = int64s(arguments, 4)
    for j in range(lo, hi):
        total = load(w[0], j)
        for part in range(1, w[2]):
            total = total + load(w[0] + part * w[3], j)
        store(w[1], j, total)"""
    accesses = (("load", "load", dtype, access.READ), ("store", "store", dtype, access.written(0)))
    return LoweredLoop(LoopSource("total", "", text, accesses), count, (scratch, out, parts, scratch.nbytes), ())
