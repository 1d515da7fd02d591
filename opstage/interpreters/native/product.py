"""The product of two arrays now, as one step of the pool."""

# mypy: disable-error-code="no-untyped-call, untyped-decorator"
from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ..host import Array
from .blas import find_blas
from .compiler import import_numba
from .gemm import WORDS, gemm_kernel
from .overloads import kept
from .pool import drive, schedule_words, workers

LEAST = 1 << 20  # multiplications; below, the call itself costs more than a second thread gives


def multiply(x: Array, y: Array) -> Array:
    """x·y, of matrices of one float dtype: divided among the workers if it is large enough, else by NumPy."""
    if x.shape[0] * y.size >= LEAST:
        run = _product(x.dtype.char)
        if run is not None:
            out = np.empty((x.shape[0], y.shape[1]), x.dtype)
            if run(x, y, out):
                return out
    return np.matmul(x, y)  # type: ignore[no-any-return]


@cache
def _product(character: str) -> Any:
    """A function of x, y and their product; it returns False, having done nothing, if x or y is not packed."""
    name = {"f": "float32", "d": "float64"}.get(character, "")
    kernel = gemm_kernel(name) if name else None
    if kernel is None:
        return None
    blas = find_blas()
    assert blas is not None
    numba = import_numba()
    call_kernel = import_module("opstage.interpreters.native.memory").call_kernel
    count = WORDS

    def product(x, y, out, kernel, gemm, threads, drive, schedule_words):  # type: ignore[no-untyped-def]
        size = out.itemsize
        m, k = x.shape
        n = y.shape[1]
        transpose_x = x.strides[1] != size
        transpose_y = y.strides[1] != size
        if x.strides[0] != (size if transpose_x else k * size) or (transpose_x and x.strides[1] != m * size):
            return False
        if y.strides[0] != (size if transpose_y else n * size) or (transpose_y and y.strides[1] != k * size):
            return False
        words = np.zeros(count, np.int64)  # those of `gemm_words`
        words[0], words[1], words[2], words[3] = gemm, x.ctypes.data, y.ctypes.data, out.ctypes.data
        words[4], words[5], words[6], words[7], words[8] = m, n, k, transpose_x, transpose_y
        words[9], words[10] = m if transpose_x else k, k if transpose_y else n
        words[11], words[16] = 1, threads
        table = np.empty(3, np.int64)
        table[0], table[1], table[2] = kernel, threads, words.ctypes.data
        schedule = schedule_words.copy()
        schedule[0] = table.ctypes.data
        call_kernel(drive, 0, 1, 0, schedule.ctypes.data)
        return words[16] == table[1] and schedule[0] != 0  # and so they live until here

    real, word, integer = numba.types.float32 if name == "float32" else numba.types.float64, numba.uint64, numba.int64
    read = numba.types.Array(real, 2, "A", readonly=True)
    signature = numba.boolean(read, read, real[:, ::1], integer, word, integer, word, integer[::1])
    run = kept(lambda keep: numba.njit(signature, nogil=True, cache=keep)(product))
    gemm = blas.sgemm if name == "float32" else blas.dgemm
    rest = (kernel.address, gemm, workers(), drive(), schedule_words())
    return lambda x, y, out: run(x, y, out, *rest)
