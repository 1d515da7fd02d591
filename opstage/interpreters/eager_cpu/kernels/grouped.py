"""Kernels: products of rows with the matrix of their group. Without a BLAS to call they run by decomposition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....ops.catalogue.grouped import GROUPED_MATMUL, GROUPED_OUTER
from ....ops.primitive import Primitive
from ...host import Array, address_of, packed
from ...native import KernelSequence, find_blas
from ..loops.grouped import grouped_step


def grouped_matmul(x: Array, w: Array, ends: Array) -> Array:
    turned = not w.flags.c_contiguous and w.flags.aligned and np.swapaxes(w, 1, 2).flags.c_contiguous
    out = _new((len(x), w.shape[2]), x)
    return _computed(GROUPED_MATMUL, x, w if turned else packed(w), ends, out, turned)


def grouped_outer(x: Array, g: Array, ends: Array) -> Array:
    return _computed(GROUPED_OUTER, x, packed(g), ends, _new((len(ends), x.shape[1], g.shape[1]), x))


def _new(shape: tuple[int, ...], x: Array) -> Array:
    """Return a result, of zeros if there is nothing to add up."""
    return np.empty(shape, x.dtype) if x.size else np.zeros(shape, x.dtype)


def _computed(primitive: Primitive, x: Array, other: Array, ends: Array, out: Array, turned: bool = False) -> Array:
    if x.size and out.size:
        x, ends = packed(x), packed(ends.astype(np.int64, copy=False))
        sizes = (*x.shape, other.shape[-1], len(ends))
        at = address_of(x), address_of(other), address_of(ends), address_of(out)
        KernelSequence((grouped_step(primitive, x.dtype.name, sizes, at, turned),)).run()
    return out


KERNELS: dict[Primitive, Callable[..., Any]] = {}

FAST_KERNELS: dict[Primitive, Callable[..., Any]] = (
    {} if find_blas() is None else {GROUPED_MATMUL: grouped_matmul, GROUPED_OUTER: grouped_outer}
)

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
