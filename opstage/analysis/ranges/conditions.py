"""Conditions: ranges where a mask holds, and ops whose values a select drops but whose gradients it does not.

A mask that compares tensors bounds their elements at each place where it holds. So a branch of a select has its range
where the mask holds, or does not, if all ops between the comparison and the branch are elementwise. The branch is
computed at the other places as well. Its value is dropped there, but the derivative of select sends a gradient of 0
there, and 0 times an infinite or nan derivative is nan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...ops import logic
from ...ops.primitive import Kind
from ...ops.types import is_float
from ..domain import OpCall
from .elementwise import above
from .fact import BOOLEAN, INFINITY, LARGEST_EXACT, Facts, ValueRange, join_ranges, meet

if TYPE_CHECKING:
    from . import Ranges


_DEPTH = 6
"""The number of ops by which a branch is followed back to the operands of its mask."""

Known = Mapping[int, ValueRange]
"""The ranges of tensors, by their values, at some of their places."""


def where(domain: Ranges, mask: ValueRange, holds: bool) -> dict[int, ValueRange]:
    """Return the ranges of tensors, by their values, where a mask holds, or where it does not."""
    made = domain.maker(mask)
    if made is None:
        return {}
    call, facts = made
    if call.primitive is logic.LOGICAL_NOT:
        return where(domain, facts[0], not holds)
    if call.primitive is logic.LOGICAL_AND:
        if not holds:  # either may be the false one
            return next((where(domain, y, False) for x, y in (facts, facts[::-1]) if x.low == 1), {})
        first, second = (where(domain, fact, True) for fact in facts)
        both = {value: meet(fact, first[value]) if value in first else fact for value, fact in second.items()}
        return {**first, **both}
    if call.primitive not in (logic.LESS, logic.LESS_EQUAL, logic.EQUAL):
        return {}
    x, y = facts
    if call.primitive is logic.EQUAL:
        found = _equal(x, y) if holds else (_exclude(domain, call, x, y), _exclude(domain, call, y, x))
    elif holds:
        found = _ordered(domain, call, x, y, call.primitive is logic.LESS)
    else:
        found = _not_ordered(domain, call, x, y, call.primitive is logic.LESS_EQUAL)
    # With new values: results computed from these ranges do not hold at other places.
    return {f.value: g._replace(value=domain.fresh()) for f, g in zip((x, y), found) if f.value and g != f}


def _ordered(domain: Ranges, call: OpCall, x: ValueRange, y: ValueRange, strict: bool) -> tuple[ValueRange, ValueRange]:
    """Return the ranges where x < y or x <= y, which excludes nan and, if strict, an infinity at the wrong end."""
    high, low = min(x.high, y.high), max(x.low, y.low)
    if strict:
        high, low = min(x.high, _below(domain, call, y.high)), max(y.low, _above(domain, call, x.low))
    return (
        _cut(x, x.low, high)._replace(nan=False, plus=x.plus and y.plus and not strict),
        _cut(y, low, y.high)._replace(nan=False, minus=y.minus and x.minus and not strict),
    )


def _not_ordered(
    domain: Ranges, call: OpCall, x: ValueRange, y: ValueRange, strict: bool
) -> tuple[ValueRange, ValueRange]:
    """Return the ranges where y < x, if strict, or y <= x; or where one of them is nan and the other may be
    anything.
    """
    after, before = _ordered(domain, call, y, x, strict)
    return (x if y.nan else before._replace(nan=x.nan), y if x.nan else after._replace(nan=y.nan))


def _equal(x: ValueRange, y: ValueRange) -> tuple[ValueRange, ValueRange]:
    low, high = max(x.low, y.low), min(x.high, y.high)
    minus, plus = x.minus and y.minus, x.plus and y.plus
    return (
        _cut(x, low, high)._replace(nan=False, minus=minus, plus=plus),
        _cut(y, low, high)._replace(nan=False, minus=minus, plus=plus),
    )


def _exclude(domain: Ranges, call: OpCall, x: ValueRange, y: ValueRange) -> ValueRange:
    """Return the range of x where x != y: without an end of x that y is everywhere."""
    if y.low != y.high or y.nan or not math.isfinite(y.low) or x.low == x.high:
        return x
    low = _above(domain, call, x.low) if x.low == y.low else x.low
    high = _below(domain, call, x.high) if x.high == y.low else x.high
    return _cut(x, low, high)


def _cut(x: ValueRange, low: float, high: float) -> ValueRange:
    """Return the elements of x between these ends; x itself if there are none."""
    low, high = max(x.low, low), min(x.high, high)
    return x.alone._replace(low=low, high=high) if low <= high else x.alone


def _above(domain: Ranges, call: OpCall, x: float) -> float:
    """Return a lower bound of the numbers greater than x."""
    if not is_float(call.inputs[0].dtype):
        return x + 1 if abs(x) < LARGEST_EXACT else x
    return domain.dtype_limits(call.inputs[0].dtype).least if x == 0 else x


def _below(domain: Ranges, call: OpCall, x: float) -> float:
    return -_above(domain, call, -x)


def branch(domain: Ranges, x: ValueRange, known: Known, depth: int = _DEPTH) -> ValueRange:
    """Return the range of a tensor at the places that `known` describes."""
    if x.value in known:
        return known[x.value]
    inner = _inner(domain, x, known, depth)
    if inner is None or domain.run is None:
        return x
    call, facts = inner
    run, found = domain.run, []
    domain.holds(lambda: found.extend(run.apply(call.primitive, call.static, call.inputs, [(f,) for f in facts])))
    return meet(found[0][0], x)


def _inner(domain: Ranges, x: ValueRange, known: Known, depth: int) -> tuple[OpCall, list[ValueRange]] | None:
    """Return the op that computed a tensor, with the ranges of its operands there; None if they are not narrower."""
    made = domain.maker(x)
    if made is None or not depth:
        return None
    call, facts = made
    shape = str(call.outputs[0].shape)
    if call.primitive.kind is not Kind.POINTWISE or any(str(type_.shape) != shape for type_ in call.inputs):
        return None
    inner = [branch(domain, fact, known, depth - 1) for fact in facts]
    return None if inner == list(facts) else (call, inner)


def hidden(domain: Ranges, x: ValueRange, known: Known, depth: int = _DEPTH) -> None:
    """Record the ops behind a branch that are nan or infinite, but not where the branch is selected."""
    made, inner = domain.maker(x), _inner(domain, x, known, depth)
    if made is None or inner is None:
        return
    call, facts = made
    clean = not any(fact.nan or fact.infinite for fact in facts)
    if not clean:
        for fact in facts:
            hidden(domain, fact, known, depth - 1)
    elif x.nan or x.infinite:
        there = branch(domain, x, known, depth)
        if not (there.nan or there.infinite):
            # Replace other elements by 1, which most functions accept.
            one = [join_ranges(g, ValueRange(1, 1)) if g != f else f for f, g in zip(facts, inner[1])]
            tried = domain.tried(call.primitive, call.static, call.inputs, one)
            domain.hidden[x.value] = HIDDEN_FIX if tried else ""


HIDDEN_FIX = "choose the operand too: with z = ops.select(mask, x, 1) the op takes z, and select its result"


# Comparisons, masks, selections, and casts ----------------------------------------------------------------------------


def compared(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of less, less_equal or equal, which is decided if the ranges are disjoint."""
    x, y = facts
    if x.value and x.value == y.value:
        never, always = call.primitive is logic.LESS, call.primitive is not logic.LESS and not x.nan
    elif call.primitive is logic.EQUAL:
        never = x.high < y.low or y.high < x.low
        always = x.low == x.high == y.low == y.high and not x.nan and not y.nan
    else:
        strict = call.primitive is logic.LESS
        never = x.low >= y.high if strict else x.low > y.high
        # Finite numbers without a known bound have an infinite bound, as infinities do.
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
    """Return the range of both branches, each where it is selected."""
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
    share = above(x)  # the selected y is at least x
    return [join_ranges(*taken)._replace(share=share if known.get(x.value, x).high <= taken[1].low else None)]


def cast(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    source, target = call.inputs[0].dtype, call.outputs[0].dtype
    if target.kind == "b":
        return [BOOLEAN]
    if is_float(target):
        finer = is_float(source) and domain.dtype_limits(source).epsilon < domain.dtype_limits(target).epsilon
        result = domain.result(call, x.low, x.high, facts, ulps=1 if finer or not is_float(source) else 0)
        return [result._replace(integral=x.integral)]
    if not is_float(source):
        return [domain.result(call, x.low, x.high, facts)]
    if x.nan or x.infinite or not x.bounded:
        text = f"a cast to {target} of an operand in {x}, whose bounds are unknown"
        domain.remark("integer-overflow", text, x, sure=False)
        return [ValueRange(integral=True)]
    return [domain.result(call, math.trunc(x.low), math.trunc(x.high), facts)]  # beyond the dtype any number may result
