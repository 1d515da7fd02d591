"""Products of matrices, divided among the workers: C[i] = op(A[i]) · op(B[i]) + beta·C[i] for i in a batch.

Workers take rows of C, or its columns where it has more of them, from as many matrices of the batch as there are: the
tasks of a step are the batch times the parts of a matrix.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from .blas import find_blas
from .compiler import Kernel, compile_kernel

WORDS = 14


@cache
def gemm_kernel(dtype: str) -> Kernel | None:
    """The kernel for float32 or float64; None without a BLAS that can be called."""
    blas = find_blas()
    if blas is None:
        return None
    return compile_kernel(
        f"gemm_{dtype}", inspect.getsource(_factory) + f"{dtype} {blas.wide}", lambda: _factory(dtype, blas.wide)
    )


def gemm_arguments(
    dtype: str,
    a: int,
    b: int,
    c: int,
    m: int,
    n: int,
    k: int,
    transpose_a: bool,
    transpose_b: bool,
    batch: int = 1,
    strides: tuple[int, int, int] = (0, 0, 0),
    beta: float = 0.0,
    parts: int = 1,
) -> tuple[int, npt.NDArray[np.uint64]]:
    """(tasks, words) of a product: addresses of A, B, C; C is m x n; strides between the batch's matrices in elements.

    `parts` is how many parts a matrix is cut into, along its longer side.
    """  # fmt: skip
    blas = find_blas()
    assert blas is not None
    words = np.array(
        [
            blas.sgemm if dtype == "float32" else blas.dgemm, a, b, c, m, n, k, transpose_a, transpose_b,
            *strides, beta != 0.0, parts,
        ],
        np.uint64,
    )  # fmt: skip
    assert len(words) == WORDS
    return batch * parts, words


def _factory(dtype: str, wide: bool) -> Any:
    numba = import_module("numba")
    memory = import_module("opstage.interpreters.native.memory")
    words, word_count = memory.int64s, WORDS
    real = getattr(numba.types, dtype)
    gemm = memory.gemm_by_address(real, wide)
    size = 4 if dtype == "float32" else 8
    number = getattr(np, dtype)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        f, a, b, c = w[0], w[1], w[2], w[3]
        m, n, k, ta, tb = w[4], w[5], w[6], w[7], w[8]
        sa, sb, sc = w[9] * size, w[10] * size, w[11] * size
        beta, parts = number(w[12]), w[13]
        lda = m if ta else k
        ldb = k if tb else n
        task = lo
        while task < hi:
            matrix, first = task // parts, task % parts
            last = min(parts, first + hi - task)  # neighbouring parts of one matrix are one product
            at, bt, ct = a + matrix * sa, b + matrix * sb, c + matrix * sc
            if m >= n:
                start, stop = m * first // parts, m * last // parts
                at += start * (1 if ta else k) * size
                ct += start * n * size
                rows, columns = stop - start, n
            else:
                start, stop = n * first // parts, n * last // parts
                bt += start * (k if tb else 1) * size
                ct += start * size
                rows, columns = m, stop - start
            if stop > start:
                gemm(f, ta, tb, rows, columns, k, number(1), at, lda, bt, ldb, beta, ct, n)
            task += last - first

    return kernel
