"""Regions of a box by the phases of relus: which operands are taken to be at least 0, and which to be at most 0.

Every run of a network, exact or rounded, has its own phases, so what is shown of all regions holds for it. A region
narrows the interval of a relu's operand at 0, which makes that relu linear. A constraint z >= 0 also has a price
b >= 0: whatever b is, f(x) - b·z is nowhere above f(x) there, so its lower bound is one of f (Wang et al., Beta-CROWN,
NeurIPS 2021). Any slope from 0 to 1 gives a line below an undecided relu (Xu et al., Fast and Complete, ICLR 2021). So
slopes and prices change how tight bounds are, and never whether they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, final

from ...ops.dims import prod
from ..intervals import Interval

if TYPE_CHECKING:
    from .interpreter import Related, Relaxed


class PhaseArrays(NamedTuple):
    """One number for each sample and each relu's element, relus in the order in which the program reaches them.

    sign           1: the operand is taken to be >= 0; -1: to be <= 0; 0: to be anything
    lower, upper   what is known of the operand
    slope          of the line below, where the phase is open
    price          of the constraint, where the phase is set
    """

    sign: Any
    lower: Any
    upper: Any
    slope: Any = None
    price: Any = None


class ReluRegion(NamedTuple):
    """One relu's part of a region: the slope of the line below, None for the one that fits; and sign times price."""

    slope: Any
    signed_price: Any


@final
class Phases:
    """The phases of one run of a program: given to its relus in turn, and the operands' intervals taken from them.

    Without `arrays` it only takes those intervals. Slopes and prices come with the bounds of operands in `arrays`,
    which stand then without being found anew.
    """

    def __init__(self, arrays: PhaseArrays | None):
        self.arrays = arrays
        self.lowers: list[Any] = []
        self.uppers: list[Any] = []
        self.count = 0

    def restricted(self, relaxed: Relaxed[Any], x: Related[Any]) -> ReluRegion:
        """Narrow the interval of the next relu's operand to the region."""
        ops, arrays, samples = relaxed.inner, self.arrays, relaxed.samples
        count = int(prod(x.shape)) // samples
        start, self.count = self.count, self.count + count
        region = ReluRegion(None, None)

        def part(array: Any) -> Any:
            return ops.reshape(ops.slice(array, axis=1, start=start, length=count), shape=x.shape)

        if arrays is None or arrays.slope is None:
            relaxed.tightened(x)
        if arrays is not None:
            sign = part(arrays.sign)
            zero = ops.full(shape=sign.shape, value=0.0, dtype=sign.dtype)
            lower = ops.maximum(x.interval.lower, part(arrays.lower))
            upper = ops.minimum(x.interval.upper, part(arrays.upper))
            lower = ops.select(ops.less(zero, sign), ops.maximum(lower, zero), lower)
            upper = ops.select(ops.less(sign, zero), ops.minimum(upper, zero), upper)
            x.interval = Interval(lower, upper, x.interval.ops)
            if arrays.slope is not None:
                price = ops.clamp(part(arrays.price), lo=0.0, hi=float("inf"))
                region = ReluRegion(part(arrays.slope), ops.mul(sign, price))
        for ends, end in ((self.lowers, x.interval.lower), (self.uppers, x.interval.upper)):
            ends.append(ops.reshape(end, shape=(samples, count)))
        return region
