"""Ops of one element: arithmetic, functions that rise or fall, comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ....ops.catalogue import activation, elementwise, logic, reduction
from ....ops.dims import DimExpr, DimFloat
from ....ops.dims.terms import Opaque
from ....ops.types import is_float
from ...domain import OpCall, Rule
from ..fact import BOOLEAN, INFINITY, Share, ValueRange, inverse, joined, product, same_shape

if TYPE_CHECKING:
    from .. import Ranges

Facts = Sequence[ValueRange]
_ULPS = 8.0
"""Units in the last place within which functions of math libraries are taken to be."""


def add(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    x, y = facts
    nan = (x.plus and y.minus) or (x.minus and y.plus)
    return [domain.result(call, x.low + y.low, x.high + y.high, facts, nan=nan)]


def sub(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """x - y; nothing above 0 where y is x's own maximum."""
    x, y = facts
    if x.value and x.value == y.value and not x.infinite:
        return [ValueRange(0, 0, x.nan)]
    if _is_spread(domain, x, y):
        text = "a mean of squares less the square of a mean: most of its digits cancel, and it may be below 0"
        domain.remark("cancellation", text, x, y, sure=True, fix="take the mean of squares of x - mean(x)")
    nan = (x.plus and y.plus) or (x.minus and y.minus)
    result = domain.result(call, x.low - y.high, x.high - y.low, facts, nan=nan)
    share = y.share
    if _of(share, x, call) and share is not None and not share.total:
        if x.minus:
            domain.assumptions["no row of what is shifted by its maximum is -inf as a whole"] = None
        result = result._replace(
            high=0.0, plus=False, low=min(result.low, 0.0), attained=share.axes, nan=x.nan or x.plus
        )
        if x.bounded:
            result = result._replace(low=max(result.low, domain.limits.widened(x.low - x.high, 0, 1)[0]))
    return [result]


def _is_spread(domain: Ranges, x: ValueRange, y: ValueRange) -> bool:
    """Whether x is the mean of squares of what y is the square of the mean of."""
    squares, square = domain.maker(x), domain.maker(y)
    if squares is None or square is None or squares[0].primitive is not reduction.REDUCE_MEAN:
        return False
    of, mean = _rooted(domain, squares[1][0]), _rooted(domain, y)
    made = None if mean is None else domain.maker(mean)
    if of is None or made is None or made[0].primitive is not reduction.REDUCE_MEAN:
        return False
    return bool(of.value) and of.value == made[1][0].value


def _rooted(domain: Ranges, x: ValueRange) -> ValueRange | None:
    """The tensor that x is the square of."""
    made = domain.maker(x)
    if made is None:
        return None
    call, facts = made
    if call.primitive is elementwise.MUL and facts[0].value == facts[1].value:
        return facts[0]
    return facts[0] if call.primitive is elementwise.POW and call.static["exponent"] == 2 else None


def _of(share: Share | None, x: ValueRange, call: OpCall) -> bool:
    """Whether y is, place by place, the maximum or the sum of x's own row."""
    return share is not None and bool(x.value) and share.of == x.value and same_shape(share.shape, call.inputs[0].shape)


def mul(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    x, y = facts
    nan = (x.infinite and y.may_be_zero) or (y.infinite and x.may_be_zero)
    low, high = product(x, y)
    if x.value and x.value == y.value:  # a square
        low = max(low, 0.0)
        nan = False
    return [domain.result(call, low, high, facts, nan=nan)]


def div(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    x, y = facts
    if not is_float(call.outputs[0].dtype):
        return [ValueRange(integral=True)]
    share = y.share
    quotient = divided(domain, call, facts)
    if _of(share, x, call) and share is not None and share.total and x.low >= 0 and y.low > 0 and not x.plus:
        quotient = quotient._replace(low=0.0, high=min(quotient.high, 1 + 1 / 32), minus=False, plus=False)
        if not x.nan and not y.nan:
            quotient = quotient._replace(nan=False)
    return [quotient]


def divided(domain: Ranges, call: OpCall, facts: Facts) -> ValueRange:
    """x / y, with a remark where y may be 0."""
    x, y = facts
    if y.may_be_zero:
        known = y.low > -INFINITY or y.high < INFINITY
        fix = ""
        if known and y.low >= 0 and not y.nan:
            shifted = y._replace(low=1e-6)
            if domain.holds(lambda: divided(domain, call, (x, shifted))):
                fix = "add a number such as 1e-6 to the divisor, or take ops.maximum of both"
        domain.remark("division-by-zero", f"the divisor is in {y}", y, sure=known, fix=fix)
        nan = x.nan or y.nan or x.may_be_zero or (x.infinite and y.infinite)
        return ValueRange(nan=nan, minus=True, plus=True)  # of either sign, as zeros have one
    nan = x.infinite and y.infinite
    low, high = inverse(y)
    bounds = product(x, ValueRange(low, high))
    operands = (x, y._replace(minus=False, plus=False))  # x / inf is 0
    return domain.result(call, *bounds, operands, ulps=2, nan=nan, known=x.bounded)


def inv(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    return [divided(domain, call, (ValueRange(1, 1), facts[0]))]


def neg(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    return [ValueRange(-x.high, -x.low, x.nan, x.plus, x.minus, x.integral)]


def absolute(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    low = 0.0 if x.may_be_zero else min(abs(x.low), abs(x.high))
    return [ValueRange(low, max(abs(x.low), abs(x.high)), x.nan, False, x.infinite, x.integral)]


def scale(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    factor = number(call.static["c"])
    nan = x.infinite and factor.may_be_zero
    result = domain.result(call, *product(x, factor), (x, factor), ulps=2, nan=nan)
    if factor.low > 0 and factor.low == factor.high:
        result = result._replace(attained=x.attained)
    return [result]


def number(value: Any) -> ValueRange:
    """Of a static number, which may be an expression in sizes: of that its sign is known, if all its terms have one."""
    if isinstance(value, (int, float, Fraction)):
        try:
            found = float(value)
        except OverflowError:
            found = math.copysign(INFINITY, value)
        if math.isnan(found):
            return ValueRange(nan=True)
        return ValueRange(found, found, False, found == -INFINITY, found == INFINITY, found.is_integer())
    if isinstance(value, DimExpr):
        return ValueRange(0, INFINITY, integral=True) if _positive(value) else ValueRange(integral=True)
    if isinstance(value, DimFloat) and all(_signed(factors, c) for factors, c in value.terms.items()):
        return ValueRange(0, INFINITY)
    return ValueRange()


def _signed(factors: Any, coefficient: Fraction) -> bool:
    return coefficient > 0 and not any(isinstance(base, Opaque) for base, _ in factors)


def _positive(size: DimExpr) -> bool:
    return all(coefficient > 0 for coefficient in size.polynomial.values())


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
        return [ValueRange(low, high, nan, minus, plus, integral)]

    return rule


# Functions of one number ----------------------------------------------------------------------------------------------


def rising(function: Callable[[float], float], least: float = -INFINITY, most: float = INFINITY) -> Rule:
    """A function that never falls, its values between `least` and `most`."""

    def rule(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
        (x,) = facts
        low, high = _at(function, x.low, least, most), _at(function, x.high, least, most)
        ends = domain.limits.widened(least, most, 0 if domain.exact(most) else 1)
        low, high = domain.limits.widened(low, high, _ULPS)
        low, high = max(low, ends[0]), min(high, ends[1])
        minus, plus = x.minus and low == -INFINITY, x.plus and high == INFINITY
        return [ValueRange(low, high, x.nan, minus, plus, attained=x.attained)]

    return rule


def _at(function: Callable[[float], float], x: float, least: float, most: float) -> float:
    """The value of a function that rises from `least` to `most`."""
    try:
        return least if x == -INFINITY else most if x == INFINITY else function(x)
    except OverflowError:
        return INFINITY


def exponential(function: Callable[[float], float], least: float = 0.0) -> Rule:
    """exp and its like: rises from `least`, and leaves the numbers of the dtype soon."""

    def rule(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
        (x,) = facts
        low, high = _at(function, x.low, least, INFINITY), _at(function, x.high, least, INFINITY)
        low, high = domain.limits.widened(low, high, _ULPS)
        if low < least + 2 * domain.limits.least:
            low = least
        plus = x.plus
        if high > domain.limits.largest:
            where = "has no known bound above" if x.high == INFINITY else f"is in {x}"
            fix = ""
            shifted = x._replace(high=0.0, plus=False)
            if domain.holds(lambda: rule(domain, call, (shifted,))):
                fix = "take the maximum off first: ops.softmax, ops.log_softmax and derived.logsumexp do"
            domain.remark(
                "overflow",
                f"the exponent {where}, and {domain.limits.name} ends at {domain.limits.largest:.5g}",
                x,
                sure=True,
                fix=fix,
            )
            high, plus = INFINITY, True
        return [ValueRange(low, high, x.nan, False, plus, attained=x.attained)]

    return rule


_LOGS = (
    (reduction.SOFTMAX, reduction.LOG_SOFTMAX, "ops.log_softmax(x) in place of the log of a softmax"),
    (elementwise.SIGMOID, activation.LOG_SIGMOID, "ops.log_sigmoid(x) in place of the log of a sigmoid"),
)
"""Ops by which the log of an op's result is better computed."""


def logarithm(function: Callable[[float], float], name: str, pole: float = 0.0) -> Rule:
    """A logarithm, -inf at `pole` and nan below it."""

    def rule(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
        (x,) = facts
        nan, minus = x.nan, False
        if x.low <= pole:
            known = x.low > -INFINITY
            below = x.low < pole
            kind = "may be" if not below else "may be below" if known else "is not known to be above"
            text = f"{name} of what {kind} {pole:g}: it is in {x}"
            domain.remark("log-of-zero", text, x, sure=known, fix=_instead(domain, call, x))
            minus, nan = True, nan or below
        low = -INFINITY if x.low <= pole else function(x.low)
        high = INFINITY if x.high == INFINITY else (function(x.high) if x.high > pole else -INFINITY)
        low, high = domain.limits.widened(low, max(low, high), _ULPS)
        result = ValueRange(low, high, nan, minus, x.plus, attained=x.attained if not minus else ())
        return [result]

    def _instead(domain: Ranges, call: OpCall, x: ValueRange) -> str:
        """The op to put in its place, tried by the same rules."""
        made = domain.maker(x)
        if made is not None and name == "log":
            source, facts = made
            for primitive, better, text in _LOGS:
                if source.primitive is primitive and domain.tried(better, source.static, source.inputs, facts):
                    return f"{text}, which does not go through a number that rounds to 0"
        least = max(x.low, 1e-6)
        if not pole and domain.holds(lambda: rule(domain, call, (x._replace(low=least),))):
            return "ops.safe_log(x, eps=1e-6), or a small number added to x"
        return ""

    return rule


def root(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    nan = x.nan or x.low < 0
    if x.low < 0:
        known = x.low > -INFINITY
        kind = "may be below 0" if known else "is not known to be at least 0"
        fix = ""
        if domain.holds(lambda: root(domain, call, (x._replace(low=0.0, minus=False),))):
            fix = "ops.sqrt(ops.maximum(x, 0)); a variance is safest as the mean of squares of what is centred"
        domain.remark("sqrt-of-negative", f"sqrt of what {kind}: it is in {x}", x, sure=known, fix=fix)
    low, high = math.sqrt(max(x.low, 0.0)), math.sqrt(max(x.high, 0.0)) if x.high < INFINITY else INFINITY
    low, high = domain.limits.widened(low, high, 1)
    return [ValueRange(low, high, nan, False, x.plus, attained=x.attained)]


def power_of(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """x ** exponent, a static number."""
    (x,) = facts
    exponent = number(call.static["exponent"])
    if exponent.low != exponent.high or exponent.infinite:
        return [ValueRange(nan=True, minus=True, plus=True)]
    n = exponent.low
    if n < 0:
        return [divided(domain, call, (ValueRange(1, 1), _raised(domain, call, x, -n)))]
    return [_raised(domain, call, x, n)]


def _raised(domain: Ranges, call: OpCall, x: ValueRange, n: float) -> ValueRange:
    if not n:
        return ValueRange(1, 1)
    ends = [_power(bound, n) for bound in (x.low, x.high)]
    even, whole = n % 2 == 0, n.is_integer()
    if x.low < 0 and not whole:
        domain.remark("sqrt-of-negative", f"a power {n:g} of what is in {x}", x, sure=x.low > -INFINITY)
        return ValueRange(0.0, max(ends[1], 0.0), True, False, x.plus)
    low = 0.0 if even and x.may_be_zero else min(ends)
    return domain.result(call, low, max(ends), (x,), ulps=_ULPS)


def _power(x: float, n: float) -> float:
    try:
        if x < 0 and not n.is_integer():
            return 0.0
        return math.pow(x, n)
    except OverflowError:
        return INFINITY if x > 0 or n % 2 == 0 else -INFINITY


def power(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    x, y = facts
    if x.low > 0 and x.bounded and y.bounded:
        ends = [_power(a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
        return [domain.result(call, min(ends), max(ends), facts, ulps=_ULPS)]
    low = 0.0 if x.low >= 0 else -INFINITY
    return [ValueRange(low, INFINITY, x.low < 0 or x.nan or y.nan, low < 0, True)]


def wave(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    return [ValueRange(-1, 1, x.nan or x.infinite)]


def whole(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """floor and round."""
    (x,) = facts
    low = x.low if math.isinf(x.low) else float(math.floor(x.low))
    high = x.high if math.isinf(x.high) else float(math.ceil(x.high))
    return [ValueRange(low, high, x.nan, x.minus, x.plus, True)]


def remainder(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """x mod y has y's sign."""
    x, y = facts
    if not y.bounded or y.may_be_zero or x.infinite:
        return [ValueRange(nan=True, integral=x.integral and y.integral)]
    return [ValueRange(min(y.low, 0), max(y.high, 0), x.nan or y.nan, integral=x.integral and y.integral)]


# Masks and casts ----------------------------------------------------------------------------------------------------


def compared(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """less, less_equal, equal: decided where the ranges are apart."""
    x, y = facts
    if call.primitive is logic.EQUAL:
        never = x.high < y.low or y.high < x.low
        always = x.low == x.high == y.low == y.high and not x.nan and not y.nan
    else:
        strict = call.primitive is logic.LESS
        never = x.low >= y.high if strict else x.low > y.high
        always = (x.high < y.low if strict else x.high <= y.low) and not x.nan and not y.nan
    known = ValueRange(0, 0, integral=True) if never else ValueRange(1, 1, integral=True) if always else BOOLEAN
    return [known]


def both(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    x, y = facts
    return [ValueRange(min(x.low, y.low), min(x.high, y.high), integral=True)]


def inverted(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    return [ValueRange(1 - x.high, 1 - x.low, integral=True)]


def select(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    mask, x, y = facts
    if mask.low == 1:
        return [x.alone]
    if mask.high == 0:
        return [y.alone]
    return [joined(x, y)]


def cast(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    source, target = call.inputs[0].dtype, call.outputs[0].dtype
    if target.kind == "b":
        return [BOOLEAN]
    if is_float(target):
        result = domain.result(call, x.low, x.high, facts, ulps=0 if is_float(source) else 1)
        return [result._replace(integral=x.integral)]
    if not is_float(source):
        return [domain.result(call, x.low, x.high, facts)]
    if x.nan or x.infinite or not x.bounded:
        return [ValueRange(integral=True)]
    return [domain.result(call, math.trunc(x.low), math.trunc(x.high), facts)]  # beyond the dtype it is any number
