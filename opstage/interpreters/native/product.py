"""The product of two arrays now, as one step of the pool."""

# mypy: disable-error-code="no-untyped-call, untyped-decorator"
from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ..host import Array, address_of
from .blas import find_blas
from .compiler import import_numba
from .gemm import WORDS, gemm_kernel, gemm_words
from .overloads import kept
from .pool import call, choose_layer, is_alone, workers

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
    choose_layer(numba)
    memory = import_module("opstage.interpreters.native.memory")
    call_kernel, call_number, ask_number = memory.call_kernel, memory.call_number, memory.ask_number
    prange, count = numba.prange, WORDS

    def product(x, y, out, kernel, gemm, threads, set_threads, get_threads):  # type: ignore[no-untyped-def]
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
        arguments = words.ctypes.data
        before = ask_number(get_threads)
        if before != 1:
            call_number(set_threads, 1)
        for worker in prange(threads):
            call_kernel(kernel, worker, worker + 1, worker, arguments)
        if before != 1:
            call_number(set_threads, before)
        return words[16] == threads  # and so the words live until here

    real, word, integer = numba.types.float32 if name == "float32" else numba.types.float64, numba.uint64, numba.int64
    read = numba.types.Array(real, 2, "A", readonly=True)
    signature = numba.boolean(read, read, real[:, ::1], word, word, integer, word, word)

    def product_alone(x, y, out):  # type: ignore[no-untyped-def]
        """The same steps one after the other, with the same bits."""
        (m, k), n, size = x.shape, y.shape[1], out.itemsize
        transpose_x, transpose_y = x.strides[1] != size, y.strides[1] != size
        if x.strides != ((size, m * size) if transpose_x else (k * size, size)):
            return False
        if y.strides != ((size, k * size) if transpose_y else (n * size, size)):
            return False
        at = address_of(x), address_of(y), address_of(out)
        leading = m if transpose_x else k, k if transpose_y else n
        words = gemm_words(name, at, (m, n, k), (transpose_x, transpose_y), leading, workers())
        call(kernel, workers(), np.array(words, np.uint64))
        return True

    run = kept(lambda keep: numba.njit(signature, parallel=True, nogil=True, cache=keep)(product))
    gemm = blas.sgemm if name == "float32" else blas.dgemm
    rest = (kernel.address, gemm, workers(), blas.set_threads, blas.get_threads)
    return lambda x, y, out: product_alone(x, y, out) if is_alone() else run(x, y, out, *rest)
