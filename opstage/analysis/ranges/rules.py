"""The table of transfer rules, and rules of functions of one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from ...ops import (
    activation,
    attention,
    convolution,
    elementwise,
    fourier,
    indexing,
    layout,
    logic,
    loss,
    matmul,
    pooling,
    random,
    reduction,
    rounding,
    sequence,
    slicing,
    transcendental,
)
from ...ops.primitive import Primitive
from ...ops.types import is_float
from ..domain import OpCall, Rule
from ..monotone_functions import MONOTONE, corners, power_operands
from . import conditions
from . import elementwise as element_rules
from . import reduction as reduction_rules
from .elementwise import divided, has_no_zero, number, turned
from .fact import ANYTHING, INFINITY, Facts, ValueRange, inverse, powered, product

if TYPE_CHECKING:
    from . import Ranges


_ULPS = 8.0
"""The assumed error of math libraries, in units in the last place."""


def rising(function: Callable[[float], float]) -> Rule:
    """Return the rule of a monotone function, with values between the limits that its op declares."""

    def rule(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
        (x,), (least, most, *_) = facts, MONOTONE[call.primitive]
        low, high = _evaluate(function, x.low, least, most), _evaluate(function, x.high, least, most)
        limits = domain.dtype_limits(call.outputs[0].dtype)
        ends = limits.rounded(least, most)
        low, high = limits.widened(low, high, _ULPS)
        low, high = max(low, ends[0]), min(high, ends[1])
        minus, plus = x.minus and low == -INFINITY, x.plus and high == INFINITY
        peak = limits.widened(_evaluate(function, x.peak, least, most), 0, _ULPS)[0]
        return [ValueRange(low, high, x.nan, minus, plus, attained=x.attained, peak=peak)]

    return rule


def _evaluate(function: Callable[[float], float], x: float, least: float, most: float) -> float:
    """Return the value of a function that rises from `least` to `most`."""
    try:
        return least if x == -INFINITY else most if x == INFINITY else function(x)
    except OverflowError:
        return INFINITY


def exponential(function: Callable[[float], float]) -> Rule:
    """Return the rule of exp and similar functions, which rise from a declared limit and soon overflow."""

    def rule(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
        (x,), least = facts, MONOTONE[call.primitive].least
        low, high = _evaluate(function, x.low, least, INFINITY), _evaluate(function, x.high, least, INFINITY)
        limits = domain.dtype_limits(call.outputs[0].dtype)
        low, high = limits.widened(low, high, _ULPS)
        # At 0 kernels are exact, and monotone next to it.
        low = max(low, least if x.low < 0 else function(0.0))
        high = min(high, function(0.0)) if x.high <= 0 else high
        plus = x.plus
        if high > limits.largest:
            where = "is not bounded above" if x.high == INFINITY else f"is in {x}"
            fix = ""
            shifted = x._replace(high=0.0, plus=False)
            if domain.holds(lambda: rule(domain, call, (shifted,))):
                fix = "subtract the maximum first: ops.softmax, ops.log_softmax and derived.logsumexp do"
            domain.remark(
                "overflow",
                f"the exponent {where}, and {limits.name} ends at {limits.largest:.5g}",
                x,
                sure=True,
                fix=fix,
            )
            high, plus = INFINITY, True
        peak = limits.widened(_evaluate(function, x.peak, least, INFINITY), 0, _ULPS)[0]
        return [ValueRange(low, high, x.nan, False, plus, attained=x.attained, peak=peak)]

    return rule


_LOGS = (
    (reduction.SOFTMAX, reduction.LOG_SOFTMAX, "ops.log_softmax(x) in place of the log of a softmax"),
    (elementwise.SIGMOID, activation.LOG_SIGMOID, "ops.log_sigmoid(x) in place of the log of a sigmoid"),
)
"""Ops that compute the log of an op's result more accurately."""


def logarithm(function: Callable[[float], float], name: str, pole: float = 0.0) -> Rule:
    """Return the rule of a logarithm, -inf at `pole` and nan below it."""

    def rule(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
        (x,) = facts
        nan, minus = x.nan, False
        if x.low <= pole:
            known = x.low > -INFINITY
            below = x.low < pole
            kind = "may be" if not below else "may be below" if known else "is not known to be above"
            text = f"{name} of an operand that {kind} {pole:g}: it is in {x}"
            domain.remark("log-of-zero", text, x, sure=known, fix=_instead(domain, call, x))
            minus, nan = True, nan or below
        low = -INFINITY if x.low <= pole else function(x.low)
        high = INFINITY if x.high == INFINITY else (function(x.high) if x.high > pole else -INFINITY)
        low, high = domain.dtype_limits(call.outputs[0].dtype).widened(low, max(low, high), _ULPS)
        return [ValueRange(low, high, nan, minus, x.plus)]

    def _instead(domain: Ranges, call: OpCall, x: ValueRange) -> str:
        """Return the text of a replacement that passes a trial by the same rules; "" without one."""
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
            fix = "ops.sqrt(ops.maximum(x, 0)); a variance is safest as the mean of squares of x - mean(x)"
        domain.remark("sqrt-of-negative", f"sqrt of an operand that {kind}: it is in {x}", x, sure=known, fix=fix)
    low, high = math.sqrt(max(x.low, 0.0)), math.sqrt(max(x.high, 0.0)) if x.high < INFINITY else INFINITY
    low, high = domain.dtype_limits(call.outputs[0].dtype).rounded(low, high)
    share = turned(x, "norm", "deviation")
    return [ValueRange(low, high, nan, False, x.plus, share=share)]


def static_power(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of x ** exponent, for a static exponent."""
    (x,) = facts
    exponent = number(call.static["exponent"])
    if exponent.low != exponent.high or exponent.infinite:
        return [domain.top(call.outputs[0], facts)]
    n = exponent.low
    if n < 0:
        return [divided(domain, call, (ValueRange(1, 1), _raised(domain, call, x, -n)))]
    return [_raised(domain, call, x, n)]


def _raised(domain: Ranges, call: OpCall, x: ValueRange, n: float) -> ValueRange:
    if not n:
        return ValueRange(1, 1)
    low, high = [powered(bound, n) for bound in power_operands(Fraction(n), x.low, x.high, lambda: x.sizes)]
    if x.low < 0 and not n.is_integer():
        domain.remark("sqrt-of-negative", f"the power {n:g} of an operand in {x}", x, sure=x.low > -INFINITY)
        return domain.result(call, 0.0, max(high, 0.0), (x,), ulps=_ULPS, nan=True)
    return _within_one(domain.result(call, low, high, (x,), ulps=_ULPS), x)


def power(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of x ** y."""
    x, y = facts
    if x.low < 0 and not y.integral:
        domain.remark("sqrt-of-negative", f"an exponent in {y} of an operand in {x}", *facts, sure=x.low > -INFINITY)
        return [ANYTHING]
    if y.low < 0 and x.may_be_zero:
        domain.remark(
            "division-by-zero", f"an exponent in {y} of an operand that may be 0: it is in {x}", *facts, sure=x.bounded
        )
        return [ANYTHING]
    if not (x.bounded and y.bounded) or any(fact.nan or fact.infinite for fact in facts):
        domain.remark(
            "overflow", f"an exponent in {y} of an operand in {x}: bounds of the power are unknown", *facts, sure=False
        )
        return [ANYTHING]
    greatest, least = x.sizes
    ends = corners(powered, (least, greatest), (y.low, y.high))
    found = domain.result(call, min(ends) if x.low >= 0 else -max(ends), max(ends), facts, ulps=_ULPS)
    return [_within_one(found, x) if y.low >= 0 else found]


def _within_one(found: ValueRange, x: ValueRange) -> ValueRange:
    """Return a power of x with a nonnegative exponent, whose magnitude is at most 1 if that of x is."""
    return found if x.sizes[0] > 1 else found._replace(low=max(found.low, -1.0), high=min(found.high, 1.0))


_FAR = 1e4
"""Up to this magnitude kernels reduce angles by multiples of π to within units in the last place."""


def wave(phase: float) -> Rule:
    """Return the rule of sin(x + phase)."""

    def rule(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
        (x,) = facts
        low, high = -1.0, 1.0
        if x.sizes[0] <= _FAR:
            turns = [(end + phase) / (2 * math.pi) for end in (x.low, x.high)]
            slack = _ULPS * domain.dtype_limits(call.outputs[0].dtype).epsilon * max(1.0, x.sizes[0])
            ends = [math.sin(end + phase) for end in (x.low, x.high)]
            if (
                math.ceil(turns[0] - 0.25) > turns[1] - 0.25
            ):  # no maximum lies between them; maxima are a quarter turn on
                high = min(max(ends) + slack, 1.0)
            if math.ceil(turns[0] + 0.25) > turns[1] + 0.25:
                low = max(min(ends) - slack, -1.0)
        return [ValueRange(low, high, x.nan or x.infinite)]

    return rule


def inverse_of_wave(function: Callable[[float], float], name: str) -> Rule:
    """Return the rule of asin or acos, for numbers between -1 and 1."""

    def rule(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
        (x,) = facts
        outside = x.low < -1 or x.high > 1
        if outside:
            text = f"{name} of an operand that may be outside [-1, 1]: it is in {x}"
            fix = "ops.clamp(x, lo=-1.0, hi=1.0)"
            domain.remark("outside-of-domain", text, x, sure=x.low > -INFINITY or x.high < INFINITY, fix=fix)
        ends = [function(min(max(end, -1.0), 1.0)) for end in (x.low, x.high)]
        low, high = domain.dtype_limits(call.outputs[0].dtype).widened(min(ends), max(ends), _ULPS)
        return [ValueRange(low, high, x.nan or outside)]

    return rule


def angle(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of atan2(y, x), which is defined everywhere."""
    y, x = facts
    low, high = (0.0 if y.low > 0 else -math.pi), (0.0 if y.high < 0 else math.pi)
    if x.low > 0:
        low, high = max(low, -math.pi / 2), min(high, math.pi / 2)
    low, high = domain.dtype_limits(call.outputs[0].dtype).widened(low, high, _ULPS)
    return [ValueRange(low, high, y.nan or x.nan)]


def whole(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of floor or round."""
    (x,) = facts
    low = x.low if math.isinf(x.low) else float(math.floor(x.low))
    high = x.high if math.isinf(x.high) else float(math.ceil(x.high))
    return [ValueRange(low, high, x.nan, x.minus, x.plus, True)]


def remainder(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of x mod y, which has the sign of y."""
    x, y = facts
    if not has_no_zero(domain, y) and not is_float(call.outputs[0].dtype):
        return [domain.anything(call.outputs[0])]
    nan = x.nan or y.nan or x.infinite or y.may_be_zero
    return [ValueRange(min(y.low, 0), max(y.high, 0), nan, y.minus, y.plus, x.integral and y.integral)]


def quotient(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of floor(x / y)."""
    x, y = facts
    if not has_no_zero(domain, y) or x.infinite or y.infinite:
        return [domain.anything(call.outputs[0])]
    low, high = domain.dtype_limits(call.outputs[0].dtype).widened(*product(x, ValueRange(*inverse(y))), 2)
    low, high = (end if math.isinf(end) else float(math.floor(end)) for end in (low, high))
    return [domain.result(call, low, high, facts, ulps=0)._replace(integral=True)]


# Rules by primitive; composites without a rule use their decomposition ------------------------------------------------


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


_LINEAR = (
    *(convolution.CONV_TRANSPOSE, convolution.CONV_KERNEL_GRAD, fourier.FFT, fourier.RFFT, fourier.IRFFT),
    *(pooling.AVG_POOL_GRAD, pooling.MAX_POOL_SCATTER, indexing.SCATTER_ADD_ROWS),
)
RULES: Final[Mapping[Primitive, Rule]] = {
    elementwise.ADD: element_rules.add,
    elementwise.SUB: element_rules.sub,
    elementwise.MUL: element_rules.mul,
    elementwise.DIV: element_rules.div,
    elementwise.INV: element_rules.inv,
    elementwise.NEG: element_rules.neg,
    elementwise.ABS: element_rules.absolute,
    elementwise.SCALE: element_rules.scale,
    elementwise.MAXIMUM: element_rules.extremum(larger=True),
    elementwise.MINIMUM: element_rules.extremum(larger=False),
    elementwise.EXP: exponential(math.exp),
    elementwise.LOG: logarithm(math.log, "log"),
    elementwise.SQRT: root,
    elementwise.SIN: wave(0.0),
    elementwise.COS: wave(math.pi / 2),
    elementwise.TANH: rising(math.tanh),
    elementwise.SIGMOID: rising(_sigmoid),
    elementwise.SOFTPLUS: rising(_softplus),
    elementwise.ERF: rising(math.erf),
    elementwise.POW: static_power,
    elementwise.POWER: power,
    transcendental.ATAN: rising(math.atan),
    transcendental.ATAN2: angle,
    transcendental.ASIN: inverse_of_wave(math.asin, "asin"),
    transcendental.ACOS: inverse_of_wave(math.acos, "acos"),
    transcendental.EXP2: exponential(lambda x: math.pow(2.0, x)),
    transcendental.EXPM1: exponential(math.expm1),
    transcendental.LOG1P: logarithm(math.log1p, "log1p", pole=-1.0),
    transcendental.LOG2: logarithm(math.log2, "log2"),
    transcendental.LOG10: logarithm(math.log10, "log10"),
    **dict.fromkeys((rounding.FLOOR, rounding.ROUND), whole),
    rounding.MOD: remainder,
    rounding.FLOOR_DIVIDE: quotient,
    **dict.fromkeys((logic.LESS, logic.LESS_EQUAL, logic.EQUAL), conditions.compared),
    logic.LOGICAL_AND: conditions.both,
    logic.LOGICAL_NOT: conditions.inverted,
    logic.SELECT: conditions.select,
    logic.CAST: conditions.cast,
    logic.DETACH: reduction_rules.identity,
    logic.FULL: reduction_rules.full,
    logic.IOTA: reduction_rules.iota,
    random.RAND_UNIFORM: reduction_rules.uniform,
    random.RAND_NORMAL: reduction_rules.normal,
    **dict.fromkeys((layout.PERMUTE, slicing.SLICE, pooling.MAX_POOL_GATHER), reduction_rules.rearrange),
    layout.RESHAPE: reduction_rules.reshape,
    layout.BROADCAST_TO: reduction_rules.broadcast_to,
    slicing.CONCAT: reduction_rules.concat,
    slicing.PAD: reduction_rules.pad,
    reduction.REDUCE_SUM: reduction_rules.reduce_sum,
    reduction.REDUCE_MEAN: reduction_rules.reduce_mean,
    reduction.REDUCE_MAX: reduction_rules.reduce_max,
    **dict.fromkeys((reduction.ARGMAX, sequence.ARGSORT), reduction_rules.place),
    sequence.LINEAR_RECURRENCE: reduction_rules.recurrence,
    sequence.CUMSUM: reduction_rules.cumsum,
    **dict.fromkeys((sequence.CUMPROD, sequence.REDUCE_PROD), reduction_rules.product_of_all),
    **dict.fromkeys((matmul.MATMUL, matmul.BMM), reduction_rules.matmul),
    activation.RELU: element_rules.relu,
    **dict.fromkeys((attention.SCALED_DOT_PRODUCT_ATTENTION, attention.BIASED_ATTENTION), reduction_rules.attention),
    **dict.fromkeys(
        (attention.SCALED_DOT_PRODUCT_ATTENTION_GRAD, attention.BIASED_ATTENTION_GRAD), reduction_rules.attention_grad
    ),
    **dict.fromkeys((loss.CROSS_ENTROPY, loss.CROSS_ENTROPY_GRAD), reduction_rules.cross_entropy),
    convolution.CONV: reduction_rules.conv,
    pooling.MAX_POOL: reduction_rules.max_pool,
    pooling.AVG_POOL: reduction_rules.avg_pool,
    indexing.GATHER_ROWS: reduction_rules.gather_rows,
    **dict.fromkeys(_LINEAR, reduction_rules.linear_finite),
}
