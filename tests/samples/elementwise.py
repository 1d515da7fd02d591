"""Samples: arithmetic and functions of one element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, distinct, given, gives, halves, normal, positive

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _nonzero_halves(*shapes: tuple[int, ...]) -> Any:
    return lambda rng: tuple(rng.choice([-2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2], shape) for shape in shapes)


def _ties(rng: np.random.Generator) -> tuple[Any, ...]:
    return np.array([1.0, 2.0, -1.0]), np.array([1.0, 0.0, 3.0])


def _integers(*shapes: tuple[int, ...]) -> Any:
    return lambda rng: tuple(rng.integers(-5, 6, shape) for shape in shapes)


def _edges(rng: np.random.Generator) -> tuple[Any, ...]:
    return (np.array([-800.0, -90.0, -20.0, -1.0, 0.0, 1.0, 20.0, 90.0, 800.0]),)


def _binary(op: str, reference: Any, *, divides: bool = False) -> list[Sample]:
    second = _nonzero_halves if divides else halves
    return [
        Sample(op, "vector", positive((5,), (5,)) if divides else normal((5,), (5,)), reference),
        Sample(op, "matrix", positive((2, 3), (2, 3)) if divides else normal((2, 3), (2, 3)), reference),
        Sample(op, "scalar", positive((), ()), reference),
        Sample(op, "empty", normal((0, 3), (0, 3)), reference),
        Sample(op, "exact", lambda rng: (*halves((4,))(rng), *second((4,))(rng)), reference, exact=True),
    ]


SAMPLES = [
    *_binary("add", lambda x, y: x + y),
    *_binary("sub", lambda x, y: x - y),
    *_binary("mul", lambda x, y: x * y),
    *_binary("div", lambda x, y: x / y, divides=True),
    Sample("add", "integers", _integers((4,), (4,)), lambda x, y: x + y, order=0),
    Sample("mul", "integers", _integers((4,), (4,)), lambda x, y: x * y, order=0),
    Sample("div", "by zero", given([1.0, -1.0, 0.0], np.zeros(3)), gives([np.inf, -np.inf, np.nan]), order=0),
    Sample("maximum", "distinct", distinct((2, 3), (2, 3)), lambda x, y: np.where(x > y, x, y)),
    Sample("maximum", "ties", _ties, lambda x, y: np.where(x > y, x, y), order=0),
    Sample("maximum", "integers", _integers((4,), (4,)), lambda x, y: np.where(x > y, x, y), order=0),
    Sample("maximum", "exact", distinct((4,), (4,)), lambda x, y: np.where(x > y, x, y), exact=True),
    Sample("minimum", "distinct", distinct((2, 3), (2, 3)), lambda x, y: np.where(x < y, x, y)),
    Sample("minimum", "ties", _ties, lambda x, y: np.where(x < y, x, y), order=0),
    Sample("minimum", "exact", distinct((4,), (4,)), lambda x, y: np.where(x < y, x, y), exact=True),
    Sample("neg", "matrix", normal((2, 3)), lambda x: -x),
    Sample("neg", "integers", _integers((3,)), lambda x: -x, order=0),
    Sample("neg", "exact", halves((3,)), lambda x: -x, exact=True),
    Sample("scale", "float", normal((2, 3)), lambda x, c: c * x, c=0.3),
    Sample("scale", "zero", normal((3,)), lambda x, c: c * x, c=0),
    Sample("scale", "exact", halves((3,)), lambda x, c: c * x, c=-2.5, exact=True),
    Sample("abs", "away from 0", distinct((2, 3)), lambda x: np.where(x < 0, -x, x)),
    Sample("abs", "exact", distinct((5,)), lambda x: np.where(x < 0, -x, x), exact=True),
    Sample("sqrt", "positive", positive((2, 3)), lambda x: x**0.5),
    Sample("sqrt", "edges", given([0.0, -1.0, 4.0]), gives([0.0, np.nan, 2.0]), order=0),
    Sample("exp", "matrix", normal((2, 3)), lambda x: np.array([math.exp(v) for v in x.flat]).reshape(x.shape)),
    Sample("log", "positive", positive((2, 3)), lambda x: np.array([math.log(v) for v in x.flat]).reshape(x.shape)),
    Sample("log", "edges", given([0.0, -1.0, 1.0]), gives([-np.inf, np.nan, 0.0]), order=0),
    Sample("inv", "positive", positive((2, 3)), lambda x: 1 / x),
    Sample("inv", "exact", _nonzero_halves((4,)), lambda x: 1 / x, exact=True),
    Sample("reciprocal", "positive", positive((2, 3)), lambda x: 1 / x),
    Sample("square", "matrix", normal((2, 3)), lambda x: x * x),
    Sample("square", "integers", _integers((3,)), lambda x: x * x, order=0),
    Sample("rsqrt", "positive", positive((2, 3)), lambda x: x**-0.5),
    Sample("rsqrt", "edges", given([0.0, -1, 4]), gives([np.inf, np.nan, 0.5]), order=0),
    Sample("sin", "matrix", normal((2, 3)), lambda x: np.array([math.sin(v) for v in x.flat]).reshape(x.shape)),
    Sample("cos", "matrix", normal((2, 3)), lambda x: np.array([math.cos(v) for v in x.flat]).reshape(x.shape)),
    Sample("tanh", "matrix", normal((2, 3)), lambda x: np.array([math.tanh(v) for v in x.flat]).reshape(x.shape)),
    Sample("tanh", "edges", _edges, lambda x: np.array([math.tanh(v) for v in x]), order=0),
    Sample("sigmoid", "matrix", normal((2, 3)), lambda x: 1 / (1 + np.exp(-x))),
    Sample(
        "sigmoid",
        "edges",
        _edges,
        lambda x: np.array([1 / (1 + math.exp(-v)) if v > -700 else 0.0 for v in x]),
        order=0,
        float32=(1.3e-6, 1e-37),
    ),
    Sample("softplus", "matrix", normal((2, 3)), lambda x: np.log(1 + np.exp(x))),
    Sample(
        "softplus",
        "edges",
        _edges,
        lambda x: np.array([v if v > 100 else math.log1p(math.exp(v)) for v in x]),
        order=0,
        float32=(1.3e-6, 1e-37),
    ),
    Sample("erf", "matrix", normal((2, 3)), lambda x: _erf(x)),
    Sample("erf", "edges", given([-8.0, -1e-8, 0.0, 1e-8, 0.4, 1.2, 3.0, 8.0]), _erf, order=0),
    Sample("pow", "cube", normal((2, 3)), lambda x, exponent: x * x * x, exponent=3),
    Sample("pow", "square", normal((2, 3)), lambda x, exponent: x * x, exponent=2),
    Sample("pow", "one", normal((3,)), lambda x, exponent: x, exponent=1),
    Sample("pow", "zero", normal((3,)), lambda x, exponent: np.ones_like(x), exponent=0),
    Sample("pow", "root", positive((3,)), lambda x, exponent: np.sqrt(x), exponent=0.5),
    Sample("pow", "negative", positive((3,)), lambda x, exponent: 1 / x**1.5, exponent=-1.5),
    Sample("pow", "inverse", positive((3,)), lambda x, exponent: 1 / x, exponent=-1),
    Sample("pow", "square at 0", given(np.zeros(2)), lambda x, exponent: x, exponent=2),
    Sample("pow", "exact", _nonzero_halves((4,)), lambda x, exponent: x**-3, exponent=-3, exact=True),
    Sample("power", "positive", positive((2, 3), (2, 3)), lambda x, y: np.exp(y * np.log(x))),
    Sample(
        "power",
        "edges",
        given([0.0, 0.0, -2.0, -8.0, 2.0, 0.0], [0.0, 2.0, 3.0, 0.5, -1.0, -1.0]),
        gives([1.0, 0.0, -8.0, np.nan, 0.5, np.inf]),
        order=0,
    ),
    Sample(
        "clamp",
        "inside and outside",
        distinct((3, 3)),
        lambda x, lo, hi: np.array([min(max(v, lo), hi) for v in x.flat]).reshape(x.shape),
        lo=-0.21,
        hi=0.17,
    ),
    Sample(
        "clamp",
        "exact",
        halves((6,)),
        lambda x, lo, hi: np.array([min(max(v, lo), hi) for v in x]),
        lo=-0.25,
        hi=0.75,
        exact=True,
    ),
    Sample(
        "clamp",
        "at the bounds",
        given([-1.0, -0.5, 0.0, 0.5, 1.0]),
        lambda x, lo, hi: np.clip(x, lo, hi),
        lo=-0.5,
        hi=0.5,
        order=0,
    ),
    Sample(
        "safe_log", "at the bound", given([0.25, 0.5, 1.0]), lambda x, eps: np.log(np.maximum(x, eps)), eps=0.5, order=0
    ),
    Sample("safe_log", "above", positive((2, 3)), lambda x, eps: np.log(x), eps=1e-3),
    Sample(
        "safe_log",
        "below",
        given([-1.0, 0.0, 1e-9, 0.2, 3.0]),
        lambda x, eps: np.log(np.where(x < eps, eps, x)),
        eps=1e-3,
        order=0,
    ),
]

_INT = lambda: (np.arange(3), np.arange(3))  # noqa: E731  a table reads better than three functions

BAD_CALLS = [
    BadCall("power", "integers", given(np.arange(3), np.arange(3)), r"x must be a float tensor but is \(3,\) int64"),
    BadCall("add", "shapes", given(np.ones((2, 3)), np.ones((2, 4))), r"axis 1 has 3 and 4"),
    BadCall("mul", "ranks", given(np.ones((3,)), np.ones((2, 3))), r"ranks 1 and 2 differ; named ops never broadcast"),
    BadCall("add", "never broadcasts", given(np.ones((1, 3)), np.ones((2, 3))), r"axis 0 has 1 and 2"),
    BadCall("add", "dtypes", given(np.ones(3), np.arange(3)), r"x is float32 but y is int64; cast one of them"),
    BadCall(
        "add", "masks", given(np.ones(3, bool), np.ones(3, bool)), r"x must be a tensor of numbers but is \(3,\) bool"
    ),
    BadCall("div", "integers", _INT, r"x must be a float tensor but is \(3,\) int64; cast it"),
    BadCall("exp", "integers", given(np.arange(3)), r"x must be a float tensor but is \(3,\) int64"),
    BadCall("scale", "integers", given(np.arange(3)), r"x must be a float tensor", c=2.0),
    BadCall("maximum", "shapes", given(np.ones(2), np.ones(3)), r"x is \(2,\) but y is \(3,\)"),
]
