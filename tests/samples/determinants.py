"""Samples: determinants and cofactors."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, normal


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


_SINGULAR = np.array(
    [
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [5.0, 7.0, 9.0]],
        [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 6.0, 9.0]],
        [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    ]
)
_ZERO_PIVOTS = np.array([[[0.0, 1.0], [2.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
_CLOSE = {"float64": (1e-10, 1e-10), "float32": (1e-5, 2e-5)}

SAMPLES = [
    Sample("det", "stack", _regular(2), _leibniz, float32=(1e-5, 1e-5)),
    Sample("det", "matrix", _regular(), _leibniz, float32=(1e-5, 1e-5)),
    Sample("det", "one", normal((2, 1, 1)), lambda x: x[..., 0, 0], order=1),  # its cofactor is 1
    Sample("det", "no entries", normal((2, 0, 0)), lambda x: np.ones(x.shape[:-2])),
    Sample("det", "no matrices", normal((0, 2, 2)), lambda x: np.ones(x.shape[:-2])),
    Sample("det", "singular", lambda rng: (_SINGULAR,), lambda x: np.zeros(x.shape[:-2]), order=1, **_CLOSE),  # type: ignore[arg-type]
    Sample("cofactor", "stack", _regular(2), _cofactors, float32=(1e-5, 1e-5)),
    Sample("cofactor", "matrix", _regular(), _cofactors, float32=(1e-5, 1e-5)),
    Sample("cofactor", "larger", _regular(n=5), _cofactors, order=1, float32=(1e-4, 1e-4)),
    Sample("cofactor", "singular", lambda rng: (_SINGULAR,), _cofactors, order=0, **_CLOSE),  # type: ignore[arg-type]
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
        lambda rng: (np.diag([-1e30, 1e30, 1e30, 1e-20]),),
        lambda x: (np.float64(-1), np.log(1e70)),
        order=0,
    ),
    Sample(
        "slogdet",
        "exchanged, and singular",
        lambda rng: (_ZERO_PIVOTS,),
        lambda x: (np.array([-1.0, 0.0]), np.array([np.log(2), -np.inf])),
        order=0,
    ),
    Sample("slogdet", "no entries", normal((2, 0, 0)), lambda x: (np.ones(2), np.zeros(2))),
]

BAD_CALLS = [
    BadCall("det", "not square", lambda: (np.ones((2, 3)),), "2 rows and 3 columns"),
    BadCall("slogdet", "vector", lambda: (np.ones(2),), r"must be \(..., n, n\) but is \(2,\)"),
    BadCall("cofactor", "integers", lambda: (np.ones((2, 2), int),), "x must be a float tensor"),
]
