"""Kernels: orthogonal factors, with LAPACK, with fixed signs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.factorizations import EIGH, QR, SVD
from ....ops.primitive import Primitive
from .determinants import without_others

Array = npt.NDArray[Any]

LEADING = 0.618
"""An entry counts as large from this fraction of a vector's maximum on, since rounding may change which of two is the
maximum."""


def signs_of(vectors: Array) -> Array:
    """Return the signs of the columns of matrices, from the first large entry of each: (..., m, k) -> (..., 1, k)."""
    if not vectors.size:
        return np.ones((*vectors.shape[:-2], 1, vectors.shape[-1]), vectors.dtype)
    sizes = np.abs(vectors)
    great = np.greater_equal(sizes, sizes.max(axis=-2, keepdims=True) * vectors.dtype.type(LEADING))
    first = np.take_along_axis(vectors, np.argmax(great, axis=-2, keepdims=True), axis=-2)
    one = np.ones((), vectors.dtype)
    return np.where(first < 0, -one, one)


def without_answer(finite: Array, *factors: Array) -> None:
    """Write nan for the matrices that are not finite."""
    if not finite.all():
        for factor in factors:
            factor[~finite] = np.nan


def _each(f: Callable[[Array], tuple[Array, ...]], x: Array) -> tuple[Array, ...]:
    """Apply f to whole stacks; if a matrix does not converge, one by one, with nan for that one."""
    try:
        return f(x)
    except np.linalg.LinAlgError:
        factors = f(np.zeros_like(x))
        for place in np.ndindex(x.shape[:-2]):
            found: tuple[Any, ...] = (np.nan,) * len(factors)
            with suppress(np.linalg.LinAlgError):
                found = f(x[place])
            for factor, one in zip(factors, found):
                factor[place] = one
        return factors


def eigh(x: Array) -> tuple[Array, Array]:
    n = x.shape[-1]
    above = np.arange(n)[:, None] < np.arange(n)
    safe, finite = without_others(np.where(above, np.zeros((), x.dtype), x))
    values, vectors = _each(np.linalg.eigh, safe)
    vectors *= signs_of(vectors)
    without_answer(finite, values, vectors)
    return values, vectors


def qr(x: Array) -> tuple[Array, Array]:
    safe, finite = without_others(x)
    q, r = np.linalg.qr(safe if safe.flags.c_contiguous else safe.copy())  # of another order the factors would be too
    zero, one, k = np.zeros((), x.dtype), np.ones((), x.dtype), q.shape[-1]
    diagonal = np.where(np.eye(k, dtype=np.bool_), r[..., :k], zero).sum(axis=-1)
    signs = np.where(diagonal < 0, -one, one)
    q *= signs[..., None, :]
    r *= signs[..., None]
    r += zero  # removes -0 below the diagonal
    without_answer(finite, q, r)
    return q, r


def _reduced(x: Array) -> tuple[Array, ...]:
    return np.linalg.svd(x, full_matrices=False)


def svd(x: Array) -> tuple[Array, ...]:
    safe, finite = without_others(x)
    u, s, vh = _each(_reduced, safe)
    signs = signs_of(u)
    u *= signs
    vh *= np.swapaxes(signs, -1, -2)
    without_answer(finite, u, s, vh)
    return u, s, vh


KERNELS: dict[Primitive, Callable[..., Any]] = {EIGH: eigh, QR: qr, SVD: svd}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
