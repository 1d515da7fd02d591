"""Arithmetic of elements, and the relation of a tensor to the rows of another one.

x/√(mean(x²) + eps) is at most √n for rows of n elements of any magnitude. So the mean of squares of a row, its root and
the reciprocal of that record as their share what they are of that row. A quotient of the row and such a share has a
bound that the ranges of its operands do not imply.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ...ops import elementwise, reduction
from ...ops.dims import Dim, DimExpr, DimFloat
from ...ops.dims.arithmetic import as_real
from ...ops.dims.polynomial import Atom, NamedDim, variable
from ...ops.dims.radicals import Opaque
from ...ops.types import is_float
from ..dependence.regions import at_most_proved, largest
from ..domain import OpCall, Rule
from .fact import (
    ANYTHING,
    INFINITY,
    LARGEST_SIZE,
    Facts,
    Share,
    ShareKind,
    ValueRange,
    inverse,
    overflow_text,
    powered,
    product,
    same_shape,
)

if TYPE_CHECKING:
    from . import Ranges


def add(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    x, y = facts
    nan = (x.plus and y.minus) or (x.minus and y.plus)
    result = domain.result(call, x.low + y.low, x.high + y.high, facts, nan=nan)
    return [result._replace(share=raised(domain, call, x, y) or raised(domain, call, y, x))]


def sub(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of x - y, which is at most 0 if y is the maximum of x."""
    x, y = facts
    if x.value and x.value == y.value and not x.infinite:
        return [ValueRange(0, 0, x.nan)]
    if _is_spread(domain, x, y):
        text = "a mean of squares less the square of a mean: most of its digits cancel, and it may be below 0"
        domain.remark("cancellation", text, x, y, sure=True, fix="take the mean of squares of x - mean(x)")
    nan = (x.plus and y.plus) or (x.minus and y.minus)
    result = domain.result(call, x.low - y.high, x.high - y.low, facts, nan=nan)
    share = _row_share(y, x, call)
    extremes = (x.share, y.share and y.share._replace(kind="maximum"))
    least = (share is not None or extremes[0] == extremes[1]) and turned(y, "minimum", "minimum")
    if least:  # x - min(x), or max(x) - min(x)
        result = result._replace(low=max(result.low, 0.0), minus=False)
    if share is not None and share.kind == "maximum":
        if x.minus:
            domain.assumptions["no row that is shifted by its maximum is entirely -inf"] = None
        result = result._replace(
            high=0.0, plus=False, low=min(result.low, 0.0), attained=share.axes, peak=0.0, nan=x.nan or x.plus
        )
        if x.bounded:
            result = result._replace(
                low=max(result.low, domain.dtype_limits(call.outputs[0].dtype).widened(x.low - x.high, 0, 1)[0])
            )
    return [result]


def _is_spread(domain: Ranges, x: ValueRange, y: ValueRange) -> bool:
    """Return whether x is the mean of squares of the tensor whose squared mean is y."""
    squares, square = domain.maker(x), domain.maker(y)
    if squares is None or square is None or squares[0].primitive is not reduction.REDUCE_MEAN:
        return False
    of, mean = squared_operand(domain, squares[1][0]), squared_operand(domain, y)
    made = None if mean is None else domain.maker(mean)
    if of is None or made is None or made[0].primitive is not reduction.REDUCE_MEAN:
        return False
    return bool(of.value) and of.value == made[1][0].value


def squared_operand(domain: Ranges, x: ValueRange) -> ValueRange | None:
    """Return the tensor whose square is x; None without one."""
    made = domain.maker(x)
    if made is None:
        return None
    call, facts = made
    if call.primitive is elementwise.MUL and facts[0].value == facts[1].value:
        return facts[0]
    return facts[0] if call.primitive is elementwise.POW and call.static["exponent"] == 2 else None


def _row_share(y: ValueRange, x: ValueRange, call: OpCall) -> Share | None:
    """Return the share of x that y is, if y is elementwise a number of the row of x, such as its maximum."""
    share = y.share
    own = share is not None and bool(x.value) and share.of == x.value
    return share if own and share is not None and same_shape(share.shape, call.inputs[0].shape) else None


def mul(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    x, y = facts
    nan = (x.infinite and y.may_be_zero) or (y.infinite and x.may_be_zero)
    low, high = product(x, y)
    of = _scaled(domain, x)
    if of and of == _scaled(domain, y):  # a square, or a positive multiple of one
        low = max(low, 0.0)
        nan = nan and x.value != y.value
    shares = (_row_share(y, x, call), _row_share(x, y, call))
    most = min([largest_in_row(domain, call, share, "reciprocal") for share in shares])
    return [domain.result(call, max(low, -most), min(high, most), facts, nan=nan)]


def _scaled(domain: Ranges, x: ValueRange) -> int:
    """Return the value of the tensor that x is, up to positive factors."""
    made = domain.maker(x)
    if made is not None and made[0].primitive is elementwise.SCALE and number(made[0].static["c"]).low > 0:
        return _scaled(domain, made[1][0])
    if made is not None and made[0].primitive in (elementwise.MUL, elementwise.DIV) and made[1][1].low > 0:
        return _scaled(domain, made[1][0])
    return x.value


def div(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    x, y = facts
    if not is_float(call.outputs[0].dtype):
        has_no_zero(domain, y)
        return [ValueRange(integral=True)]
    share, magnitude = _row_share(y, x, call), _row_share(y, domain.magnitude(x, y), call)
    is_part = share is not None and share.kind == "sum" and x.low >= 0
    most = largest_in_row(domain, call, share, "deviation")
    if magnitude is not None and magnitude.kind in ("maximum", "above", "sum"):
        most = 1 + 1 / 32
    if most == INFINITY or y.low <= 0 or x.infinite:
        is_reciprocal = x.low >= 0 and x.high <= 1
        share = turned(y, "deviation", "reciprocal") if is_reciprocal else None
        return [divided(domain, call, facts)._replace(share=share)]
    found: list[ValueRange] = []
    domain.holds(lambda: found.append(divided(domain, call, facts)))  # without the share
    low, high = max(found[0].low, 0.0 if is_part else -most), min(found[0].high, most)
    return [found[0]._replace(low=low, high=high, minus=False, plus=False)]


def has_no_zero(domain: Ranges, y: ValueRange, fix: str = "") -> bool:
    """Return whether a divisor is never 0, with a remark if it may be."""
    if y.may_be_zero:
        known = y.low > -INFINITY or y.high < INFINITY
        domain.remark("division-by-zero", f"the divisor is in {y}", y, sure=known, fix=fix)
    return not y.may_be_zero


def divided(domain: Ranges, call: OpCall, facts: Facts) -> ValueRange:
    """Return the range of x / y, with a remark if y may be 0."""
    x, y = facts
    fix = ""
    if y.may_be_zero and y.low >= 0 and not y.nan:
        shifted = y._replace(low=1e-6)
        if domain.holds(lambda: divided(domain, call, (x, shifted))):
            fix = "add a number such as 1e-6 to the divisor, or take ops.maximum of both"
    if not has_no_zero(domain, y, fix):
        nan = x.nan or y.nan or x.may_be_zero or (x.infinite and y.infinite)
        return ANYTHING._replace(nan=nan)  # of either sign, since zeros are signed
    nan = x.infinite and y.infinite
    low, high = inverse(y)
    bounds = product(x, ValueRange(low, high))
    operands = (x, y._replace(minus=False, plus=False))  # x / inf is 0
    return domain.result(call, *bounds, operands, ulps=2, nan=nan, known=x.bounded)


def inv(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    found = divided(domain, call, (ValueRange(1, 1), facts[0]))
    return [found._replace(share=turned(facts[0], "deviation", "reciprocal"))]


def neg(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    if not is_float(call.outputs[0].dtype):  # the least integer has no negative
        return [domain.result(call, -x.high, -x.low, facts)]
    share = turned(x, "maximum", "minimum")  # of the operand with the other sign
    made = None if share is None else domain.makers.get(share.of)
    if share is not None and made is not None:
        of = made[1][0].value if made[0].primitive is elementwise.NEG else 0
        share = share._replace(of=of) if of else None
    return [ValueRange(-x.high, -x.low, x.nan, x.plus, x.minus, x.integral, share=share)]


def absolute(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    high, low = x.sizes
    if not is_float(call.outputs[0].dtype):  # nor a magnitude
        return [domain.result(call, low if x.bounded else -INFINITY, high, facts)]
    return [ValueRange(low, high, x.nan, False, x.infinite, x.integral)]


def scale(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    factor = stated(domain, call, call.static["c"])
    nan = x.infinite and factor.may_be_zero
    result = domain.result(call, *product(x, factor), (x, factor), ulps=2, nan=nan)
    if factor.low > 0 and factor.low == factor.high:
        peak = domain.dtype_limits(call.outputs[0].dtype).widened(x.peak * factor.low, x.peak * factor.high, 2)[0]
        result = result._replace(attained=x.attained, peak=peak)
    return [result]


def number(value: Any) -> ValueRange:
    """Return the range of a static number; of an expression in sizes the sign is known if all its terms have one."""
    if isinstance(value, (int, float, Fraction)):
        try:
            found = float(value)
        except OverflowError:
            found = math.copysign(INFINITY, value)
        if math.isnan(found):
            return ValueRange(nan=True)
        if not isinstance(value, float) and found != value:  # between the neighbours of the nearest float
            ends = math.nextafter(found, -INFINITY), math.nextafter(found, INFINITY)
            return ValueRange(*ends, integral=isinstance(value, int))
        return ValueRange(found, found, False, found == -INFINITY, found == INFINITY, found.is_integer())
    if isinstance(value, DimExpr):
        return _size(value)
    if not isinstance(value, DimFloat) or not value.terms:
        return ValueRange()
    total = ValueRange(0, 0)
    for factors, coefficient in value.terms.items():
        term = number(coefficient)
        for base, twice in factors:
            if isinstance(base, Opaque):
                return ValueRange()
            is_divisor = twice < 0 or twice % 2 == 1  # or under a root
            size = _size(value.scope.intern(variable(base)) if isinstance(base, Atom) else base, is_divisor)
            most = min(size.high, LARGEST_SIZE) if isinstance(base, NamedDim) else size.high
            powers = [powered(end, twice / 2) for end in (size.low, most)]
            term = ValueRange(*product(term, ValueRange(min(powers), max(powers))))
        total = ValueRange(total.low + term.low, total.high + term.high)
    return total


def _size(value: Dim, is_divisor: bool = False) -> ValueRange:
    """Return the range of a size; a divisor is at least 1, as whatever divides by a size requires."""
    low = 1.0 if is_divisor or at_most_proved(1, value) else 0.0 if at_most_proved(0, value) else -INFINITY
    return ValueRange(low, largest(value), integral=True)


def stated(domain: Ranges, call: OpCall, value: Any) -> ValueRange:
    """Return the range of a static number in the dtype of the result."""
    found = number(value)
    if isinstance(value, DimExpr) and is_float(call.outputs[0].dtype):
        real = number(as_real(value))  # by its terms; its sign may follow from constraints alone
        found = real._replace(low=max(real.low, found.low), high=min(real.high, found.high))
    return stored(domain, call, found)


def stored(domain: Ranges, call: OpCall, value: ValueRange) -> ValueRange:
    """Return the range of a number of the program in the dtype of the result, with a remark if it is infinite there."""
    if not is_float(call.outputs[0].dtype) or value.infinite:
        return value
    limits = domain.dtype_limits(call.outputs[0].dtype)
    low, high = limits.rounded(value.low, value.high)
    minus, plus = value.bounded and low < -limits.largest, value.bounded and high > limits.largest
    if minus or plus:
        text = overflow_text(limits, value.low if minus else value.high)
        domain.remark("overflow", text, sure=True)
    return ValueRange(-INFINITY if minus else low, INFINITY if plus else high, value.nan, minus, plus, value.integral)


def relu(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    return [ValueRange(max(x.low, 0.0), max(x.high, 0.0), x.nan, False, x.plus, x.integral)]


def extremum(larger: bool) -> Rule:
    def rule(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
        x, y = facts
        end = max if larger else min
        low, high = end(x.low, y.low), end(x.high, y.high)
        nan, integral = x.nan or y.nan, x.integral and y.integral
        minus = (x.minus or y.minus) and low == -INFINITY
        plus = (x.plus or y.plus) and high == INFINITY
        share = above(x) or above(y) if larger else None
        return [ValueRange(low, high, nan, minus, plus, integral, share=share)]

    return rule


# Shares of rows -------------------------------------------------------------------------------------------------------


_ABOVE_ROUNDING = 1024
"""A mean plus this many least normal numbers exceeds the squares that are flushed to 0."""


def raised(domain: Ranges, call: OpCall, x: ValueRange, y: ValueRange) -> Share | None:
    """Return the share of x + y for nonnegative y, if x is a maximum or a mean of squares."""
    share = x.share
    if share is None or y.low < 0 or y.minus:
        return None
    if share.kind not in ("squares", "norm"):
        return above(x)
    enough = y.low >= _ABOVE_ROUNDING * domain.dtype_limits(call.outputs[0].dtype).vanishing
    return share._replace(kind="norm") if enough else share


def above(x: ValueRange) -> Share | None:
    """Return the share of an upper bound of x, if x is at least the maximum of a row, as a sum of nonnegative numbers
    is.
    """
    kinds: tuple[ShareKind, ...] = ("maximum", "above", "sum") if x.low >= 0 else ("maximum", "above")
    return next(filter(None, [turned(x, kind, "above") for kind in kinds]), None)


def turned(x: ValueRange, kind: ShareKind, into: ShareKind) -> Share | None:
    """Return the share of a function of x, if x has a share of `kind`."""
    return x.share._replace(kind=into) if x.share is not None and x.share.kind == kind else None


def largest_in_row(domain: Ranges, call: OpCall, share: Share | None, kind: ShareKind) -> float:
    """Return the bound of a row's elements over their root of `kind`; infinity for another share."""
    if share is None or share.kind != kind:
        return INFINITY
    sizes = [share.shape[axis] for axis in share.axes]
    if not all(isinstance(size, int) for size in sizes):
        return INFINITY
    # The mean may be off by 1/64, and each of the ops after it by half an ulp.
    return (
        math.sqrt(math.prod(map(int, sizes)))
        * (1 + 1 / 64)
        * (1 + 4 * domain.dtype_limits(call.outputs[0].dtype).epsilon)
    )
