"""Slices by bounds that are numbers or symbolic dims, with negative ones as NumPy reads them."""

from __future__ import annotations

from typing import Any

from ..ops.dims import Dim, Verdict, at_most, floor_div, maximum, minimum
from ..ops.errors import UnsupportedError
from ..ops.functions.arrange import flip


def sliced(ops: Any, x: Any, axis: int, start: Dim, end: Dim, step: Dim) -> Any:
    """Entries start, start + step, … before end, both clamped to the axis as NumPy clamps them."""
    size = x.shape[axis]
    if not isinstance(step, int) or step == 0:
        raise UnsupportedError(f"its step is {step}; it must be a number that is not 0")
    if step < 0:
        low, high = clamped(start, size, upper=size - 1, lower=-1), clamped(end, size, upper=size - 1, lower=-1)
        first, length = size - 1 - low, low - high
        length = maximum(length, 0)
        length = floor_div(length + (-step - 1), -step)
        return ops.slice(flip(ops, x, axis=axis), axis=axis, start=minimum(first, size), length=length, step=-step)
    low, high = clamped(start, size, upper=size, lower=0), clamped(end, size, upper=size, lower=0)
    length = maximum(high - low, 0)
    if step > 1:
        length = floor_div(length + (step - 1), step)
    return ops.slice(x, axis=axis, start=low, length=length, step=step)


def clamped(place: Dim, size: Dim, *, upper: Dim, lower: int) -> Dim:
    """A place on an axis as NumPy reads it: from the end where it is negative, no further than the ends."""
    if isinstance(place, int):
        if place >= 2**31 - 1:
            return upper
        if place <= -(2**31) + 1:
            return lower
        if place < 0:
            return maximum(place + size, lower) if not isinstance(size, int) else max(place + size, lower)
        return minimum(place, upper)
    if at_most(0, place) is Verdict.proved:
        return minimum(place, upper)
    if at_most(place, -1) is Verdict.proved:
        return maximum(place + size, lower)
    raise UnsupportedError(
        f"whether its bound {place} is below 0, and so counted from the end, depends on the sizes; say it with where="
    )
