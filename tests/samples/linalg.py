"""Samples: linear systems, the Cholesky factor, determinants and cofactors."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, given, gives, normal


def _system(*leading: int, n: int = 3, k: int = 2) -> Any:
    return lambda rng: (rng.uniform(-1, 1, (*leading, n, n)) + 3 * np.eye(n), rng.standard_normal((*leading, n, k)))


def _by_rule(a: Any, b: Any) -> Any:
    """By Cramer's rule, from the determinants."""
    out = np.empty(b.shape)
    for place in np.ndindex(b.shape[:-2]):
        for i in range(b.shape[-2]):
            for k in range(b.shape[-1]):
                other = a[place].copy()
                other[:, i] = b[place][:, k]
                out[(*place, i, k)] = np.linalg.det(other) / np.linalg.det(a[place])
    return out


def _triangular(a: Any, b: Any, lower: bool = True, transpose: bool = False) -> Any:
    triangle = np.tril(a) if lower else np.triu(a)
    return _by_rule(np.swapaxes(triangle, -1, -2) if transpose else triangle, b)


def _definite(ops: Any, x: Any) -> Any:
    """The factor of x·xᵀ + 2."""
    square = ops.bmm(x, ops.permute(x, axes=(0, 2, 1)))
    return ops.cholesky(ops.add(square, ops.const(np.broadcast_to(2 * np.eye(3), (2, 3, 3)))))


def _factor(x: Any) -> Any:
    """By the definition, a column after the other."""
    x = x @ np.swapaxes(x, 1, 2) + 2 * np.eye(3)
    out = np.zeros(x.shape)
    for j in range(3):
        rest = x - out @ np.swapaxes(out, 1, 2)
        out[:, j:, j] = rest[:, j:, j] / np.sqrt(rest[:, j, j])[:, None]
    return out


_BAD = np.array([[[4.0, 9.0], [2.0, 5.0]], [[1.0, 0.0], [2.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]])
_SINGULAR = np.array([[[0.0, 1.0], [2.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])

SAMPLES = [
    Sample("solve", "stack", _system(2), _by_rule, float32=(1e-5, 1e-5)),
    Sample("solve", "matrix", _system(k=1), _by_rule, float32=(1e-5, 1e-5)),
    Sample("solve", "no unknowns", normal((2, 0, 0), (2, 0, 3)), lambda a, b: b),
    Sample("solve", "no matrices", normal((0, 2, 2), (0, 2, 3)), lambda a, b: b),
    Sample(
        "solve",
        "exchanged, and singular",
        given(_SINGULAR, [[[1.0], [4.0]], [[1.0], [2.0]]]),
        gives([[[1.5], [1.0]], [[np.nan], [np.nan]]]),
        order=0,
    ),
    Sample("triangular_solve", "stack", _system(2), _triangular, float32=(1e-5, 1e-5)),
    *(
        Sample(
            "triangular_solve",
            f"{lower} {transpose}",
            _system(),
            _triangular,
            lower=lower,
            transpose=transpose,
            float32=(1e-5, 1e-5),
        )
        for lower, transpose in ((False, False), (True, True), (False, True))
    ),
    Sample("triangular_solve", "no unknowns", normal((2, 0, 0), (2, 0, 3)), lambda a, b: b),
    Sample("cholesky", "stack", normal((2, 3, 3)), _factor, call=_definite, float32=(1e-5, 1e-5)),
    Sample(
        "cholesky",
        "lower triangle, and not definite",
        given(_BAD),
        gives([[[2.0, 0.0], [1.0, 2.0]], [[np.nan] * 2] * 2, [[np.nan] * 2] * 2]),
        order=0,
    ),
    Sample("cholesky", "empty", normal((2, 0, 0)), lambda x: x),
]

BAD_CALLS = [
    BadCall("solve", "vector", given(np.ones((2, 2)), np.ones(2)), r"a is \(2, 2\) but b is \(2,\).* a column"),
    BadCall("solve", "rows", given(np.ones((2, 2)), np.ones((3, 1))), r"a is \(2, 2\) but b is \(3, 1\)"),
    BadCall("triangular_solve", "not square", given(np.ones((2, 3)), np.ones((2, 1))), "2 rows and 3 columns"),
    BadCall("cholesky", "vector", given(np.ones(2)), r"must be \(..., n, n\) but is \(2,\)"),
]


# Determinants and cofactors -------------------------------------------------------------------------------------------


def _leibniz(x: Any) -> Any:
    """By the sum over all permutations."""
    out = np.zeros(x.shape[:-2])
    n = x.shape[-1]
    for order in permutations(range(n)):
        sign = np.prod([1.0 if order[i] < order[j] else -1.0 for j in range(n) for i in range(j)])
        out = out + sign * np.prod([x[..., i, k] for i, k in enumerate(order)], axis=0)
    return out


def _cofactors(x: Any) -> Any:
    """From the determinants of the minors."""
    n = x.shape[-1]
    out = np.empty(x.shape)
    for i in range(n):
        for j in range(n):
            out[..., i, j] = (-1) ** (i + j) * _leibniz(np.delete(np.delete(x, i, -2), j, -1))
    return out


def _regular(*leading: int, n: int = 3) -> Any:
    return lambda rng: (rng.uniform(-1, 1, (*leading, n, n)) + 2 * np.eye(n)[::-1],)


_DEPENDENT = np.array(
    [
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [5.0, 7.0, 9.0]],
        [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 6.0, 9.0]],
        [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    ]
)
_ZERO_PIVOTS = np.array([[[0.0, 1.0], [2.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
_CLOSE: Any = {"float64": (1e-10, 1e-10), "float32": (1e-5, 2e-5)}

SAMPLES += [
    Sample("det", "stack", _regular(2), _leibniz, float32=(1e-5, 1e-5)),
    Sample("det", "matrix", _regular(), _leibniz, float32=(1e-5, 1e-5)),
    Sample("det", "one", normal((2, 1, 1)), lambda x: x[..., 0, 0], order=1),  # its cofactor is 1
    Sample("det", "no entries", normal((2, 0, 0)), lambda x: np.ones(x.shape[:-2])),
    Sample("det", "no matrices", normal((0, 2, 2)), lambda x: np.ones(x.shape[:-2])),
    Sample("det", "singular", given(_DEPENDENT), lambda x: np.zeros(x.shape[:-2]), order=1, **_CLOSE),
    Sample("cofactor", "stack", _regular(2), _cofactors, float32=(1e-5, 1e-5)),
    Sample("cofactor", "matrix", _regular(), _cofactors, float32=(1e-5, 1e-5)),
    Sample("cofactor", "larger", _regular(n=5), _cofactors, order=1, float32=(1e-4, 1e-4)),
    Sample("cofactor", "singular", given(_DEPENDENT), _cofactors, order=0, **_CLOSE),
    Sample("cofactor", "no entries", normal((2, 0, 0)), lambda x: x),
    Sample(
        "slogdet",
        "stack",
        _regular(2),
        lambda x: (np.sign(_leibniz(x)), np.log(np.abs(_leibniz(x)))),
        float32=(1e-5, 1e-5),
    ),
    Sample("slogdet", "matrix", _regular(), lambda x: (np.sign(_leibniz(x)), np.log(np.abs(_leibniz(x))))),
    Sample(
        "slogdet",
        "beyond the greatest number",
        given(np.diag([-1e30, 1e30, 1e30, 1e-20])),
        lambda x: (np.float64(-1), np.log(1e70)),
        order=0,
    ),
    Sample(
        "slogdet", "exchanged, and singular", given(_ZERO_PIVOTS), gives([-1.0, 0.0], [np.log(2), -np.inf]), order=0
    ),
    Sample("slogdet", "no entries", normal((2, 0, 0)), gives(np.ones(2), np.zeros(2))),
]

BAD_CALLS += [
    BadCall("det", "not square", given(np.ones((2, 3))), "2 rows and 3 columns"),
    BadCall("slogdet", "vector", given(np.ones(2)), r"must be \(..., n, n\) but is \(2,\)"),
    BadCall("cofactor", "integers", given(np.ones((2, 2), int)), "x must be a float tensor"),
]
