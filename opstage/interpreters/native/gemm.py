"""Matrix products, divided among the workers: C[i, j] = op(A[i, j]) · op(B[i, j]) for i, j in a stack of matrices.

Workers compute rows of C, or columns if it has more of those; the tasks of a step are all parts of all matrices of the
stack.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from .blas import find_blas
from .compiler import Kernel, compile_kernel

WORDS = 17

W = TypeVar("W")


@cache
def gemm_kernel(dtype: str) -> Kernel | None:
    """Return the kernel for float32 or float64; None without a BLAS that can be called."""
    blas = find_blas()
    if blas is None:
        return None
    content = f"{inspect.getsource(_function)}{dtype}{blas.wide}"
    return compile_kernel(f"product_{dtype}", content, lambda: _function(dtype, blas.wide))


def gemm_words(
    dtype: str,
    at: tuple[W, W, W],
    sizes: tuple[int, int, int],
    transposed: tuple[bool, bool],
    leading: tuple[int, int],
    parts: int,
    *,
    inner: int = 1,
    steps: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> tuple[W | int, ...]:
    """Return the kernel's arguments.

    at          the addresses of A, B and C; C (m, n) is packed, and so is the stack of them
    sizes       m, n and k
    transposed  whether A and B are stored transposed; `leading` are their leading dimensions, in elements
    parts       the number of parts of a matrix, along its longer side
    inner       the size of the inner axis of the stack
    steps       bytes from one matrix to the next, along the outer and the inner axis of A, then of B
    """
    blas = find_blas()
    assert blas is not None
    gemm = blas.sgemm if dtype == "float32" else blas.dgemm
    return (gemm, *at, *sizes, *map(int, transposed), *leading, inner, *steps, parts)


def _function(dtype: str, wide: bool) -> Any:
    memory = import_module("opstage.interpreters.native.memory")
    kinds = import_module("opstage.interpreters.native.frontend.kinds")
    int64s, count = memory.int64s, WORDS
    gemm = memory.gemm_by_address(getattr(kinds, dtype.upper()), wide)
    size = 4 if dtype == "float32" else 8
    number = getattr(np, dtype)

    def kernel(lo, hi, worker, arguments):  # type: ignore[no-untyped-def]
        w = int64s(arguments, count)
        f, a, b, c = w[0], w[1], w[2], w[3]
        m, n, k, ta, tb, lda, ldb = w[4], w[5], w[6], w[7], w[8], w[9], w[10]
        inner, parts = w[11], w[16]
        task = lo
        while task < hi:
            matrix, first = task // parts, task % parts
            last = min(parts, first + hi - task)  # adjacent parts of one matrix are one product
            i, j = matrix // inner, matrix % inner
            at, bt, ct = a + i * w[12] + j * w[13], b + i * w[14] + j * w[15], c + matrix * m * n * size
            if m >= n:
                start, stop = m * first // parts, m * last // parts
                at += start * (1 if ta else lda) * size
                ct += start * n * size
                rows, columns = stop - start, n
            else:
                start, stop = n * first // parts, n * last // parts
                bt += start * (ldb if tb else 1) * size
                ct += start * size
                rows, columns = m, stop - start
            if stop > start:
                gemm(f, ta, tb, rows, columns, k, number(1), at, lda, bt, ldb, number(0), ct, n)
            task += last - first

    return kernel
