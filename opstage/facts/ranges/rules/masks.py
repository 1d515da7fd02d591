"""Comparisons, masks, choices by them, and casts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ....ops.catalogue import logic
from ....ops.types import is_float
from ...domain import OpCall
from ..fact import BOOLEAN, INFINITY, Facts, ValueRange, joined
from . import norms
from .conditions import branch, hidden, where

if TYPE_CHECKING:
    from .. import Ranges


def compared(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """less, less_equal, equal: decided where the ranges are apart."""
    x, y = facts
    if x.value and x.value == y.value:
        never, always = call.primitive is logic.LESS, call.primitive is not logic.LESS and not x.nan
    elif call.primitive is logic.EQUAL:
        never = x.high < y.low or y.high < x.low
        always = x.low == x.high == y.low == y.high and not x.nan and not y.nan
    else:
        strict = call.primitive is logic.LESS
        never = x.low >= y.high if strict else x.low > y.high
        # Of what is finite and has no known bound the bound is infinite, as that of infinities is.
        apart = y.low == INFINITY and not x.plus or x.high == -INFINITY and not y.minus
        always = (x.high < y.low or apart if strict else x.high <= y.low) and not x.nan and not y.nan
    return [ValueRange(0, 0, integral=True) if never else ValueRange(1, 1, integral=True) if always else BOOLEAN]


def both(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    x, y = facts
    return [ValueRange(min(x.low, y.low), min(x.high, y.high), integral=True)]


def inverted(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    return [ValueRange(1 - x.high, 1 - x.low, integral=True)]


def select(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Either branch, each as it is where it is taken."""
    mask, x, y = facts
    if mask.low == 1:
        return [x]
    if mask.high == 0:
        return [y]
    taken = []
    for chosen, holds in ((x, True), (y, False)):
        known = where(domain, mask, holds)
        taken.append(branch(domain, chosen, known) if known else chosen)
        if known:
            hidden(domain, chosen, known)
    share = norms.above(x)  # where y is taken it is at least x
    return [joined(*taken)._replace(share=share if known.get(x.value, x).high <= taken[1].low else None)]


def cast(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    source, target = call.inputs[0].dtype, call.outputs[0].dtype
    if target.kind == "b":
        return [BOOLEAN]
    if is_float(target):
        finer = is_float(source) and domain.limits_at(source).epsilon < domain.limits_at(target).epsilon
        result = domain.result(call, x.low, x.high, facts, ulps=1 if finer or not is_float(source) else 0)
        return [result._replace(integral=x.integral)]
    if not is_float(source):
        return [domain.result(call, x.low, x.high, facts)]
    if x.nan or x.infinite or not x.bounded:
        text = f"a cast to {target} of what is in {x}, which has no known bound"
        domain.remark("integer-overflow", text, x, sure=False)
        return [ValueRange(integral=True)]
    return [domain.result(call, math.trunc(x.low), math.trunc(x.high), facts)]  # beyond the dtype it is any number
