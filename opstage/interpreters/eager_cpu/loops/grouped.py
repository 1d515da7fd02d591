"""Products of rows with the matrix of their group in the thread pool: one of BLAS for the rows of each group.

Which rows these are a kernel reads from the ends itself. `ops.matmul` says what ends mean that fall. A task
of `grouped_matmul` is a block of rows, whichever groups they are of, so that groups of different sizes keep workers
equally busy; a task of `grouped_outer` is a block of rows of one group's result. Blocks depend on sizes alone, and so
do the bits of a result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ....compiler.native import KernelCall, find_blas
from ....compiler.native.compiler import Kernel, compile_kernel
from ....ops.matmul import GROUPED_MATMUL, GROUPED_OUTER
from ....ops.primitive import Primitive
from .convolution import product_functions

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


ROWS = 256
"""Rows of a task of `grouped_matmul`, enough to be worth reading a matrix for; `grouped_outer` has half as many."""

_LEAST = 1 << 20  # multiplications; below, the overhead exceeds the gain of a second thread


def grouped_step(
    primitive: Primitive, dtype: str, sizes: tuple[int, int, int, int], addresses: tuple[int, ...], turned: bool = False
) -> KernelCall:
    """Return the step of GROUPED_MATMUL or GROUPED_OUTER from n, k, m and the number of groups, and from the addresses
    of the operands and the result; `turned` if each matrix of w is stored transposed."""
    n, k, m, groups = sizes
    blas = find_blas()
    assert blas is not None
    words = np.array([blas.sgemm if dtype == "float32" else blas.dgemm, *addresses, *sizes, turned], np.uint64)
    tasks = -(-n // ROWS) if primitive is GROUPED_MATMUL else groups * -(-k // (ROWS // 2))
    return KernelCall(_kernel(primitive, dtype), tasks, words, parallel=n * k * m >= _LEAST)


@cache
def _kernel(primitive: Primitive, dtype: str) -> Kernel:
    factory = _FACTORIES[primitive]
    blas = find_blas()
    assert blas is not None
    content = f"{inspect.getsource(factory)}{dtype} {blas.wide} {ROWS}"
    return compile_kernel(f"{primitive.name}_{dtype}", content, lambda: factory(dtype, blas.wide))


def _grouped_matmul(dtype: str, wide: bool) -> Any:
    v, words, gemm = product_functions(dtype, wide)
    size, clear_row = v.size, v.clear_row
    rows, zero, one = ROWS, np.dtype(dtype).type(0), np.dtype(dtype).type(1)

    def kernel(lo, hi, worker, arguments):
        f, x, w, ends_at, out, n, k, m, groups, transposed = words(arguments, 10)
        ends = words(ends_at, groups)
        stride = k if transposed else m
        first, last = lo * rows, min(hi * rows, n)
        reached = 0
        for group in range(groups):
            end = min(ends[group], n)
            if end > reached:
                i = max(reached, first)
                stop = min(end, last)
                while i < stop:
                    j = min((i // rows + 1) * rows, stop)
                    a = x + i * k * size
                    b = w + group * k * m * size
                    c = out + i * m * size
                    gemm(f, 0, transposed, j - i, m, k, one, a, k, b, stride, zero, c, m)
                    i = j
                reached = end
        i = max(reached, first)
        if i < last:
            clear_row(out + i * m * size, (last - i) * m)

    return kernel


def _grouped_outer(dtype: str, wide: bool) -> Any:
    v, words, gemm = product_functions(dtype, wide)
    size, clear_row = v.size, v.clear_row
    rows, zero, one = ROWS // 2, np.dtype(dtype).type(0), np.dtype(dtype).type(1)

    def kernel(lo, hi, worker, arguments):
        f, x, g, ends_at, out, n, k, m, groups, _ = words(arguments, 10)
        ends = words(ends_at, groups)
        for task in range(lo, hi):
            group, i = task % groups, task // groups * rows
            count = min(rows, k - i)
            first = 0
            for before in range(group):
                first = max(first, min(ends[before], n))
            length = min(ends[group], n) - first
            c = out + (group * k + i) * m * size
            if length > 0:
                a = x + (first * k + i) * size
                b = g + first * m * size
                gemm(f, 1, 0, count, m, length, one, a, k, b, m, zero, c, m)
            else:
                clear_row(c, count * m)

    return kernel


_FACTORIES: dict[Primitive, Callable[[str, bool], Any]] = {
    GROUPED_MATMUL: _grouped_matmul,
    GROUPED_OUTER: _grouped_outer,
}
