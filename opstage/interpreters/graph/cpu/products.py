"""Products of matrices as calls of the BLAS, divided among the workers."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ....ops.closed import Equation
from ....ops.types import dtype_name
from ...native.blas import find_blas
from ...native.compiler import Kernel, compile_kernel
from ..lowering.legal import Legal
from ..lowering.matrices import batch_axes, leading_dimension
from ..lowering.views import View
from .source import Address, Loop, Word

_SMALL = 1 << 17
"""A product of fewer multiplications and additions is not divided: starting the workers takes as long."""


def product_loop(legal: Legal, e: Equation, workers: int) -> Loop | None:
    """matmul or bmm; None without a BLAS that can be called."""
    a, b = (legal.views[slot] for slot in e.inputs)
    dtype = dtype_name(legal.types[e.outputs[0]].dtype)
    kernel = _kernel(dtype)
    if kernel is None:
        return None
    left, right, axes = leading_dimension(a), leading_dimension(b), batch_axes(a, b)
    assert left is not None and right is not None
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    blas = find_blas()
    assert blas is not None
    axes = [(1, 0, 0)] * (2 - len(axes)) + axes
    (outer, a_outer, b_outer), (inner, a_inner, b_inner) = axes
    batch = outer * inner
    size = legal.types[e.outputs[0]].dtype.itemsize
    parts = 1 if batch >= 2 * workers or 2 * m * n * k < _SMALL else workers
    words: tuple[Word, ...] = (
        blas.sgemm if dtype == "float32" else blas.dgemm,
        _address(a, size), _address(b, size), Address(e.outputs[0], 0),
        m, n, k, int(left.transposed), int(right.transposed), left.dimension, right.dimension,
        inner, a_outer * size, a_inner * size, b_outer * size, b_inner * size, parts,
    )  # fmt: skip
    return Loop(kernel, batch * parts, words, ())


def _address(view: View, size: int) -> Address:
    return Address(view.root, view.offset * size)


@cache
def _kernel(dtype: str) -> Kernel | None:
    blas = find_blas()
    if blas is None:
        return None
    content = f"{inspect.getsource(_function)}{dtype}{blas.wide}"
    return compile_kernel(f"product_{dtype}", content, lambda: _function(dtype, blas.wide))


def _function(dtype: str, wide: bool) -> Any:
    numba = import_module("numba")
    memory = import_module("opstage.interpreters.native.memory")
    int64s = memory.int64s
    gemm = memory.gemm_by_address(getattr(numba.types, dtype), wide)
    size = 4 if dtype == "float32" else 8
    number = getattr(np, dtype)

    def kernel(lo, hi, worker, arguments):  # type: ignore[no-untyped-def]
        w = int64s(arguments, 17)
        f, a, b, c = w[0], w[1], w[2], w[3]
        m, n, k, ta, tb, lda, ldb = w[4], w[5], w[6], w[7], w[8], w[9], w[10]
        inner, parts = w[11], w[16]
        task = lo
        while task < hi:
            matrix, first = task // parts, task % parts
            last = min(parts, first + hi - task)  # neighbouring parts of one matrix are one product
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
