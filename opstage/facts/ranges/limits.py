"""The numbers of a float dtype, and bounds widened by its rounding."""

from __future__ import annotations

import math
from typing import NamedTuple

from ...ops.errors import UsageError, nearest


class FloatLimits(NamedTuple):
    """name      of the dtype
    largest   finite number
    least     positive number, a subnormal one
    epsilon   the distance from 1 to the next number
    vanishing kernels may return 0 for a positive result below this number
    """

    name: str
    largest: float
    least: float
    epsilon: float
    vanishing: float

    def holds(self, value: float) -> bool:
        """Whether the dtype holds the number as it is."""
        mantissa, _ = math.frexp(value)
        return math.isinf(value) or (
            (mantissa / self.epsilon).is_integer()
            and abs(value) <= self.largest
            and not math.fmod(value, self.least)  # a subnormal number has fewer digits
        )

    def nearest(self, value: float) -> float:
        """The number of the dtype that is nearest to one; of two the even one, and infinity beyond the largest."""
        if not math.isfinite(value) or self.holds(value):
            return value
        _, exponent = math.frexp(value)
        unit = max(self.epsilon * 2.0 ** (exponent - 1), self.least)
        found = round(value / unit) * unit
        return found if abs(found) <= self.largest else math.copysign(math.inf, value)

    def rounded(self, low: float, high: float) -> tuple[float, float]:
        """Bounds of numbers between `low` and `high` after one rounding, which leaves numbers of the dtype as they
        are."""
        return (
            low if self.holds(low) else self._moved(low, -1, 1),
            high if self.holds(high) else self._moved(high, 1, 1),
        )

    def widened(self, low: float, high: float, ulps: float) -> tuple[float, float]:
        """Bounds that hold of results within `ulps` units in the last place of numbers between `low` and `high`."""
        if not ulps:
            return low, high
        return self.flushed(self._moved(low, -1, ulps), self._moved(high, 1, ulps))

    def flushed(self, low: float, high: float) -> tuple[float, float]:
        """Bounds of results between `low` and `high`, the smallest of which may be 0."""
        return 0.0 if 0 < low < self.vanishing else low, 0.0 if -self.vanishing < high < 0 else high

    def _moved(self, bound: float, sign: int, ulps: float) -> float:
        if math.isinf(bound) or not bound:  # no rounding takes a result past 0
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


def limits_of(dtype: str) -> FloatLimits:
    """The limits of a float dtype, by its name. Raises UsageError for another name."""
    found = _LIMITS.get(dtype)
    if found is None:
        known = ", ".join(_LIMITS)
        raise UsageError(f"ranges are those of a float dtype, {known}, not {dtype!r}{nearest(dtype, _LIMITS)}")
    return found


def infinite_in(limits: FloatLimits, number: float) -> str:
    """The message about a finite number that a program states and that its dtype does not hold."""
    return f"the number {number:g} is infinite in {limits.name}, which ends at {limits.largest:.5g}"
