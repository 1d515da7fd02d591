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
from ....ops.catalogue.monotone import MONOTONE, Monotone
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


class KernelError(NamedTuple):
    """How far a kernel may be off, on every interpreter.

    ulps      0 for one whose result is exact
    absolute  whether they are of max(|operand|, 1), where cancellation leaves no relative error
    """

    ulps: float = 0.0
    absolute: bool = False


_EXACTLY = KernelError()
KERNEL_ERRORS: dict[Primitive, KernelError] = {
    **dict.fromkeys((NEG, RELU, CLAMP, HARDTANH, FLOOR, CEIL, ROUND, TRUNC, SIGN), _EXACTLY),
    **dict.fromkeys((SCALE, SQRT, LEAKY_RELU), KernelError(1)),
    **dict.fromkeys((EXP, EXP2, LOG, LOG2, LOG10, SAFE_LOG, TANH, ERF, ATAN, SOFTSIGN), KernelError(4)),
    **dict.fromkeys((EXPM1, LOG1P, SIGMOID), KernelError(6)),
    **dict.fromkeys((SOFTPLUS, LOG_SIGMOID, ELU), KernelError(8)),
    **dict.fromkeys((SELU, CELU), KernelError(10)),
    **dict.fromkeys((ASIN, ACOS, TANHSHRINK), KernelError(8, absolute=True)),
    **dict.fromkeys((SINH, ASINH, ACOSH, ATANH), KernelError(16, absolute=True)),
    HARDSIGMOID: KernelError(6, absolute=True),
    SOFTSHRINK: KernelError(2, absolute=True),
}
"""They are held by tests against exact values, on each interpreter, and leave room for those of a GPU."""


def _bounded(primitive: Primitive, kind: Monotone, kernel: KernelError) -> Callable[..., tuple[Interval[Any]]]:
    def rule(bounds: Intervals[Any], refs: tuple[Interval[Any], ...], static: Static) -> tuple[Interval[Any]]:
        (x,), ops = refs, bounds.inner
        rises = kind.rises(static)
        if rises is None:
            return bounds.decompose(primitive, (x,), static)  # type: ignore[return-value]
        first, last = (x.lower, x.upper) if rises else (x.upper, x.lower)
        lower = ops.bind(primitive, (first,), static)[0]
        upper = lower if x.point else ops.bind(primitive, (last,), static)[0]
        if kernel.ulps == 0:
            return (bounds.between(lower, upper),)
        lower, upper = _rounded(ops, kind, kernel, x, lower, upper)
        if primitive is SCALE:  # a product of what is not negative is not negative, however small
            lower, upper = _of_one_sign(ops, first, last, lower, upper, static["c"])
        return (bounds.between(lower, upper),)

    return rule


def _rounded(
    ops: Any, kind: Monotone, kernel: KernelError, x: Interval[Any], lower: Any, upper: Any
) -> tuple[Any, Any]:
    size = None
    if kernel.absolute:
        size = ops.maximum(ops.maximum(ops.abs(x.lower), ops.abs(x.upper)), 1.0)
        size = ops.maximum(size, ops.maximum(ops.abs(lower), ops.abs(upper)))
    lower, upper = down(ops, lower, kernel.ulps, of=size), up(ops, upper, kernel.ulps, of=size)
    # limits that the dtype does not hold, as those of atan, may be rounded inward
    if kind.least.is_integer():
        lower = ops.maximum(lower, kind.least)
    if kind.greatest.is_integer():
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


RULES = {primitive: _bounded(primitive, kind, KERNEL_ERRORS[primitive]) for primitive, kind in MONOTONE.items()}
EXACT = frozenset(primitive for primitive, kernel in KERNEL_ERRORS.items() if kernel.ulps == 0)
