"""The limits of this machine, measured by matrix products and by copies larger than the caches."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....ops.primitive import Cost
from ...native.blas import one_thread
from ...native.pool import workers

_ROUNDS = 5


class Limits(NamedTuple):
    """Operations per second, and bytes read and written per second, of `threads` threads together."""

    flops: float
    bytes: float
    threads: int

    def seconds(self, cost: Cost) -> float:
        """Return the lower bound of the time for this work: the larger of the times for its arithmetic and its
        bytes."""
        return max(float(cost.flops) / self.flops, float(cost.bytes) / self.bytes)

    def __str__(self) -> str:
        return (
            f"{self.flops / 1e9:.0f} GFLOP/s (a product of matrices), {self.bytes / 1e9:.1f} GB/s (a copy), "
            f"{self.threads} threads"
        )


def measure_limits(dtype: npt.DTypeLike = np.float32, *, rows: int = 1024, elements: int = 1 << 24) -> Limits:
    """Measure the best of a few rounds; each thread has its own (rows, rows) matrices and vectors of `elements`."""
    threads = workers()
    squares = [[np.full((rows, rows), 0.5, dtype) for _ in range(3)] for _ in range(threads)]
    vectors = [[np.ones(elements, dtype) for _ in range(2)] for _ in range(threads)]

    def product(worker: int) -> None:
        a, b, out = squares[worker]
        np.matmul(a, b, out=out)

    def copy(worker: int) -> None:
        source, target = vectors[worker]
        np.copyto(target, source)

    with ThreadPoolExecutor(threads) as pool, one_thread:
        computed, copied = _best(pool, product, threads), _best(pool, copy, threads)
    moved = 2 * threads * vectors[0][0].nbytes
    return Limits(2 * threads * rows**3 / computed, moved / copied, threads)


def _best(pool: ThreadPoolExecutor, work: Callable[[int], Any], threads: int) -> float:
    """Return the shortest time in which all threads did their work, after a warm-up round."""
    taken = []
    for _ in range(_ROUNDS + 1):
        start = time.perf_counter()
        list(pool.map(work, range(threads)))
        taken.append(time.perf_counter() - start)
    return min(taken[1:])
