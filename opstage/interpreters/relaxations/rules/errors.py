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

    `error` is the relative error of the value of a run, of the constants as computed here and of the coefficients of
    the backward pass, together. Products of those with these constants round too, and so do `size` and this: for that
    stand 4 eps more.
    """
    dtype = size.dtype
    lost = ops.add(ops.scale(size, c=error + 4 * eps_of(dtype)), TINY[dtype])
    if below is None:
        return ops.neg(lost), lost
    return ops.sub(below, lost), ops.add(above, lost)
