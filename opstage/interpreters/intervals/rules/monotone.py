"""Functions of one element that only rise, or only fall: the ends of the result are those of the operand, rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ....ops.catalogue.activation import (
    CELU,
    ELU,
    HARDSIGMOID,
    HARDTANH,
    LEAKY_RELU,
    LOG_SIGMOID,
    RELU,
    SELU,
    SOFTSHRINK,
    SOFTSIGN,
    TANHSHRINK,
)
from ....ops.catalogue.elementwise import (
    CLAMP,
    ERF,
    EXP,
    LOG,
    NEG,
    SAFE_LOG,
    SCALE,
    SIGMOID,
    SOFTPLUS,
    SQRT,
    TANH,
)
from ....ops.catalogue.rounding import CEIL, FLOOR, ROUND, SIGN, TRUNC
from ....ops.catalogue.transcendental import (
    ACOS,
    ACOSH,
    ASIN,
    ASINH,
    ATAN,
    ATANH,
    EXP2,
    EXPM1,
    LOG1P,
    LOG2,
    LOG10,
    SINH,
)
from ....ops.primitive import Primitive, Static
from ..interpreter import Interval, Intervals
from ..rounding import down, up

Statics = Callable[[Static], bool]


class Monotone(NamedTuple):
    """How a function goes.

    ulps      the error of its kernels, on every interpreter; 0 for one whose result is exact
    absolute  whether that is in ulps of max(|operand|, 1), where cancellation leaves no relative error
    least     its results are never below it, greatest: or above; None where they may be
    rises     whether it rises (else falls), by its static parameters
    """

    ulps: float
    absolute: bool = False
    least: float | None = None
    greatest: float | None = None
    rises: Statics = lambda static: True


def _falls(static: Static) -> bool:
    return False


MONOTONE: dict[Primitive, Monotone] = {
    NEG: Monotone(0, rises=_falls),
    RELU: Monotone(0),
    CLAMP: Monotone(0),
    HARDTANH: Monotone(0),
    FLOOR: Monotone(0),
    CEIL: Monotone(0),
    ROUND: Monotone(0),
    TRUNC: Monotone(0),
    SIGN: Monotone(0),
    SCALE: Monotone(1, rises=lambda static: static["c"] >= 0),
    SQRT: Monotone(1, least=0.0),
    EXP: Monotone(4, least=0.0),
    EXP2: Monotone(4, least=0.0),
    EXPM1: Monotone(6, least=-1.0),
    LOG: Monotone(4),
    LOG1P: Monotone(6),
    LOG2: Monotone(4),
    LOG10: Monotone(4),
    SAFE_LOG: Monotone(4),
    TANH: Monotone(4),
    SIGMOID: Monotone(6, least=0.0, greatest=1.0),
    SOFTPLUS: Monotone(8, least=0.0),
    LOG_SIGMOID: Monotone(8, greatest=0.0),
    ERF: Monotone(4),
    ATAN: Monotone(4),
    ASIN: Monotone(8, absolute=True),
    ACOS: Monotone(8, absolute=True, rises=_falls),
    SINH: Monotone(16, absolute=True),
    ASINH: Monotone(16, absolute=True),
    ACOSH: Monotone(16, absolute=True),
    ATANH: Monotone(16, absolute=True),
    LEAKY_RELU: Monotone(1, rises=lambda static: static["negative_slope"] >= 0),
    ELU: Monotone(8, rises=lambda static: static["alpha"] >= 0),
    SELU: Monotone(10),
    CELU: Monotone(10, rises=lambda static: static["alpha"] > 0),
    HARDSIGMOID: Monotone(6, absolute=True, least=0.0),
    SOFTSHRINK: Monotone(2, absolute=True),
    SOFTSIGN: Monotone(4),
    TANHSHRINK: Monotone(8, absolute=True),
}
"""The stated errors are held by tests against exact values, on each interpreter; they leave room for those of a GPU."""

DECOMPOSED_WHERE_IT_falls = frozenset({LEAKY_RELU, ELU, CELU})
"""With a negative parameter they neither rise nor fall."""


def _bounded(primitive: Primitive, kind: Monotone) -> Callable[..., tuple[Interval[Any]]]:
    def rule(bounds: Intervals[Any], refs: tuple[Interval[Any], ...], static: Static) -> tuple[Interval[Any]]:
        (x,), ops = refs, bounds.inner
        rises = kind.rises(static)
        if not rises and primitive in DECOMPOSED_WHERE_IT_falls:
            return bounds.decompose(primitive, (x,), static)  # type: ignore[return-value]
        first, last = (x.lower, x.upper) if rises else (x.upper, x.lower)
        lower = ops.bind(primitive, (first,), static)[0]
        upper = lower if x.point else ops.bind(primitive, (last,), static)[0]
        if kind.ulps == 0:
            return (bounds.between(lower, upper),)
        lower, upper = _rounded(ops, kind, x, lower, upper)
        if primitive is SCALE:  # a product of what is not negative is not negative, however small
            lower, upper = _of_one_sign(ops, first, last, lower, upper, static["c"])
        return (bounds.between(lower, upper),)

    return rule


def _rounded(ops: Any, kind: Monotone, x: Interval[Any], lower: Any, upper: Any) -> tuple[Any, Any]:
    size = None
    if kind.absolute:
        size = ops.maximum(ops.maximum(ops.abs(x.lower), ops.abs(x.upper)), 1.0)
        size = ops.maximum(size, ops.maximum(ops.abs(lower), ops.abs(upper)))
    lower, upper = down(ops, lower, kind.ulps, of=size), up(ops, upper, kind.ulps, of=size)
    if kind.least is not None:
        lower = ops.maximum(lower, kind.least)
    if kind.greatest is not None:
        upper = ops.minimum(upper, kind.greatest)
    return lower, upper


def _of_one_sign(ops: Any, first: Any, last: Any, lower: Any, upper: Any, c: Any) -> tuple[Any, Any]:
    zero = ops.full(shape=lower.shape, value=0.0, dtype=lower.dtype)
    above = ops.less_equal(zero, first) if c >= 0 else ops.less_equal(first, zero)
    below = ops.less_equal(last, zero) if c >= 0 else ops.less_equal(zero, last)
    return (
        ops.select(above, ops.maximum(lower, zero), lower),
        ops.select(below, ops.minimum(upper, zero), upper),
    )


RULES = {primitive: _bounded(primitive, kind) for primitive, kind in MONOTONE.items()}
EXACT = frozenset(primitive for primitive, kind in MONOTONE.items() if kind.ulps == 0)
