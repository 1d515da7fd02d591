"""Outward rounding: how far a computed number may be from the exact one, as programs over Ops.

An end of an interval is computed on the same interpreter as the program, so it is rounded itself. It is moved outward
by the error of both: that of the end and that of the value in a run. The error is stated in ulps for elementwise ops,
and as gamma_n = n·u / (1 - n·u) times the sum of magnitudes for sums of n products in any order (Higham, Accuracy and
Stability of Numerical Algorithms, 2nd edition, section 3.1). A number below the smallest normal one may have lost all
its digits, so that much is added wherever a result may underflow.

What overflows becomes nan here: inf - inf in `down` and `overflow`. A nan end says that nothing is known. Partial sums
in any order are at most the sum of magnitudes, so where that overflows, a run may be infinite, or nan, on the way to a
total that is neither.
"""

from __future__ import annotations

from typing import Any

from ...ops.errors import UnsupportedError
from ...ops.types import FLOAT32, FLOAT64, DType, dtype_name

EPS = {FLOAT32: 2.0**-23, FLOAT64: 2.0**-52}
"""The distance from 1 to the next number; half of it is the unit roundoff u."""
TINY = {FLOAT32: 2.0**-124, FLOAT64: 2.0**-1020}
"""More than the smallest normal number: what underflow may lose."""


def eps_of(dtype: DType) -> float:
    """The spacing of numbers at 1. Raises UnsupportedError for a dtype whose rounding is not known."""
    if dtype not in EPS:
        raise UnsupportedError(f"bounds are computed in float32 or float64, not in {dtype_name(dtype)}")
    return EPS[dtype]


def gamma(dtype: DType, terms: int, more: int = 4) -> float:
    """gamma_n for a sum of `terms` products: the relative error of the sum, in terms of the sum of magnitudes.

    more   roundings besides, of what is done to the sum and to its bound

    Raises UnsupportedError if there are so many terms that the error of their sum has no useful bound.
    """
    n = (terms + more) * eps_of(dtype) / 2
    if n >= 0.25:
        raise UnsupportedError(f"a sum of {terms} terms has no useful bound in {dtype_name(dtype)}; use float64")
    return n / (1 - n)


def slack(ops: Any, magnitude: Any, ulps: float, *, underflows: bool = True) -> Any:
    """The error of a number and of its bound together, each of `ulps` ulps of `magnitude`."""
    error = ops.scale(magnitude, c=(2 * ulps + 2) * eps_of(magnitude.dtype))
    return ops.clamp(error, lo=TINY[magnitude.dtype], hi=float("inf")) if underflows else error


def down(ops: Any, x: Any, ulps: float = 0.5, *, underflows: bool = True, of: Any = None) -> Any:
    """A lower bound of what was computed as x, to `ulps` ulps of itself or of the magnitude `of`."""
    return ops.sub(x, slack(ops, ops.abs(x) if of is None else of, ulps, underflows=underflows))


def up(ops: Any, x: Any, ulps: float = 0.5, *, underflows: bool = True, of: Any = None) -> Any:
    """An upper bound, likewise."""
    return ops.add(x, slack(ops, ops.abs(x) if of is None else of, ulps, underflows=underflows))


def overflow(ops: Any, size: Any, factor: float = 1.0) -> Any:
    """0, or nan where `factor` times a magnitude overflows."""
    most = ops.scale(size, c=factor)
    return ops.sub(most, most)


def ends(ops: Any, lower: Any, upper: Any) -> tuple[Any, Any]:
    """The ends of an interval; nan for one from -inf to inf, of which nothing is known: its value may be nan."""
    both = ops.add(ops.scale(lower, c=0.5), ops.scale(upper, c=0.5))  # nan for -inf + inf, and where an end is
    known = ops.equal(both, both)
    return ops.select(known, lower, both), ops.select(known, upper, both)
