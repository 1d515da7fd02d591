"""Masks and choices. The lower end of a mask is True where it certainly holds, the upper one where it may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....ops.catalogue.logic import (
    CAST,
    DETACH,
    EQUAL,
    FULL,
    IOTA,
    ISFINITE,
    ISINF,
    ISNAN,
    LESS,
    LESS_EQUAL,
    LOGICAL_AND,
    LOGICAL_NOT,
    LOGICAL_OR,
    LOGICAL_XOR,
    SELECT,
)
from ....ops.catalogue.random import RAND_UNIFORM
from ....ops.catalogue.slicing import PAD
from ....ops.primitive import Primitive, Static
from ....ops.types import BOOL, as_dtype, is_float
from ..interpreter import Interval, Intervals
from ..rounding import EPS, down, up
from .elementwise import filled

Refs = tuple[Interval[Any], ...]


def known(ops: Any, *xs: Interval[Any]) -> Any:
    """The mask of elements of which something is known: no end is nan."""
    mask = None
    for x in xs:
        of = ops.less_equal(x.lower, x.upper)
        mask = of if mask is None else ops.logical_and(mask, of)
    return mask


def _compared(name: str, other: str) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (x, y), ops = refs, bounds.inner
        sure = known(ops, x, y)
        certain = ops.logical_and(sure, getattr(ops, name)(x.upper, y.lower))
        never = ops.logical_and(sure, getattr(ops, other)(y.upper, x.lower))
        return (bounds.between(certain, ops.logical_not(never)),)

    return rule


def _equal(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x, y), ops = refs, bounds.inner
    if x.dtype == BOOL:
        return _logical_not(bounds, _logical_xor(bounds, refs, {}), {})
    sure = known(ops, x, y)
    if x is y:
        return (bounds.between(sure, ops.full(shape=x.shape, value=True, dtype=BOOL)),)
    apart = ops.logical_or(ops.less(x.upper, y.lower), ops.less(y.upper, x.lower))
    same = ops.logical_and(ops.equal(x.lower, y.upper), ops.equal(x.upper, y.lower))
    certain = ops.logical_and(sure, same)
    return (bounds.between(certain, ops.logical_not(ops.logical_and(sure, apart))),)


def _logical(name: str) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (x, y), f = refs, getattr(bounds.inner, name)
        return (bounds.between(f(x.lower, y.lower), f(x.upper, y.upper)),)

    return rule


def _logical_not(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x,), ops = refs, bounds.inner
    return (bounds.between(ops.logical_not(x.upper), ops.logical_not(x.lower)),)


def _logical_xor(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x, y), ops = refs, bounds.inner
    first = ops.logical_and(x.lower, ops.logical_not(y.upper))
    second = ops.logical_and(y.lower, ops.logical_not(x.upper))
    both, neither = ops.logical_and(x.lower, y.lower), ops.logical_not(ops.logical_or(x.upper, y.upper))
    return (bounds.between(ops.logical_or(first, second), ops.logical_not(ops.logical_or(both, neither))),)


def _isnan(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x,), ops = refs, bounds.inner
    nothing = ops.full(shape=x.shape, value=False, dtype=BOOL)
    return (bounds.between(nothing, ops.logical_not(known(ops, x))),)


def _isinf(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x,), ops = refs, bounds.inner
    infinity = filled(ops, x.lower, float("inf"))
    low, high = (ops.equal(ops.abs(end), infinity) for end in (x.lower, x.upper))
    certain = ops.logical_and(ops.equal(x.lower, x.upper), low)
    return (bounds.between(certain, ops.logical_or(ops.logical_or(low, high), ops.logical_not(known(ops, x)))),)


def _isfinite(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x,), ops = refs, bounds.inner
    infinity = filled(ops, x.lower, float("inf"))
    low, high = (ops.less(ops.abs(end), infinity) for end in (x.lower, x.upper))
    never = ops.logical_and(ops.equal(x.lower, x.upper), ops.logical_not(low))
    return (bounds.between(ops.logical_and(low, high), ops.logical_not(never)),)


def _select(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (mask, x, y), ops = refs, bounds.inner
    lower, upper = ops.select(mask.lower, x.lower, y.lower), ops.select(mask.lower, x.upper, y.upper)
    if mask.point:
        return (bounds.between(lower, upper),)
    undecided = ops.logical_and(mask.upper, ops.logical_not(mask.lower))
    if x.dtype == BOOL:
        low, high = ops.logical_and(x.lower, y.lower), ops.logical_or(x.upper, y.upper)
    else:
        low, high = ops.minimum(x.lower, y.lower), ops.maximum(x.upper, y.upper)
    return (bounds.between(ops.select(undecided, low, lower), ops.select(undecided, high, upper)),)


def _cast(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x,), ops, dtype = refs, bounds.inner, as_dtype(static["dtype"])
    if dtype == BOOL:
        if x.dtype == BOOL:
            return (bounds.between(ops.cast(x.lower, dtype=dtype), ops.cast(x.upper, dtype=dtype)),)
        zero = bounds.wrap(filled(ops, x.lower, 0))
        return _logical_not(bounds, _equal(bounds, (x, zero), {}), {})
    if is_float(x.dtype) and not is_float(dtype):
        return (_truncated(bounds, x, dtype),)
    lower = ops.cast(x.lower, dtype=dtype)
    upper = lower if x.point else ops.cast(x.upper, dtype=dtype)
    if not is_float(dtype) or x.dtype == BOOL:
        return (bounds.between(lower, upper),)
    if is_float(x.dtype):
        wider = x.dtype == dtype or x.dtype.itemsize < dtype.itemsize
        return (bounds.between(lower, upper) if wider else bounds.between(down(ops, lower), up(ops, upper)),)
    # integers are exact in a float up to 2/eps
    whole = filled(ops, lower, 1 / EPS[dtype])
    lower = ops.select(ops.less_equal(ops.abs(lower), whole), lower, down(ops, lower))
    upper = ops.select(ops.less_equal(ops.abs(upper), whole), upper, up(ops, upper))
    return (bounds.between(lower, upper),)


def _truncated(bounds: Intervals[Any], x: Interval[Any], dtype: Any) -> Interval[Any]:
    """Floats as integers, which rises; any integer where one may be nan or too large."""
    ops, limits = bounds.inner, np.iinfo(dtype)
    border = filled(ops, x.lower, float(limits.max) / 2)
    fits = ops.logical_and(ops.less(ops.abs(x.lower), border), ops.less(ops.abs(x.upper), border))
    zero = filled(ops, x.lower, 0.0)
    found = []
    for end, limit in ((x.lower, limits.min), (x.upper, limits.max)):
        whole = ops.cast(ops.select(fits, end, zero), dtype=dtype)
        found.append(ops.select(fits, whole, ops.full(shape=x.shape, value=int(limit), dtype=dtype)))
    return bounds.between(*found)


def _pad(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    lower, upper = (bounds.inner.bind(PAD, (end,), static)[0] for end in (refs[0].lower, refs[0].upper))
    return (bounds.between(lower, upper),)


_COMPARISONS: dict[Primitive, Callable[..., Refs]] = {
    LESS: _compared("less", "less_equal"),
    LESS_EQUAL: _compared("less_equal", "less"),
    EQUAL: _equal,
    LOGICAL_AND: _logical("logical_and"),
    LOGICAL_OR: _logical("logical_or"),
    LOGICAL_NOT: _logical_not,
    LOGICAL_XOR: _logical_xor,
    ISNAN: _isnan,
    ISINF: _isinf,
    ISFINITE: _isfinite,
}
RULES: dict[Primitive, Callable[..., Refs]] = {**_COMPARISONS, SELECT: _select, CAST: _cast, PAD: _pad}
EXACT = frozenset({*_COMPARISONS, SELECT, DETACH, FULL, IOTA, RAND_UNIFORM, PAD})
OPEN_INTEGERS = frozenset({*_COMPARISONS, SELECT, CAST, PAD})
