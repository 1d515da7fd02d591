"""Kernels: determinants and cofactors, with LAPACK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.determinants import COFACTOR, DET, SLOGDET
from ....ops.primitive import Primitive
from .solving import nan_unless_finite

Array = npt.NDArray[Any]


def without_others(x: Array) -> tuple[Array, Array]:
    """Return x with zeros for matrices that are not finite, for which LAPACKs differ, and the mask of finite ones."""
    finite: Array = np.asarray(np.isfinite(x).all(axis=(-2, -1)))
    return (x if finite.all() else np.where(finite[..., None, None], x, np.zeros((), x.dtype))), finite


def det(x: Array) -> Array:
    safe, finite = without_others(x)
    return np.where(finite, np.linalg.det(safe), np.full((), np.nan, x.dtype))


def slogdet(x: Array) -> tuple[Array, Array]:
    safe, finite = without_others(x)
    sign, logarithm = np.linalg.slogdet(safe)
    none = np.full((), np.nan, x.dtype)
    return np.where(finite, sign, none), np.where(finite, logarithm, none)


def cofactor(x: Array) -> Array:
    """Compute cofactors by elimination with full pivoting: R·x·Q = U with det(R·Q) = ±1, so adj(x) = ±Q·adj(U)·R.

    U = [[U₁, u], [0, d]] has the adjugate p·[[d·U₁⁻¹, -U₁⁻¹·u], [0, 1]], p = det(U₁): there is no division by d, which
    is 0 for a singular x.
    """
    n = x.shape[-1]
    if not x.size:
        return np.empty(x.shape, x.dtype)
    safe, _ = without_others(x)
    a = np.array(safe, order="C").reshape(-1, n, n)
    one, each = np.ones((), x.dtype), np.arange(a.shape[0])
    rows = np.empty(a.shape, x.dtype)
    rows[...] = np.eye(n, dtype=x.dtype)
    side, columns = np.ones(a.shape[0], x.dtype), []
    for j in range(n):
        sizes = np.abs(a[:, j:, j:]).reshape(a.shape[0], -1)
        place = np.argmax(sizes, axis=1)
        row, column = place // (n - j) + j, place % (n - j) + j
        columns.append(column)
        for matrix in (a, rows):
            held = matrix[:, j].copy()
            matrix[:, j] = matrix[each, row]
            matrix[each, row] = held
        held = a[:, :, j].copy()
        a[:, :, j] = a[each, :, column]
        a[each, :, column] = held
        side *= np.where((row == j) == (column == j), one, -one)
        pivot = a[:, j, j]
        if j < n - 1:
            side *= pivot
        factors = a[:, j + 1 :, j : j + 1] / np.where(pivot == 0, one, pivot)[:, None, None]
        a[:, j + 1 :, j:] -= factors * a[:, j : j + 1, j:]
        rows[:, j + 1 :] -= factors * rows[:, j : j + 1]
    diagonal = np.where((side == 0)[:, None, None], one, a)
    upper, last = diagonal[:, : n - 1], n - 1
    rows[:, :last] = a[:, last:, last:] * rows[:, :last] - a[:, :last, last:] * rows[:, last:]
    for i in reversed(range(last)):
        rows[:, i : i + 1] -= np.matmul(upper[:, i : i + 1, i + 1 : last], rows[:, i + 1 : last])
        rows[:, i] /= upper[:, i, i : i + 1]
    for j in reversed(range(n)):
        held = rows[:, j].copy()
        rows[:, j] = rows[each, columns[j]]
        rows[each, columns[j]] = held
    rows *= side[:, None, None]
    return nan_unless_finite(np.swapaxes(rows, 1, 2).reshape(x.shape), x)


KERNELS: dict[Primitive, Callable[..., Any]] = {DET: det, SLOGDET: slogdet, COFACTOR: cofactor}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
