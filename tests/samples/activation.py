"""Samples: activation functions and their fused derivatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, distinct, normal


def _each(f: Any) -> Any:
    return lambda x, **_: np.array([f(v) for v in np.asarray(x).flat], dtype=np.float64).reshape(np.shape(x))


def _sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v))


def _gelu_exact(v: float) -> float:
    return v * 0.5 * (1 + math.erf(v / math.sqrt(2)))


def _gelu_tanh(v: float) -> float:
    return 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))


def _slope(f: Any) -> Any:
    """g · f'(x) by a fourth-order central difference."""

    def reference(x: Any, g: Any, **_: Any) -> Any:
        h = 1e-3
        d = [(8 * (f(v + h) - f(v - h)) - (f(v + 2 * h) - f(v - 2 * h))) / (12 * h) for v in x.flat]
        return g * np.array(d).reshape(x.shape)

    return reference


_LOOSE = (1e-8, 1e-9)  # the accuracy of the difference

SAMPLES = [
    Sample("relu", "away from 0", distinct((2, 5)), _each(lambda v: v if v > 0 else 0.0), exact=True),
    Sample(
        "relu",
        "edges",
        lambda rng: (np.array([-1.0, 0.0, -0.0, np.nan, np.inf]),),
        lambda x: np.array([0, 0, 0, np.nan, np.inf]),
        order=0,
    ),
    Sample("relu", "scalar", distinct(()), _each(lambda v: max(v, 0.0))),
    Sample("silu", "matrix", normal((2, 3)), _each(lambda v: v * _sigmoid(v))),
    Sample("gelu", "tanh", normal((2, 3)), _each(_gelu_tanh)),
    Sample("gelu", "erf", normal((2, 3)), _each(_gelu_exact), {"approximate": "none"}),
    Sample("relu_grad", "matrix", distinct((2, 3), (2, 3)), lambda y, g: np.where(y > 0, g, 0), exact=True),
    Sample("tanh_grad", "matrix", normal((2, 3), (2, 3)), lambda y, g: g - g * y * y),
    Sample("sigmoid_grad", "matrix", normal((2, 3), (2, 3)), lambda y, g: g * y - g * y * y),
    Sample("silu_grad", "matrix", normal((2, 3), (2, 3)), _slope(lambda v: v * _sigmoid(v)), float64=_LOOSE),
    Sample("gelu_grad", "tanh", normal((2, 3), (2, 3)), _slope(_gelu_tanh), {"approximate": "tanh"}, float64=_LOOSE),
    Sample("gelu_grad", "erf", normal((2, 3), (2, 3)), _slope(_gelu_exact), {"approximate": "none"}, float64=_LOOSE),
]

BAD_CALLS = [
    BadCall("relu", "integers", lambda: (np.arange(3),), r"x must be a float tensor but is \(3,\) int64"),
    BadCall(
        "gelu",
        "form",
        lambda: (np.ones(3),),
        r"approximate must be one of .* but is 'tan' \(did you mean 'tanh'\?\)",
        {"approximate": "tan"},
    ),
    BadCall("tanh_grad", "shapes", lambda: (np.ones(3), np.ones(4)), r"x is \(3,\) but g is \(4,\)"),
]
