"""A range: bounds of all elements of a tensor, and whether they may be nan or infinite."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from ...ops.errors import UsageError, nearest
from ...ops.types import Shape
from ..monotone_functions import corners, magnitudes

INFINITY = math.inf
LARGEST_SIZE = 2.0**63
"""The limit of a size without a bound: tensors have fewer elements."""
LARGEST_EXACT = 2**52
"""Up to this magnitude floats represent each integer, and those next to it."""


def of_integers(low: float, high: float) -> tuple[float, float]:
    """Return bounds of integers from bounds in floats, which do not represent all large integers."""
    return (
        low if low >= -LARGEST_EXACT else math.nextafter(low, -INFINITY),
        high if high <= LARGEST_EXACT else math.nextafter(high, INFINITY),
    )


ShareKind: TypeAlias = Literal["maximum", "minimum", "above", "sum", "squares", "norm", "deviation", "reciprocal"]
"""A number of the elements of a row.

In order: their maximum; their minimum; at least their maximum; their sum; at least the mean of their squares; at least
that mean plus a number above its rounding error; at least the root of that; at most 1 over this root.
"""


class Share(NamedTuple):
    """A tensor with one number for each row of another tensor's elements along axes.

    of     the value of that tensor, see `ValueRange.value`
    kind   the kind of number
    axes   the reduced axes
    shape  of that tensor
    """

    of: int
    kind: ShareKind
    axes: tuple[int, ...]
    shape: Shape

    @property
    def keepdims_shape(self) -> Shape:
        """Return its shape with reduced axes of size 1."""
        return tuple([1 if axis in self.axes else size for axis, size in enumerate(self.shape)])

    @property
    def dropped_shape(self) -> Shape:
        """Return its shape without the reduced axes."""
        return tuple([size for axis, size in enumerate(self.shape) if axis not in self.axes])


def same_shape(a: Shape, b: Shape) -> bool:
    """Return whether two shapes print alike; sizes that may be equal are not the same."""
    return len(a) == len(b) and all(str(x) == str(y) for x, y in zip(a, b))


class ValueRange(NamedTuple):
    """A range of elements.

    low, high    bounds of all elements that are numbers; infinite if unknown
    nan          an element may be nan
    minus, plus  an element may be -inf, +inf; the bound on that side is infinite then
    integral     all elements are whole numbers
    value        a number shared by tensors with equal elements; 0 for no sharing
    attained     axes along which every row has an element of at least `peak`; () if unknown
    peak         such a number
    share        its relation to another tensor, if known
    """

    low: float = -INFINITY
    high: float = INFINITY
    nan: bool = False
    minus: bool = False
    plus: bool = False
    integral: bool = False
    value: int = 0
    attained: tuple[int, ...] = ()
    share: Share | None = None
    peak: float = -INFINITY

    @property
    def bounded(self) -> bool:
        """Return whether both bounds are known."""
        return self.low > -INFINITY and self.high < INFINITY

    @property
    def infinite(self) -> bool:
        """Return whether an element may be infinite."""
        return self.minus or self.plus

    @property
    def may_be_zero(self) -> bool:
        return self.low <= 0 <= self.high

    @property
    def sizes(self) -> tuple[float, float]:
        """Return the greatest and the least magnitude."""
        return magnitudes(operator.neg, max, self.low, self.high, 0.0)

    @property
    def alone(self) -> ValueRange:
        """Return the range without relations to other tensors."""
        return ValueRange(self.low, self.high, self.nan, self.minus, self.plus, self.integral)

    def __str__(self) -> str:
        left = f"[{_shown(self.low)}" if self.low > -INFINITY or self.minus else "(-inf"
        right = f"{_shown(self.high)}]" if self.high < INFINITY or self.plus else "inf)"
        return f"{left}, {right}{' or nan' if self.nan else ''}"


def _shown(bound: float) -> str:
    return f"{bound:.6g}"


ANYTHING = ValueRange(nan=True, minus=True, plus=True)
"""The range of any tensor."""

BOOLEAN = ValueRange(0, 1, integral=True)


Facts: TypeAlias = "Sequence[ValueRange]"
"""The ranges of several tensors, operands or results of an op."""


def join_ranges(a: ValueRange, b: ValueRange) -> ValueRange:
    """Return the range of a tensor for which `a` or `b` holds."""
    return ValueRange(
        min(a.low, b.low),
        max(a.high, b.high),
        a.nan or b.nan,
        a.minus or b.minus,
        a.plus or b.plus,
        a.integral and b.integral,
    )


def meet(a: ValueRange, b: ValueRange) -> ValueRange:
    """Return the range of a tensor for which both ranges hold."""
    low, high = max(a.low, b.low), min(a.high, b.high)
    if low > high:  # no element satisfies both
        low, high = b.low, b.high
    minus, plus = a.minus and b.minus, a.plus and b.plus
    value = a.value or b.value
    return ValueRange(low, high, a.nan and b.nan, minus, plus, a.integral or b.integral, value)


def within(a: ValueRange, b: ValueRange) -> bool:
    """Return whether `a` is at least as precise as `b`."""
    return (
        b.low <= a.low
        and a.high <= b.high
        and (b.nan or not a.nan)
        and (b.minus or not a.minus)
        and (b.plus or not a.plus)
        and (a.integral or not b.integral)
    )


# Bounds of sums, products and quotients. An unknown bound is infinite, and the elements are finite. -------------------


def product(a: ValueRange, b: ValueRange) -> tuple[float, float]:
    """Return the bounds of x·y."""
    found = corners(_times, (a.low, a.high), (b.low, b.high))
    return min(found), max(found)


def _times(x: float, y: float) -> float:
    return 0.0 if not x or not y else x * y


def inverse(b: ValueRange) -> tuple[float, float]:
    """Return the bounds of 1/y, for y on one side of 0."""
    return _inverted(b.high, 0.0 if b.high > 0 else -0.0), _inverted(b.low, b.low)


def _inverted(x: float, side: float) -> float:
    if not x:
        return math.copysign(INFINITY, side)
    return 0.0 if math.isinf(x) else 1 / x


def times_count(a: ValueRange, least: int, most: float) -> tuple[float, float]:
    """Return the bounds of a sum of at least `least` and at most `most` elements."""
    low = _times(a.low, most) if a.low < 0 else _times(a.low, least)
    high = _times(a.high, most) if a.high > 0 else _times(a.high, least)
    return low, high


def powered(x: float, n: float) -> float:
    try:
        if x < 0 and not n.is_integer():
            return 0.0
        return math.pow(x, n)
    except OverflowError:
        return INFINITY if x > 0 or n % 2 == 0 else -INFINITY


# The numbers of a float dtype, and bounds widened by its rounding -----------------------------------------------------


class FloatLimits(NamedTuple):
    """The limits of a float dtype.

    name       of the dtype
    largest    finite number
    least      positive number, a subnormal one
    epsilon    the distance from 1 to the next number
    vanishing  kernels may return 0 for a positive result below this number
    """

    name: str
    largest: float
    least: float
    epsilon: float
    vanishing: float

    def holds(self, value: float) -> bool:
        """Return whether the dtype represents the number exactly."""
        mantissa, _ = math.frexp(value)
        return math.isinf(value) or (
            (mantissa / self.epsilon).is_integer()
            and abs(value) <= self.largest
            and not math.fmod(value, self.least)  # a subnormal number has fewer digits
        )

    def nearest(self, value: float) -> float:
        """Return the nearest number of the dtype; of two the even one, and infinity beyond the largest."""
        if not math.isfinite(value) or self.holds(value):
            return value
        _, exponent = math.frexp(value)
        unit = max(self.epsilon * 2.0 ** (exponent - 1), self.least)
        found = round(value / unit) * unit
        return found if abs(found) <= self.largest else math.copysign(math.inf, value)

    def rounded(self, low: float, high: float) -> tuple[float, float]:
        """Return bounds of numbers between `low` and `high` after one rounding, which is exact for numbers of the
        dtype.
        """
        return (
            low if self.holds(low) else self._widen_bound(low, -1, 1),
            high if self.holds(high) else self._widen_bound(high, 1, 1),
        )

    def widened(self, low: float, high: float, ulps: float) -> tuple[float, float]:
        """Return bounds of results within `ulps` units in the last place of numbers between `low` and `high`."""
        if not ulps:
            return low, high
        return self.flushed(self._widen_bound(low, -1, ulps), self._widen_bound(high, 1, ulps))

    def flushed(self, low: float, high: float) -> tuple[float, float]:
        """Return bounds of results between `low` and `high`, of which kernels may flush the smallest to 0."""
        return 0.0 if 0 < low < self.vanishing else low, 0.0 if -self.vanishing < high < 0 else high

    def _widen_bound(self, bound: float, sign: int, ulps: float) -> float:
        if math.isinf(bound) or not bound:  # no rounding moves a result past 0
            return bound
        moved = bound + sign * (abs(bound) * self.epsilon * ulps + self.least)
        return moved if (moved > 0) == (bound > 0) else 0.0


_LIMITS = {
    limits.name: limits
    for limits in (
        FloatLimits("float64", 1.7976931348623157e308, 5e-324, 2.0**-52, 2.0**-1021),
        FloatLimits("float32", 3.4028234663852886e38, 2.0**-149, 2.0**-23, 2.0**-125),
        FloatLimits("bfloat16", 3.3895313892515355e38, 2.0**-133, 2.0**-7, 2.0**-125),
        FloatLimits("float16", 65504.0, 2.0**-24, 2.0**-10, 2.0**-24),
    )
}
"""IEEE 754-2019 for binary64, 32 and 16; bfloat16 has binary32's exponents and 8 bits of significand.

Generated exponentials flush what is below twice the smallest normal number. Those of float16 are computed in float32,
whose numbers reach below the subnormal ones of float16.
"""


def float_limits(dtype: str) -> FloatLimits:
    """Return the limits of a float dtype, by its name.

    Raises:
        UsageError: `dtype` is not the name of a float dtype.
    """
    found = _LIMITS.get(dtype)
    if found is None:
        known = ", ".join(_LIMITS)
        raise UsageError(f"ranges: argument dtype: expected one of {known}, got {dtype!r}{nearest(dtype, _LIMITS)}")
    return found


def overflow_text(limits: FloatLimits, number: float) -> str:
    """Return the message about a finite number of the program that is infinite in its dtype."""
    return f"the number {number:g} is infinite in {limits.name}, which ends at {limits.largest:.5g}"
