"""Samples: linear systems, and the Cholesky factor."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, normal


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
        lambda rng: (_SINGULAR, np.array([[[1.0], [4.0]], [[1.0], [2.0]]])),
        lambda a, b: np.array([[[1.5], [1.0]], [[np.nan], [np.nan]]]),
        order=0,
    ),
    Sample("triangular_solve", "stack", _system(2), _triangular, float32=(1e-5, 1e-5)),
    *(
        Sample(
            "triangular_solve",
            f"{lower} {transpose}",
            _system(),
            _triangular,
            {"lower": lower, "transpose": transpose},
            float32=(1e-5, 1e-5),
        )
        for lower, transpose in ((False, False), (True, True), (False, True))
    ),
    Sample("triangular_solve", "no unknowns", normal((2, 0, 0), (2, 0, 3)), lambda a, b: b),
    Sample("cholesky", "stack", normal((2, 3, 3)), _factor, call=_definite, float32=(1e-5, 1e-5)),
    Sample(
        "cholesky",
        "lower triangle, and not definite",
        lambda rng: (_BAD,),
        lambda x: np.array([[[2.0, 0.0], [1.0, 2.0]], [[np.nan] * 2] * 2, [[np.nan] * 2] * 2]),
        order=0,
    ),
    Sample("cholesky", "empty", normal((2, 0, 0)), lambda x: x),
]

BAD_CALLS = [
    BadCall("solve", "vector", lambda: (np.ones((2, 2)), np.ones(2)), r"a is \(2, 2\) but b is \(2,\).* a column"),
    BadCall("solve", "rows", lambda: (np.ones((2, 2)), np.ones((3, 1))), r"a is \(2, 2\) but b is \(3, 1\)"),
    BadCall("triangular_solve", "not square", lambda: (np.ones((2, 3)), np.ones((2, 1))), "2 rows and 3 columns"),
    BadCall("cholesky", "vector", lambda: (np.ones(2),), r"must be \(..., n, n\) but is \(2,\)"),
]
