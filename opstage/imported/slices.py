"""Slices with numeric or symbolic bounds, with negative ones as in NumPy."""

from __future__ import annotations

from typing import Any

from ..ops.dims import Dim, Verdict, at_most, floor_div, maximum, minimum
from ..ops.errors import UnsupportedError
from ..ops.functions.arrange import flip


def sliced(ops: Any, x: Any, axis: int, start: Dim, end: Dim, step: Dim) -> Any:
    """Return entries start, start + step, … before end, with both clamped to the axis as in NumPy."""
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
    """Return a position on an axis as in NumPy: counted from the end if negative, and clamped."""
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
