"""Samples: rounding, signs, division of whole numbers, bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, distinct, given, gives, positive

Arrays = Callable[[np.random.Generator], tuple[Any, ...]]


def _whole(function: Callable[[float], int]) -> Callable[[Any], Any]:
    return np.vectorize(lambda v: float(function(v)) if math.isfinite(v) else v, otypes=[np.float64])


def _pairs(*pairs: tuple[float, float]) -> Arrays:
    return lambda rng: tuple(np.array(side) for side in zip(*pairs))


def _of_pairs(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: np.array([function(a, b) for a, b in zip(x.tolist(), y.tolist())])


def _rest(x: float, y: float) -> float:
    return math.nan if y == 0 else x % y


def _down(x: float, y: float) -> float:
    return (math.nan if x == 0 else math.copysign(math.inf, x)) if y == 0 else x // y


_HALVES = given([-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.2, -3.7, 1e10, math.inf, -math.inf])
_FLOATS = _pairs((7.5, 2.0), (-7.5, 2.0), (7.5, -2.0), (-7.5, -2.0), (1.0, 0.1), (6.0, 3.0), (-6.0, 3.0), (5.0, 0.0))
_WHOLE = _pairs((7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (5, -1), (-5, -1), (0, 4))
_BITS = _pairs((0b1100, 0b1010), (-1, 6), (-8, -3), (0, 7))
_PLACES = _pairs((1, 3), (-8, 1), (5, 0), (-1, 70), (1, 70), (5, -1), (-5, -1))

SAMPLES = [
    Sample("floor", "halves", _HALVES, _whole(math.floor), order=0),
    Sample("floor", "slope", distinct((2, 3)), np.floor),
    Sample("ceil", "halves", _HALVES, _whole(math.ceil), order=0),
    Sample("trunc", "halves", _HALVES, _whole(math.trunc), order=0),
    Sample("round", "halves", _HALVES, _whole(round), order=0),
    Sample("sign", "floats", given([-2.0, -0.0, 0.0, 3.0, math.nan, -math.inf]), np.sign, order=0),
    Sample("sign", "slope", distinct((2, 3)), np.sign),
    Sample("sign", "integers", given([-3, 0, 5]), np.sign, order=0),
    Sample("floor_divide", "floats", _FLOATS, _of_pairs(_down), order=0, float32=(0.2, 0.0)),
    Sample("floor_divide", "integers", _WHOLE, _of_pairs(lambda x, y: x // y), order=0),
    Sample("mod", "floats", _FLOATS, _of_pairs(_rest), order=0, float32=(1e-5, 0.11)),
    Sample("mod", "slopes", positive((2, 3), (2, 3)), np.mod),
    Sample("mod", "integers", _WHOLE, _of_pairs(lambda x, y: x % y), order=0),
    Sample(
        "mod",
        "by zero and the least",
        given([5, 0, -(2**63), -(2**63)], [0, 0, -1, 3]),
        gives([0, 0, 0, (-(2**63)) % 3]),
        order=0,
    ),
    Sample("fmod", "floats", _pairs((7.5, 2.0), (-7.5, 2.0), (7.5, -2.0), (-6.0, 3.0)), _of_pairs(math.fmod), order=0),
    Sample("fmod", "integers", _WHOLE, _of_pairs(lambda x, y: int(math.fmod(x, y))), order=0),
    Sample("bitwise_and", "integers", _BITS, _of_pairs(lambda x, y: x & y), order=0),
    Sample("bitwise_or", "integers", _BITS, _of_pairs(lambda x, y: x | y), order=0),
    Sample("bitwise_xor", "integers", _BITS, _of_pairs(lambda x, y: x ^ y), order=0),
    Sample("left_shift", "integers", _PLACES, _of_pairs(lambda x, y: x << y if 0 <= y < 64 else 0), order=0),
    Sample("right_shift", "integers", _PLACES, _of_pairs(lambda x, y: x >> (y if y >= 0 else 64)), order=0),
]

BAD_CALLS = [
    BadCall("floor", "integers", given(np.arange(3)), r"x must be a float tensor but is \(3,\) int64"),
    BadCall("bitwise_and", "floats", given(np.ones(3), np.ones(3)), "x must be an integer tensor"),
    BadCall("mod", "dtypes", given(np.ones(3), np.arange(3)), "x is float.* but y is int64"),
]
