"""The product of two arrays, computed at once as one step of the pool."""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Any, final

import numpy as np

from ..host import Array, address_of, owner_of
from .blas import find_blas
from .gemm import WORDS, cut_product, gemm_kernel, gemm_words
from .pool import KernelCall, KernelSequence, workers

LEAST = 1 << 21  # multiplications; below, the overhead exceeds the gain of a second thread

_MOST_IDLE = 8  # idle calls kept for reuse, one per concurrent Python thread


def multiply(x: Array, y: Array) -> Array:
    """Return x·y for matrices of one float dtype: divided among the workers if large enough, else by NumPy."""
    if x.shape[0] * y.size >= LEAST:
        product = _product(x.dtype.char)
        if product is not None:
            left, right = _stored(x), _stored(y)
            if left is not None and right is not None:
                return product(x, y, left, right)
    return np.matmul(x, y)  # type: ignore[no-any-return]


def _stored(x: Array) -> tuple[bool, int] | None:
    """Return whether a matrix is stored transposed, and its leading dimension; None if it is not packed."""
    (rows, columns), size = x.shape, x.itemsize
    if x.strides == (columns * size, size):
        return False, columns
    return (True, rows) if x.strides == (size, rows * size) else None


@cache
def _product(character: str) -> _Product | None:
    dtype = {"f": "float32", "d": "float64"}.get(character, "")
    return _Product(dtype) if dtype and find_blas() is not None else None


@final
class _Product:
    """Products of one dtype; argument words are reused by later calls."""

    __slots__ = ("_dtype", "_idle")

    def __init__(self, dtype: str):
        self._dtype = dtype
        self._idle: dict[int, list[_Call]] = {}  # by their number of parts

    def __call__(self, x: Array, y: Array, left: tuple[bool, int], right: tuple[bool, int]) -> Array:
        sizes = x.shape[0], y.shape[1], x.shape[1]
        cut = cut_product(self._dtype, *sizes)
        if cut.unit and workers() == 1 and owner_of(x) is not owner_of(y):  # one call, as it is for NumPy
            return np.matmul(x, y)  # type: ignore[no-any-return]
        out = np.empty((x.shape[0], y.shape[1]), x.dtype)
        at = address_of(x), address_of(y), address_of(out)
        idle = self._idle.setdefault(cut.parts, [])
        try:
            call = idle.pop()
        except IndexError:  # the first one, or other threads are using all
            call = _Call(self._dtype, cut.parts)
        call.write(*gemm_words(self._dtype, at, sizes, (left[0], right[0]), (left[1], right[1]), cut))
        call.action()
        if len(idle) < _MOST_IDLE:
            idle.append(call)
        return out


@final
class _Call:
    """A schedule of one product: `write` sets its arguments, `action` runs it."""

    __slots__ = ("write", "action", "_kept")

    def __init__(self, dtype: str, parts: int):
        kernel, words = gemm_kernel(dtype), np.zeros(WORDS, np.int64)
        assert kernel is not None
        schedule = KernelSequence([KernelCall(kernel, parts, words.view(np.uint64))])
        self.write: Any = lambda *values: _FORMAT.pack_into(memoryview(words), 0, *values)  # type: ignore[arg-type]
        self.action = schedule.action
        self._kept = schedule, words


_FORMAT = Struct(f"{WORDS}q")
