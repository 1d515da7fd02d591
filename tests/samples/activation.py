"""Samples: activation functions and their fused derivatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, distinct, given, gives, normal


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
    Sample("relu", "edges", given([-1.0, 0.0, -0.0, np.nan, np.inf]), gives([0, 0, 0, np.nan, np.inf]), order=0),
    Sample("relu", "scalar", distinct(()), _each(lambda v: max(v, 0.0))),
    Sample("silu", "matrix", normal((2, 3)), _each(lambda v: v * _sigmoid(v))),
    Sample("gelu", "tanh", normal((2, 3)), _each(_gelu_tanh)),
    Sample("gelu", "erf", normal((2, 3)), _each(_gelu_exact), approximate="none"),
    Sample("relu_grad", "matrix", distinct((2, 3), (2, 3)), lambda y, g: np.where(y > 0, g, 0), exact=True),
    Sample("tanh_grad", "matrix", normal((2, 3), (2, 3)), lambda y, g: g - g * y * y),
    Sample("sigmoid_grad", "matrix", normal((2, 3), (2, 3)), lambda y, g: g * y - g * y * y),
    Sample("silu_grad", "matrix", normal((2, 3), (2, 3)), _slope(lambda v: v * _sigmoid(v)), float64=_LOOSE),
    Sample("gelu_grad", "tanh", normal((2, 3), (2, 3)), _slope(_gelu_tanh), approximate="tanh", float64=_LOOSE),
    Sample("gelu_grad", "erf", normal((2, 3), (2, 3)), _slope(_gelu_exact), approximate="none", float64=_LOOSE),
]

_KINKS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 6.0, 7.0, -7.0, 1e-9, 200.0, -200.0, math.inf, math.nan)


def _pieces(
    op: str, f: Any, *, at: tuple[float, ...] = (*_KINKS, -math.inf), arrays: Any = None, **static: Any
) -> list[Sample]:
    """Away from the kinks, and at them; the reference is told the numbers of nan, which it has to pass on, itself."""
    reference = _each(lambda v: v if math.isnan(v) else f(v))
    spread = distinct((2, 5)) if arrays is None else arrays
    return [
        Sample(op, f"away from kinks{static or ''}", spread, reference, static),
        Sample(op, f"edges{static or ''}", given(at), reference, static, order=0),
    ]


_SELU = (1.0507009873554804934193349852946, 1.6732632423543772848170429916717)

SAMPLES += [
    *_pieces("leaky_relu", lambda v: v if v > 0 else v * 0.01),
    *_pieces("leaky_relu", lambda v: v if v > 0 else v * 0.2, negative_slope=0.2),
    *_pieces("elu", lambda v: v if v > 0 else 1.3 * math.expm1(v), alpha=1.3),
    *_pieces("selu", lambda v: _SELU[0] * (v if v > 0 else _SELU[1] * math.expm1(v))),
    *_pieces("celu", lambda v: v if v > 0 else 0.7 * math.expm1(v / 0.7), alpha=0.7),
    *_pieces("hardtanh", lambda v: min(max(v, -0.21), 0.17), lo=-0.21, hi=0.17),
    *_pieces("relu6", lambda v: min(max(v, 0.0), 6.0)),
    *_pieces("hardsigmoid", lambda v: min(max(v + 3, 0.0), 6.0) / 6),
    *_pieces("hardswish", lambda v: v * (min(max(v + 3, 0.0), 6.0) / 6), at=_KINKS),
    *_pieces("mish", lambda v: v * math.tanh(math.log1p(math.exp(v)) if v < 100 else v), at=_KINKS),
    *_pieces("log_sigmoid", lambda v: -math.log1p(math.exp(-v)) if v > -100 else v),
    *_pieces("softsign", lambda v: v / (1 + abs(v)), at=_KINKS[:-2]),
    *_pieces("tanhshrink", lambda v: v - math.tanh(v)),
    *_pieces("hardshrink", lambda v: v if abs(v) > 0.21 else 0.0, width=0.21),
    *_pieces("softshrink", lambda v: math.copysign(max(abs(v) - 0.21, 0.0), v), width=0.21),
    *_pieces("threshold", lambda v: v if v > 0.1 else 7.0, threshold=0.1, value=7.0),
]

BAD_CALLS = [
    BadCall("relu", "integers", given(np.arange(3)), r"x must be a float tensor but is \(3,\) int64"),
    BadCall(
        "gelu",
        "form",
        given(np.ones(3)),
        r"approximate must be one of .* but is 'tan' \(did you mean 'tanh'\?\)",
        approximate="tan",
    ),
    BadCall("elu", "integers", given(np.arange(3)), r"x must be a float tensor but is \(3,\) int64"),
    BadCall("celu", "alpha", given(np.ones(3)), r"alpha must not be 0", alpha=0),
    BadCall("hardtanh", "bounds", given(np.ones(3)), r"lo must be less than hi but lo is 1", lo=1, hi=1),
    BadCall("hardshrink", "width", given(np.ones(3)), r"width must be at least 0 but is -1", width=-1),
    BadCall("softshrink", "width", given(np.ones(3)), r"width must be at least 0 but is -1", width=-1),
    BadCall("tanh_grad", "shapes", given(np.ones(3), np.ones(4)), r"y is \(3,\) but g is \(4,\)"),
]
