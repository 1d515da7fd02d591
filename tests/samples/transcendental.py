"""Samples: powers, logarithms, and trigonometric and hyperbolic functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, given, normal, positive

_Function = Callable[[float], float]
_NUMBERS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 1e-10, -1e-10, 300.0, -300.0, 1e20, -1e20)
_EDGES = np.array([*_NUMBERS, math.inf, -math.inf, math.nan])


def _each(f: _Function) -> Any:
    return lambda x: np.array([f(v) for v in x.flat]).reshape(x.shape)


def _wide(f: Any) -> Any:
    """NumPy's own with more digits than a float64 has; at errors of the argument it gives inf and nan, as ours do."""

    def reference(*xs: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(*(np.asarray(x, np.longdouble) for x in xs)).astype(np.float64)

    return reference


def _unary(op: str, f: _Function, wide: Any, arrays: Any = None, edges: Any = _EDGES) -> list[Sample]:
    """In float32 nothing is lost either: what is near 0 is held to a relative bound."""
    return [
        Sample(op, "matrix", normal((2, 3)) if arrays is None else arrays, _each(f)),
        Sample(op, "edges", lambda rng: (edges,), _wide(wide), order=0, float64=(1e-14, 0.0), float32=(1.3e-6, 1e-37)),
    ]


def _inside(*shapes: tuple[int, ...]) -> Any:
    return lambda rng: tuple(rng.uniform(-0.9, 0.9, shape) for shape in shapes)


def _above_one(rng: np.random.Generator) -> tuple[Any, ...]:
    return (rng.uniform(1.2, 3.0, (2, 3)),)


_BELOW = np.array([v for v in _EDGES if abs(v) < 80 or not math.isfinite(v)])  # float32 has their exponentials
_ANGLES = np.array([v for v in _EDGES if abs(v) < 10 or not math.isfinite(v)])
_POWERS_OF_2 = np.array([*_EDGES, 2.0, 8.0, 2.0**29, 2.0**-20])
_POWERS_OF_10 = np.array([*_EDGES, 10.0, 1000.0, 1e15])
_WHOLE = np.array([*_BELOW, 10.0, -7.0, 31.0])
_SIGNED = np.array([0.0, -0.0, 1.0, -1.0, 2e30, -2e30, 3e-30, math.inf, -math.inf, math.nan])
_PAIRS = np.array(np.meshgrid(_SIGNED, _SIGNED)).reshape(2, -1)

SAMPLES = [
    *_unary("expm1", math.expm1, np.expm1, edges=_BELOW),
    *_unary("log1p", math.log1p, np.log1p, positive((2, 3))),
    *_unary("exp2", lambda v: 2.0**v, np.exp2, edges=_WHOLE),
    *_unary("log2", math.log2, np.log2, positive((2, 3)), _POWERS_OF_2),
    *_unary("log10", math.log10, np.log10, positive((2, 3)), _POWERS_OF_10),
    *_unary("tan", math.tan, np.tan, edges=_ANGLES),
    *_unary("asin", math.asin, np.arcsin, _inside((2, 3))),
    *_unary("acos", math.acos, np.arccos, _inside((2, 3))),
    *_unary("atan", math.atan, np.arctan),
    *_unary("sinh", math.sinh, np.sinh, edges=_BELOW),
    *_unary("cosh", math.cosh, np.cosh, edges=_BELOW),
    *_unary("asinh", math.asinh, np.arcsinh),
    *_unary("acosh", math.acosh, np.arccosh, _above_one),
    *_unary("atanh", math.atanh, np.arctanh, _inside((2, 3))),
    Sample(
        "atan2",
        "matrix",
        normal((2, 3), (2, 3)),
        lambda y, x: np.array([math.atan2(a, b) for a, b in zip(y.flat, x.flat)]).reshape(y.shape),
    ),
    Sample(
        "atan2",
        "edges",
        lambda rng: tuple(_PAIRS),
        _wide(np.arctan2),
        order=0,
        float64=(1e-14, 0.0),
        float32=(1.3e-6, 1e-37),
    ),
    Sample("asinh", "empty", normal((0, 3)), lambda x: x),
]

BAD_CALLS = [
    BadCall("log1p", "integers", given(np.arange(3)), r"x must be a float tensor but is \(3,\) int64; cast it"),
    BadCall("atan2", "integers", given(np.arange(3), np.arange(3)), r"y must be a float tensor but is \(3,\) int64"),
    BadCall("atan2", "shapes", given(np.ones(2), np.ones(3)), r"y is \(2,\) but x is \(3,\)"),
]
