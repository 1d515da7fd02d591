"""Kernels: linear systems, and the Cholesky factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.solving import CHOLESKY, SOLVE, TRIANGULAR_SOLVE
from ....ops.primitive import Primitive

Array = npt.NDArray[Any]


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


KERNELS: dict[Primitive, Callable[..., Any]] = {
    SOLVE: solve,
    TRIANGULAR_SOLVE: triangular_solve,
    CHOLESKY: cholesky,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
