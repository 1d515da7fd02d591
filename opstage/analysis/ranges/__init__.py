"""The domain of ranges: bounds of the elements of a tensor, and where they may overflow or be nan."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from typing_extensions import override

from ...ops.body import Body, BodyConstant
from ...ops.dims import Dim
from ...ops.elementwise import ABS, ADD, SUB
from ...ops.primitive import Primitive, Static, distinct
from ...ops.types import DType, TensorType, dtype_name, is_float
from ..domain import Domain, LoopFacts, OpCall, Trips
from .conditions import where
from .fact import (
    ANYTHING,
    BOOLEAN,
    INFINITY,
    LARGEST_EXACT,
    FloatLimits,
    ValueRange,
    float_limits,
    join_ranges,
    meet,
    of_integers,
    overflow_text,
    within,
)
from .growth import count_trips, limits_of_growth
from .rules import RULES

if TYPE_CHECKING:
    from ..interpretation import Interpretation


__all__ = ["ANYTHING", "RangeRemark", "Ranges", "ValueRange", "float_limits", "input_bounds", "matches"]

ASSUMPTIONS = (
    "inputs without a declared range are finite, and sums and products of unbounded numbers do not overflow",
    "the rounding of a sum of n numbers is at most 1/64 of the sum of their sizes",
)
"""The assumptions of every range."""

INITIAL = (
    "parameters, state and optimizer state have their initial values, for any seed; their values after training are "
    "not covered"
)


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches an input's path."""
    return name == pattern or fnmatchcase(name, pattern)


def input_bounds(
    name: str, bounds: Mapping[str, tuple[float, float]], declared: Mapping[str, tuple[float, float]]
) -> tuple[float, float]:
    """Return the bounds of an input: of the first pattern that matches it, else the declared ones."""
    found = next((ends for pattern, ends in bounds.items() if matches(name, pattern)), None)
    return declared.get(name, (-INFINITY, INFINITY)) if found is None else found


_ENDS = (-1.0, 0.0, 1.0)
"""Ends at which the widening of a growing range pauses for a round."""


LASTING = "the corrections of an optimizer are those of some step"
INVARIANT = (
    "state and optimizer state start as initialised: values that are nonnegative then stay so, which is proved for "
    "every step"
)


class RangeRemark(NamedTuple):
    """A way in which an op may go wrong: the rule, its severity, a text and a fix."""

    rule: str
    severity: Literal["warning", "note"]
    text: str
    fix: str = ""


class Ranges(Domain[ValueRange]):
    """Ranges of a program that computes floats in the dtype `limits.name`.

    bounds      pattern of an input's path -> (low, high); the first match counts
    declared    an input's path -> (low, high), where no bound matches
    initial     an input's path -> (low, high) of its first value, where there is none of these
    lasting     an input's path -> (low, high) in every step, where there is none of these
    invariants  an input's path -> (low, high) before every step, possibly with an open end; the others come first
    native      the float dtype of the program
    given       sentences on the input ranges in use
    remarks     findings of the run
    hidden      by value, for results that are nan or infinite only where a select drops them: a fix that passed a trial
    beyond      by value, for constants with numbers that are infinite in the dtype: a message, until an op reads them
    attended    the attentions so far, by their operands and the residuals of their gradients
    latest      the value of the last result
    makers      by value: the op that computed it, with its static parameters and the facts of its operands
    """

    name = "ranges"
    rules = RULES
    kinds: ClassVar = {}

    def __init__(
        self,
        limits: FloatLimits,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        declared: Mapping[str, tuple[float, float]] | None = None,
        initial: Mapping[str, tuple[float, float]] | None = None,
        lasting: Mapping[str, tuple[float, float]] | None = None,
        invariants: Mapping[str, tuple[float, float]] | None = None,
        native: DType | None = None,
    ):
        self.limits = limits
        self.native = native
        self.bounds = dict(bounds or {})
        self.declared = dict(declared or {})
        self.initial = dict(initial or {})
        self.lasting = dict(lasting or {})
        self.invariants = dict(invariants or {})
        self.given: dict[str, None] = {}
        self.remarks: list[RangeRemark] = []
        self.assumptions: dict[str, None] = dict.fromkeys(ASSUMPTIONS)
        self.run: Interpretation | None = None  # the run that tries fixes
        self.makers: dict[int, tuple[OpCall, Sequence[ValueRange]]] = {}
        self.hidden: dict[int, str] = {}
        self.beyond: dict[int, str] = {}
        self.latest = 0
        self.attended: set[Hashable] = set()
        self._values = 0
        self._known: dict[Any, int] = {}

    # Initial facts ----------------------------------------------------------------------------------------------------

    @override
    def source(self, name: str, type: TensorType) -> ValueRange:
        if type.dtype.kind == "b":
            return BOOLEAN._replace(value=self.fresh())
        whole = not is_float(type.dtype)
        low, high = self._ends(name)
        if not whole:
            low, high = self.dtype_limits(type.dtype).rounded(low, high)
        else:
            low, high = of_integers(low, high)
        return ValueRange(low, high, integral=whole, value=self.fresh())

    def finite(self, fact: ValueRange, type: TensorType) -> ValueRange:
        """Return the fact of an input that is any finite number of its dtype within its bounds."""
        if type.dtype.kind == "b":
            return fact
        least, most = -self.dtype_limits(type.dtype).largest, self.dtype_limits(type.dtype).largest
        if not is_float(type.dtype):
            least, most = np.iinfo(type.dtype).min, np.iinfo(type.dtype).max
        return fact._replace(low=max(fact.low, least), high=min(fact.high, most))

    def _ends(self, name: str) -> tuple[float, float]:
        """Return the bounds of an input before rounding."""
        for pattern, ends in self.bounds.items():
            if matches(name, pattern):
                self.given[f"{pattern} is in {ValueRange(*ends)}, as stated"] = None
                return ends
        found = self.declared.get(name)
        if found is None:
            return self._first(name)
        self.given[f"{name} is in {ValueRange(*found)}, as its Spec declares and runs check"] = None
        return found

    def _first(self, name: str) -> tuple[float, float]:
        low, high = self.initial.get(name, self.lasting.get(name, (-INFINITY, INFINITY)))
        if name in self.initial:
            self.given[INITIAL] = None
        elif name in self.lasting:
            self.given[LASTING] = None
        if name in self.invariants and name not in self.initial:
            self.given[INVARIANT] = None
            return self.invariants[name]
        # An infinite end, or nan, does not bound finite numbers.
        return (low, high) if math.isfinite(low) and math.isfinite(high) else (-INFINITY, INFINITY)

    @override
    def constant(self, constant: BodyConstant) -> ValueRange:
        array = np.asarray(constant.value)
        if array.dtype.kind not in "biuf" or not array.size:
            return ANYTHING
        numbers = array.astype(np.float64)
        known = numbers[~np.isnan(numbers)]
        if not known.size:
            return ValueRange(nan=True)
        low, high = float(known.min()), float(known.max())
        if array.dtype.kind != "f":
            return ValueRange(*of_integers(low, high), integral=True, value=self.fresh())
        limits = self.dtype_limits(array.dtype)
        minus, plus = bool((known < -limits.largest).any()), bool((known > limits.largest).any())
        value = self.fresh()
        if (minus and low > -INFINITY) or (plus and high < INFINITY):
            self.beyond[value] = overflow_text(limits, low if low < -limits.largest else high)
        low, high = limits.rounded(-INFINITY if minus else low, INFINITY if plus else high)
        return ValueRange(low, high, known.size < numbers.size, minus, plus, value=value)

    @override
    def top(self, type: TensorType, operands: Sequence[ValueRange]) -> ValueRange:
        if is_float(type.dtype):
            self.remark("unbounded", "bounds of its result are unknown", *operands, sure=False)
        return self.anything(type)

    @override
    def anything(self, type: TensorType) -> ValueRange:
        if type.dtype.kind == "b":
            return BOOLEAN
        return ANYTHING if is_float(type.dtype) else ValueRange(integral=True)

    # Order ------------------------------------------------------------------------------------------------------------

    @override
    def join(self, a: ValueRange, b: ValueRange) -> ValueRange:
        return a if a == b else join_ranges(a, b)

    @override
    def widen(self, before: ValueRange, after: ValueRange) -> ValueRange:
        low, high = after.low, after.high
        if low < before.low:
            low = max([end for end in _ENDS if end <= low], default=-INFINITY)
        if high > before.high:
            high = min([end for end in _ENDS if end >= high], default=INFINITY)
        # A carry that grows from iteration to iteration may end beyond every number.
        minus, plus = low == -INFINITY < before.low, high == INFINITY > before.high
        if after.integral and (minus or plus):  # an integer wraps around to the other end
            low, high = -INFINITY, INFINITY
        return ValueRange(low, high, after.nan, after.minus or minus, after.plus or plus, after.integral)

    @override
    def leq(self, a: ValueRange, b: ValueRange) -> bool:
        return within(a, b)

    # Loops: the tensors of an iteration have their own values ---------------------------------------------------------

    @override
    def mark(self) -> int:
        return len(self.remarks)

    @override
    def forget(self, mark: object) -> None:
        assert isinstance(mark, int)
        del self.remarks[mark:]

    @override
    def note_growth(self, before: ValueRange, after: ValueRange) -> None:
        grows = (after.low == -INFINITY < before.low) or (after.high == INFINITY > before.high)
        if grows and not before.infinite:
            self.remark("overflow", "a carry of the loop grows without a known bound", before, sure=False)

    @override
    def bound_trips(
        self,
        body: Body,
        init: Sequence[ValueRange],
        iteration: Callable[[], tuple[Sequence[ValueRange], Sequence[ValueRange | None]]],
    ) -> Trips[ValueRange]:
        return count_trips(body, init, *iteration())

    @override
    def limits_of_carries(self, loop: LoopFacts[ValueRange]) -> Sequence[ValueRange | None]:
        return limits_of_growth(self, loop)

    @override
    def limit(self, fact: ValueRange, limit: ValueRange) -> ValueRange:
        """Return the fact within the limit if it is certainly finite; the growth of anything else has no limit."""
        return meet(fact, limit)._replace(value=0) if fact.bounded and not fact.nan else fact

    @override
    def entry(self, fact: ValueRange, type: TensorType, length: Dim) -> ValueRange:
        return fact.alone._replace(value=self.fresh())

    @override
    def alone(self, fact: ValueRange) -> ValueRange:
        return fact.alone

    @override
    def refine(self, facts: Sequence[ValueRange], test: ValueRange, holds: bool) -> Sequence[ValueRange]:
        known = where(self, test, holds)
        return [known.get(fact.value, fact) if fact.value else fact for fact in facts]

    # Queries of rules -------------------------------------------------------------------------------------------------

    def dtype_limits(self, dtype: DType) -> FloatLimits:
        """Return the limits of a tensor: those of the program, or of the tensor's own dtype, such as after a cast.

        For a program that is checked in another dtype than its own, return the coarser of both.
        """
        if dtype == self.native or dtype.kind != "f":
            return self.limits
        own = float_limits(dtype_name(dtype))
        is_read_as_written = self.native is not None and self.limits.name == dtype_name(self.native)
        return own if is_read_as_written or own.epsilon > self.limits.epsilon else self.limits

    def fresh(self) -> int:
        """Return a value that no other tensor has."""
        self._values += 1
        return self._values

    @override
    def finish(self, call: OpCall, facts: Sequence[ValueRange], results: Sequence[ValueRange]) -> Sequence[ValueRange]:
        """Return the results with values: the same op on the same values has the same value."""
        for fact in facts:
            if fact.value in self.beyond:
                self.remark("overflow", self.beyond.pop(fact.value), sure=True)
        if any(not fact.value for fact in facts):
            self.latest = 0
            return results
        key = (call.primitive, distinct(call.static), tuple([fact.value for fact in facts]), call.inputs)
        valued = []
        for at, result in enumerate(results):
            if not result.value:
                value = self._known.get((key, at))
                if value is None:
                    value = self._known[key, at] = self.fresh()
                result = result._replace(value=value)
            if not at and (call.primitive not in RULES or result.value not in self.makers):
                self.makers[result.value] = (call, facts)
            valued.append(result)
        self.latest = valued[0].value if valued else 0
        return valued

    @override
    def renew(self, fact: ValueRange) -> ValueRange:
        return fact._replace(value=self.fresh())

    def maker(self, fact: ValueRange) -> tuple[OpCall, Sequence[ValueRange]] | None:
        """Return the op that computed a tensor, if known."""
        return self.makers.get(fact.value)

    def magnitude(self, x: ValueRange, y: ValueRange) -> ValueRange:
        """Return the magnitude of x if y is a number of its rows; else x, with its value only if it is nonnegative."""
        made = None if y.share is None else self.makers.get(y.share.of)
        if y.share is not None and made is not None and made[0].primitive is ABS:
            return x._replace(value=y.share.of if made[1][0].value == x.value else 0)
        return x._replace(value=x.value if x.low >= 0 else 0)

    def remark(self, rule: str, text: str, *facts: ValueRange, sure: bool, fix: str = "") -> None:
        """Record what may go wrong with operands; `sure` states whether known bounds show it.

        Consequences of an earlier overflow or nan are not recorded again.
        """
        if not any(fact.nan or fact.plus for fact in facts):
            self.remarks.append(RangeRemark(rule, "warning" if sure else "note", text, fix))

    def holds(self, attempt: Callable[[], Any]) -> bool:
        """Return whether the rules have no remarks on the facts that `attempt` gives them; for trials of fixes."""
        before, self.remarks = self.remarks, []
        try:
            attempt()
            return not self.remarks
        finally:
            self.remarks = before

    def tried(
        self, primitive: Primitive, static: Static, inputs: Sequence[TensorType], facts: Sequence[ValueRange]
    ) -> bool:
        """Return whether another op in place of this one has no remarks."""
        run = self.run
        return run is not None and self.holds(lambda: run.apply(primitive, static, inputs, [(f,) for f in facts]))

    def result(
        self,
        call: OpCall,
        low: float,
        high: float,
        operands: Sequence[ValueRange],
        *,
        ulps: float = 1,
        nan: bool = False,
        known: bool | None = None,
    ) -> ValueRange:
        """Return a result between bounds, rounded to the dtype.

        Overflow is reported if the bounds are `known`: by default if those of all operands are.
        """
        known = all(fact.bounded for fact in operands) if known is None else known
        whole = not is_float(call.outputs[0].dtype)
        infinite = any(fact.infinite for fact in operands)
        nan = nan or any(fact.nan for fact in operands)
        minus, plus = infinite and low == -INFINITY, infinite and high == INFINITY
        if whole:
            return self._integer(call, low, high)
        limits = self.dtype_limits(call.outputs[0].dtype)
        is_sum = call.primitive in (ADD, SUB)
        if is_sum and limits.epsilon <= 2.0**-23:  # kernels round these, but may keep coarser ones in float32
            low, high = (limits.nearest(end) if abs(end) <= limits.largest else end for end in (low, high))
        elif ulps == 1:  # a result that is rounded once does not pass a number of the dtype
            low, high = limits.rounded(low, high)
            if not is_sum:  # sums are exact if they are small
                low, high = limits.flushed(low, high)
        else:
            low, high = limits.widened(low, high, ulps)
        largest = limits.largest
        below = low < -largest and (known or low > -INFINITY or high < -largest)
        above = high > largest and (known or high < INFINITY or low > largest)
        if (below or above) and not infinite:
            shown = ValueRange(low, high)
            self.remark("overflow", f"the result is in {shown}, and {limits.name} ends at {largest:.5g}", sure=True)
        if below:
            low, high, minus = -INFINITY, max(high, -largest), True
        if above:
            low, high, plus = min(low, largest), INFINITY, True
        return ValueRange(low, high, nan, minus, plus)

    def _integer(self, call: OpCall, low: float, high: float) -> ValueRange:
        bits = np.iinfo(np.dtype(call.outputs[0].dtype)) if call.outputs[0].dtype.kind in "iu" else None
        if bits is None:
            return BOOLEAN
        if (math.isfinite(low) and low < bits.min) or (math.isfinite(high) and high > bits.max):
            shown = ValueRange(low, high)
            self.remark("integer-overflow", f"the result is in {shown}, and {bits.dtype} wraps around", sure=True)
            return ValueRange(integral=True)
        exact = all(math.isinf(bound) or abs(bound) <= LARGEST_EXACT for bound in (low, high))
        return ValueRange(low, high, integral=True) if exact else ValueRange(integral=True)
