"""Kernels: matrix products, also in groups, solutions, determinants and factorisations."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from ....compiler.native import KernelSequence, find_blas, multiply
from ....ops.factorization import EIGH, QR, SVD
from ....ops.host_arrays import Array, address_of, find_owner, packed
from ....ops.linalg import CHOLESKY, COFACTOR, DET, SLOGDET, SOLVE, TRIANGULAR_SOLVE
from ....ops.matmul import BMM, GROUPED_MATMUL, GROUPED_OUTER, LINEAR, MATMUL
from ....ops.primitive import Primitive
from ..loops.grouped import grouped_step

# Products -------------------------------------------------------------------------------------------------------------


def linear(weight: Array, *rest: Array, has_bias: bool, product: Callable[[Array, Array], Array] = np.matmul) -> Array:
    """Compute one product for all leading axes of x, with the bias added in place."""
    x = rest[-1]
    rows = x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    out = product(rows, weight.T)
    if has_bias:
        out += rest[0]
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], weight.shape[0])


def bmm(x: Array, y: Array) -> Array:
    """Compute the products of two stacks. A stack with itself, transposed, is read from a copy: NumPy has the BLAS fill
    half of each product and copies the other half by single elements, which takes up to eight times as long."""
    if x.strides[-1] == y.strides[-2] and x.strides[-2] == y.strides[-1] and find_owner(x) is find_owner(y):
        y = np.array(y)
    return np.matmul(x, y)  # type: ignore[no-any-return]


def exact_matmul(x: Array, y: Array) -> Array:
    """Compute NumPy's product; its empty sum would be the integer 0."""
    return np.matmul(x, y) if x.shape[-1] else np.full((*x.shape[:-1], y.shape[-1]), Fraction(0), dtype=object)


# Products in groups ---------------------------------------------------------------------------------------------------


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


# Solutions ------------------------------------------------------------------------------------------------------------


def _each(f: Callable[..., Array], *stacks: Array) -> Array:
    """Apply f to whole stacks; if a matrix has no solution, one by one, with nan for that one."""
    try:
        return f(*stacks)
    except np.linalg.LinAlgError:
        out = np.full(stacks[-1].shape, np.nan, stacks[-1].dtype)
        for place in np.ndindex(out.shape[:-2]):
            try:
                out[place] = f(*[stack[place] for stack in stacks])
            except np.linalg.LinAlgError:
                continue
        return out


def nan_unless_finite(out: Array, x: Array) -> Array:
    """Return out with nan for each matrix of x that is not finite: LAPACKs differ in their results for those."""
    finite = np.isfinite(x).all(axis=(-2, -1))
    if not finite.all():
        out[~finite] = np.nan
    return out


def solve(a: Array, b: Array) -> Array:
    return nan_unless_finite(_each(np.linalg.solve, a, b), a)


def cholesky(x: Array) -> Array:
    out = _each(np.linalg.cholesky, x)
    return nan_unless_finite(out, out)  # an entry that is not finite leaves one behind; the upper triangle is not read


def triangular_solve(a: Array, b: Array, lower: bool, transpose: bool) -> Array:
    """Substitute row by row, for all matrices and columns at once."""
    if transpose:
        a = np.swapaxes(a, -1, -2)
    n = a.shape[-1]
    forward = lower != transpose
    out = np.empty(b.shape, b.dtype)
    for i in range(n) if forward else reversed(range(n)):
        known = slice(0, i) if forward else slice(i + 1, n)
        taken = np.matmul(a[..., i : i + 1, known], out[..., known, :])
        rest = np.subtract(b[..., i : i + 1, :], taken)
        out[..., i : i + 1, :] = np.divide(rest, a[..., i : i + 1, i : i + 1])
    return out


# Determinants ---------------------------------------------------------------------------------------------------------


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

    U = [[U₁, u], [0, d]] has the adjugate p·[[d·U₁⁻¹, -U₁⁻¹·u], [0, 1]], p = det(U₁): nothing is divided by d, which
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


# Factorisations -------------------------------------------------------------------------------------------------------


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


def _each_with_several(f: Callable[[Array], tuple[Array, ...]], x: Array) -> tuple[Array, ...]:
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
    values, vectors = _each_with_several(np.linalg.eigh, safe)
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
    u, s, vh = _each_with_several(_reduced, safe)
    signs = signs_of(u)
    u *= signs
    vh *= np.swapaxes(signs, -1, -2)
    without_answer(finite, u, s, vh)
    return u, s, vh


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Callable[..., Any]] = {
    MATMUL: np.matmul,
    BMM: bmm,
    LINEAR: linear,
    SOLVE: solve,
    TRIANGULAR_SOLVE: triangular_solve,
    CHOLESKY: cholesky,
    DET: det,
    SLOGDET: slogdet,
    COFACTOR: cofactor,
    EIGH: eigh,
    QR: qr,
    SVD: svd,
}

FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    MATMUL: multiply,
    LINEAR: partial(linear, product=multiply),
    **({} if find_blas() is None else {GROUPED_MATMUL: grouped_matmul, GROUPED_OUTER: grouped_outer}),
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {MATMUL: exact_matmul, BMM: exact_matmul}
