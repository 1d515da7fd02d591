"""Rounding of relations: what coefficients and constants lose, as constants that are added to them."""

from __future__ import annotations

from typing import Any

from ...intervals import Interval
from ...intervals.rounding import TINY, eps_of


def magnitude(ops: Any, x: Interval[Any]) -> Any:
    """The greatest absolute value."""
    if x.point:
        return ops.abs(x.lower)
    return ops.maximum(ops.abs(x.lower), ops.abs(x.upper))


def rounded(ops: Any, below: Any, above: Any, size: Any, error: float) -> tuple[Any, Any]:
    """Constants moved apart by `error` times `size`, the sum of magnitudes of all that makes up a line.

    With `error` at least twice the relative error of one evaluation, that covers the value of a run, the coefficients
    that are computed in the backward pass, and their products with these constants.
    """
    dtype = size.dtype
    lost = ops.add(ops.scale(size, c=error + 16 * eps_of(dtype)), TINY[dtype])
    if below is None:
        return ops.neg(lost), lost
    return ops.sub(below, lost), ops.add(above, lost)
