"""Growth of loop carries, by at most a factor and a number in each iteration, and trip counts of while loops.

c ← a·c + b with |a| < 1 never exceeds max(|c₀|, |b|/(1 - |a|)), and a running sum of n terms is at most n times the
largest of them. Ranges alone find neither limit, since only the range of all numbers is stable. So the body runs once
more on magnitudes in place of ranges: each element of a tensor is at most Σ αⱼ·max|cⱼ| + β, for the carries cⱼ of the
iteration. That limits the carries of all iterations, and another run on ranges confirms the limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

import numpy as np
from typing_extensions import override

from ...ops import activation, elementwise, indexing, layout, logic, reduction, slicing
from ...ops import matmul as linalg
from ...ops.body import Body
from ...ops.dims import Dim
from ...ops.primitive import Primitive
from ...ops.types import TensorType, is_float
from ..dependence.regions import largest
from ..domain import Domain, LoopFacts, OpCall, Rule, Trips
from .fact import INFINITY, ValueRange
from .reduction import counted

if TYPE_CHECKING:
    from . import Ranges


_ROUNDING = 1 + 1 / 64
"""The rounding factor of a sum, see `ASSUMPTIONS`."""
_SLACK = 1 + 1e-6
"""The factor that covers the rounding of the limits themselves."""


class Size(NamedTuple):
    """A bound of magnitudes, Σ factor·max|c| + rest over `factors`, which maps the index of a carry to its factor."""

    factors: tuple[tuple[int, float], ...] = ()
    rest: float = INFINITY

    def times(self, factor: float) -> Size:
        """Return the size of the elements multiplied by `factor`."""
        return Size(tuple([(i, a * factor) for i, a in self.factors]), self.rest * factor if factor else 0.0)


UNKNOWN = Size()


def _sum(x: Size, y: Size) -> Size:
    factors = dict(x.factors)
    for i, a in y.factors:
        factors[i] = factors.get(i, 0.0) + a
    return Size(tuple(sorted(factors.items())), x.rest + y.rest)


def _larger(x: Size, y: Size) -> Size:
    factors = dict(x.factors)
    for i, a in y.factors:
        factors[i] = max(factors.get(i, 0.0), a)
    return Size(tuple(sorted(factors.items())), max(x.rest, y.rest))


@final
class Growth(Domain[Size]):
    """Bounds of the magnitudes that an iteration computes from finite carries; reads the ranges of the same tensors."""

    name = "growth"
    asks = ("ranges",)
    rules: ClassVar[Mapping[Primitive, Rule]]

    def __init__(self, ranges: Ranges):
        self.ranges = ranges

    @override
    def anything(self, type: TensorType) -> Size:
        return UNKNOWN

    @override
    def join(self, a: Size, b: Size) -> Size:
        return a if a == b else _larger(a, b)

    @override
    def widen(self, before: Size, after: Size) -> Size:
        return after if before == after else UNKNOWN

    def rounded(self, call: OpCall, size: Size) -> Size:
        """Return the size after one more rounding."""
        if not is_float(call.outputs[0].dtype):
            return size
        limits = self.ranges.dtype_limits(call.outputs[0].dtype)
        found = size.times(1 + limits.epsilon)
        return found._replace(rest=found.rest + limits.least)


def _known(call: OpCall, at: int) -> float:
    """Return the largest magnitude in the range of an operand."""
    known: ValueRange = call.known["ranges"][at]
    return INFINITY if known.infinite else max(abs(known.low), abs(known.high))


def _size(call: OpCall, facts: Sequence[Size], at: int) -> Size:
    """Return the size of an operand, from its range if that is bounded."""
    known = _known(call, at)
    return facts[at] if known == INFINITY else Size((), known)


def _same_size(domain: Growth, call: OpCall, facts: Sequence[Size]) -> Sequence[Size]:
    """Return the operand's size: the results are some of its elements, or have the same magnitudes."""
    return [_size(call, facts, 0)]


def _largest_operand(first: int) -> Rule:
    def rule(domain: Growth, call: OpCall, facts: Sequence[Size]) -> Sequence[Size]:
        found = _size(call, facts, first)
        for at in range(first + 1, len(facts)):
            found = _larger(found, _size(call, facts, at))
        return [found]

    return rule


def _added(domain: Growth, call: OpCall, facts: Sequence[Size]) -> Sequence[Size]:
    return [domain.rounded(call, _sum(_size(call, facts, 0), _size(call, facts, 1)))]


def _product(call: OpCall, facts: Sequence[Size]) -> tuple[Size, float]:
    """Return the size of one operand and the largest magnitude of the other, by which it is multiplied."""
    for x, y in ((0, 1), (1, 0)):
        factor = _known(call, y)
        if factor < INFINITY:
            return _size(call, facts, x), factor
    return UNKNOWN, 1.0


def _multiplied(domain: Growth, call: OpCall, facts: Sequence[Size]) -> Sequence[Size]:
    return [_scaled(domain, call, *_product(call, facts))]


def _scaled(domain: Growth, call: OpCall, size: Size, factor: float) -> Size:
    """Return the size times `factor`, rounded; with a factor of 1 the size is exact, a number of the dtype."""
    return size if factor == 1 else domain.rounded(call, size.times(factor))


def _by_number(domain: Growth, call: OpCall, facts: Sequence[Size]) -> Sequence[Size] | None:
    factor = call.static["c"]
    if not isinstance(factor, (int, float)):
        return None
    # The number itself is rounded to the dtype.
    return [_scaled(domain, call, domain.rounded(call, _size(call, facts, 0)), abs(float(factor)))]


def _divided(domain: Growth, call: OpCall, facts: Sequence[Size]) -> Sequence[Size]:
    y: ValueRange = call.known["ranges"][1]
    least = max(y.low, -y.high)
    if least <= 0 or not is_float(call.outputs[0].dtype):
        return [UNKNOWN]
    return [domain.rounded(call, domain.rounded(call, _size(call, facts, 0).times(1 / least)))]


def _summed(domain: Growth, call: OpCall, facts: Sequence[Size]) -> Sequence[Size]:
    _, count = counted([call.inputs[0].shape[axis] for axis in call.static["axes"]])
    size = _size(call, facts, 0)
    return [UNKNOWN if count == INFINITY else domain.rounded(call, size.times(count * _ROUNDING))]


def _averaged(domain: Growth, call: OpCall, facts: Sequence[Size]) -> Sequence[Size]:
    return [domain.rounded(call, _size(call, facts, 0).times(_ROUNDING))]


def _contracted(domain: Growth, call: OpCall, facts: Sequence[Size]) -> Sequence[Size]:
    (_, count), (size, factor) = counted([call.inputs[0].shape[-1]]), _product(call, facts)
    return [UNKNOWN if count == INFINITY else domain.rounded(call, size.times(count * factor * _ROUNDING))]


def _converted(domain: Growth, call: OpCall, facts: Sequence[Size]) -> Sequence[Size]:
    return [domain.rounded(call, _size(call, facts, 0)) if is_float(call.inputs[0].dtype) else UNKNOWN]


Growth.rules = {
    elementwise.ADD: _added,
    elementwise.SUB: _added,
    elementwise.MUL: _multiplied,
    elementwise.DIV: _divided,
    elementwise.SCALE: _by_number,
    elementwise.MAXIMUM: _largest_operand(0),
    elementwise.MINIMUM: _largest_operand(0),
    logic.SELECT: _largest_operand(1),
    logic.CAST: _converted,
    slicing.CONCAT: _largest_operand(0),
    reduction.REDUCE_SUM: _summed,
    reduction.REDUCE_MEAN: _averaged,
    linalg.MATMUL: _contracted,
    linalg.BMM: _contracted,
    **dict.fromkeys(
        [
            elementwise.NEG,
            elementwise.ABS,
            activation.RELU,
            logic.DETACH,
            layout.PERMUTE,
            layout.RESHAPE,
            layout.BROADCAST_TO,
            slicing.SLICE,
            reduction.REDUCE_MAX,
            indexing.GATHER_ROWS,
        ],
        _same_size,
    ),
}


# Limits ---------------------------------------------------------------------------------------------------------------


def limits_of_growth(domain: Ranges, loop: LoopFacts[ValueRange]) -> list[ValueRange | None]:
    """Return a bounded range for each carry whose range is unbounded and whose growth has a limit; else None."""
    from ..interpretation import Interpretation

    open_ = [i for i, fact in enumerate(loop.carried) if not fact.bounded and loop.init[i].bounded]
    found: list[ValueRange | None] = [None] * len(loop.init)
    if not open_ or domain.run is None:
        return found
    finite = [domain.renew(_finite(fact)) if i in open_ else fact for i, fact in enumerate(loop.carried)]
    sizes = [Size(((i, 1.0),), 0.0) if i in open_ else UNKNOWN for i in range(len(finite))]
    sizes += [UNKNOWN] * len(loop.others)
    run = Interpretation([domain, Growth(domain)], domain.run.scope)
    results: list[tuple[ValueRange, Size]] = []
    domain.holds(lambda: results.extend(run.run_outputs(loop.body, list(zip([*finite, *loop.others], sizes)))))
    after = {}
    for i in open_:
        known, size = results[i]
        after[i] = Size((), max(abs(known.low), abs(known.high))) if known.bounded else size
    first = {i: max(abs(loop.init[i].low), abs(loop.init[i].high)) for i in open_}
    for i, most in _solved(first, after, _most(loop.iterations)).items():
        if most < domain.dtype_limits(loop.body.input_types[i].dtype).largest or loop.carried[i].integral:
            low, high = max(loop.carried[i].low, -most), min(loop.carried[i].high, most)
            found[i] = ValueRange(low, high, integral=loop.carried[i].integral)
    return found


def _finite(fact: ValueRange) -> ValueRange:
    return ValueRange(fact.low, fact.high, integral=fact.integral)


def _most(iterations: Dim | None) -> float:
    """Return the largest number of iterations that the constraints on the sizes allow."""
    return INFINITY if iterations is None else largest(iterations)


def _solved(first: Mapping[int, float], after: Mapping[int, Size], iterations: float) -> dict[int, float]:
    """Return the largest magnitude of each carry over all iterations; carries without a bound are missing.

    A carry that grows by a factor and by other carries with a limit is solved after them.
    """
    found: dict[int, float] = {}
    waiting = [i for i in first if after[i].rest < INFINITY]
    while True:
        ready = [i for i in waiting if all(j == i or j in found for j, _ in after[i].factors)]
        if not ready:
            return found
        for i in ready:
            rest = after[i].rest + sum([a * found[j] for j, a in after[i].factors if j != i])
            most = _largest(first[i], dict(after[i].factors).get(i, 0.0), rest, iterations)
            waiting.remove(i)
            if most < INFINITY:
                found[i] = most


def _largest(first: float, factor: float, rest: float, iterations: float) -> float:
    """Return the largest of first, factor·first + rest, and so on."""
    if factor < 1:
        return max(first, rest / (1 - factor)) * _SLACK
    if not rest and factor == 1:
        return first * _SLACK
    if iterations == INFINITY:
        return INFINITY
    try:
        grown = math.pow(factor, iterations)
        terms = iterations if factor - 1 < 1e-12 else (grown - 1) / (factor - 1)
    except OverflowError:
        return INFINITY
    return (first * grown + rest * max(terms, iterations)) * _SLACK


# Trip counts of while loops, by a carry that counts up or down to a limit of the test ---------------------------------


_EXACT_FLOATS = 2.0**52
"""Sums and quotients of whole numbers up to this are exact."""


def count_trips(
    body: Body, init: Sequence[ValueRange], within: Sequence[ValueRange], slots: Sequence[ValueRange | None]
) -> Trips[ValueRange]:
    """Bound the iterations of a while loop, given the ranges of its initial carries and of one iteration.

    within   the ranges of the carries that satisfy the test
    slots    the ranges of all slots of the body then

    Let each iteration add at least d >= 1 to an integer c, and let the test imply c <= m. Before iteration k the
    integer is at least c0 + k*d, so k <= (m - c0)/d. It never wraps around, since the dtype represents the sum of m and
    the largest increment.
    """
    most: list[int] = []
    counters: dict[int, ValueRange] = {}
    for i, (first, here, type_) in enumerate(zip(init, within, body.input_types)):
        move = _increment(body, i, slots)
        if move is None or type_.shape != () or type_.dtype.kind != "i":
            continue
        low, high, start, end = *move, first.low, here.high
        down = high <= -1
        if down:  # the same for the negative
            low, high, start, end = -high, -low, -first.high, -here.low
        if low < 1 or max(abs(start), abs(end), high) >= min(np.iinfo(type_.dtype).max / 4, _EXACT_FLOATS):
            continue
        most.append(max(int((end - start) // low) + 1, 0))
        last = max(end + high, -first.low if down else first.high)
        counters[i] = ValueRange(-last if down else start, -start if down else last, integral=True)
    return Trips(min(most, default=None), counters)


def _increment(body: Body, carry: int, facts: Sequence[ValueRange | None]) -> tuple[float, float] | None:
    """Return the least and the largest number that an iteration adds to a carry; None if it does not add one."""
    source, result = body.inputs[carry], body.outputs[carry]
    made = next((equation for equation in body.equations if result in equation.outputs), None)
    if made is None or made.primitive not in (elementwise.ADD, elementwise.SUB):
        return None
    x, y = made.inputs
    if made.primitive is elementwise.ADD and y == source:
        x, y = y, x
    move = facts[y]
    if x != source or y == source or move is None:
        return None
    return (move.low, move.high) if made.primitive is elementwise.ADD else (-move.high, -move.low)
