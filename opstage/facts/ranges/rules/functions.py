"""Functions of one number that rise, and those that leave the numbers of the dtype or have no value somewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

from ....ops.catalogue import activation, elementwise, reduction
from ....ops.catalogue.monotone import MONOTONE
from ....ops.enclosures import corners, power_operands
from ...domain import OpCall, Rule
from ..fact import ANYTHING, INFINITY, Facts, ValueRange
from . import norms
from .pointwise import divided, number

if TYPE_CHECKING:
    from .. import Ranges

_ULPS = 8.0
"""Units in the last place within which functions of math libraries are taken to be."""


def rising(function: Callable[[float], float]) -> Rule:
    """A function that never falls, its values between those limits that its op declares."""

    def rule(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
        (x,), (least, most, _) = facts, MONOTONE[call.primitive]
        low, high = _at(function, x.low, least, most), _at(function, x.high, least, most)
        limits = domain.limits_at(call.outputs[0].dtype)
        ends = limits.rounded(least, most)
        low, high = limits.widened(low, high, _ULPS)
        low, high = max(low, ends[0]), min(high, ends[1])
        minus, plus = x.minus and low == -INFINITY, x.plus and high == INFINITY
        peak = limits.widened(_at(function, x.peak, least, most), 0, _ULPS)[0]
        return [ValueRange(low, high, x.nan, minus, plus, attained=x.attained, peak=peak)]

    return rule


def _at(function: Callable[[float], float], x: float, least: float, most: float) -> float:
    """The value of a function that rises from `least` to `most`."""
    try:
        return least if x == -INFINITY else most if x == INFINITY else function(x)
    except OverflowError:
        return INFINITY


def exponential(function: Callable[[float], float]) -> Rule:
    """exp and its like: rises from what its op declares, and leaves the numbers of the dtype soon."""

    def rule(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
        (x,), least = facts, MONOTONE[call.primitive].least
        low, high = _at(function, x.low, least, INFINITY), _at(function, x.high, least, INFINITY)
        limits = domain.limits_at(call.outputs[0].dtype)
        low, high = limits.widened(low, high, _ULPS)
        if low < least + 2 * limits.least:
            low = least
        plus = x.plus
        if high > limits.largest:
            where = "has no known bound above" if x.high == INFINITY else f"is in {x}"
            fix = ""
            shifted = x._replace(high=0.0, plus=False)
            if domain.holds(lambda: rule(domain, call, (shifted,))):
                fix = "take the maximum off first: ops.softmax, ops.log_softmax and derived.logsumexp do"
            domain.remark(
                "overflow",
                f"the exponent {where}, and {limits.name} ends at {limits.largest:.5g}",
                x,
                sure=True,
                fix=fix,
            )
            high, plus = INFINITY, True
        peak = limits.widened(_at(function, x.peak, least, INFINITY), 0, _ULPS)[0]
        return [ValueRange(low, high, x.nan, False, plus, attained=x.attained, peak=peak)]

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
        low, high = domain.limits_at(call.outputs[0].dtype).widened(low, max(low, high), _ULPS)
        return [ValueRange(low, high, nan, minus, x.plus)]

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
    low, high = domain.limits_at(call.outputs[0].dtype).widened(low, high, 1)
    share = norms.turned(x, "norm", "deviation")
    return [ValueRange(low, high, nan, False, x.plus, share=share)]


def power_of(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """x ** exponent, a static number."""
    (x,) = facts
    exponent = number(call.static["exponent"])
    if exponent.low != exponent.high or exponent.infinite:
        return [ANYTHING]
    n = exponent.low
    if n < 0:
        return [divided(domain, call, (ValueRange(1, 1), _raised(domain, call, x, -n)))]
    return [_raised(domain, call, x, n)]


def _raised(domain: Ranges, call: OpCall, x: ValueRange, n: float) -> ValueRange:
    if not n:
        return ValueRange(1, 1)
    low, high = [_power(bound, n) for bound in power_operands(Fraction(n), x.low, x.high, lambda: x.sizes)]
    if x.low < 0 and not n.is_integer():
        domain.remark("sqrt-of-negative", f"a power {n:g} of what is in {x}", x, sure=x.low > -INFINITY)
        return ValueRange(0.0, max(high, 0.0), True, False, x.plus)
    return domain.result(call, low, high, (x,), ulps=_ULPS)


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
        ends = corners(_power, (x.low, x.high), (y.low, y.high))
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
