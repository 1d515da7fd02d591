"""Rules of loops, branches, masks and choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ops.body import Body, ScanParameters
from ...ops.logic import (
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
from ...ops.primitive import Primitive, Static
from ...ops.random import RAND_UNIFORM
from ...ops.sequence import LINEAR_RECURRENCE
from ...ops.slicing import PAD
from ...ops.types import BOOL, as_dtype, is_float
from ...transforms.cond import SWITCH, bind_switch, get_branches
from ...transforms.interpreter import Variable
from ...transforms.scan import SCAN, bind_scan
from ...transforms.tracer import Tracer, constants, evaluate
from ...transforms.while_loop import WHILE
from .elementwise import full_like
from .interpreter import EPS, Interval, Intervals, down, rising, up

# Loops and branches: their bodies run on intervals, and stay one op ---------------------------------------------------

Refs = tuple[Interval[Any], ...]


def _on_pairs(
    inner: Intervals[Variable], body: Body, pairs: Sequence[Interval[Variable]]
) -> tuple[Interval[Variable], ...]:
    return evaluate(inner, body, pairs, constants(inner, body))


def _scan(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    """Return the loop with two carries for each one that is open at the start or after an iteration."""
    loop = ScanParameters(**static)
    body, carries, split = loop.body, loop.carries, loop.carries + loop.entries
    types = body.input_types
    is_open = [not ref.point for ref in refs]
    while True:
        tracer = Tracer(bounds.inner, body.lines)
        inner = Intervals(tracer)
        low = [tracer.input(type_) for type_ in types[:split]]
        high = [tracer.input(type_) if is_open[i] else low[i] for i, type_ in enumerate(types[:split])]
        low += [tracer.adopt(ref.lower) for ref in refs[split:]]
        high += [tracer.adopt(ref.upper) for ref in refs[split:]]
        outs = _on_pairs(inner, body, [inner.between(a, b) for a, b in zip(low, high)])
        grown = [before or not out.point for before, out in zip(is_open, outs[:carries])]
        if grown == is_open[:carries]:
            break
        is_open[:carries] = grown
    second = [i for i in range(split) if is_open[i]]
    rows = [(low[i], refs[i].lower) for i in range(carries, split)]
    rows += [(high[i], refs[i].upper) for i in second if i >= carries]
    if tracer.iteration is not None:
        rows.append((tracer.iteration, bounds.inner.iota(shape=(loop.length,))))
    carried = [i for i in second if i < carries]
    twice = [i for i in range(carries, len(outs)) if not outs[i].point]
    found = bind_scan(
        tracer,
        [(low[i], refs[i].lower) for i in range(carries)] + [(high[i], refs[i].upper) for i in carried],
        rows,
        [out.lower for out in outs[:carries]] + [outs[i].upper for i in carried],
        [out.lower for out in outs[carries:]] + [outs[i].upper for i in twice],
        reverse=loop.reverse,
        length=loop.length,
    )
    lower = [*found.carry[:carries], *found.ys[: len(outs) - carries]]
    uppers = dict(zip(carried, found.carry[carries:])) | dict(zip(twice, found.ys[len(outs) - carries :]))
    return tuple([bounds.between(x, uppers.get(i, x)) for i, x in enumerate(lower)])


def _switch(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    index, *operands = refs
    bodies = get_branches(static)
    if not index.point:
        results = [evaluate(bounds, body, operands, constants(bounds, body)) for body in bodies]
        return tuple([_hull(bounds, alike) for alike in zip(*results)])
    traced = []
    for body in bodies:
        tracer = Tracer(bounds.inner, body.lines, loops=False)
        inner = Intervals(tracer)
        pairs = [inner.between(tracer.adopt(ref.lower), tracer.adopt(ref.upper)) for ref in operands]
        traced.append((tracer, _on_pairs(inner, body, pairs)))
    twice = [i for i, alike in enumerate(zip(*[outs for _, outs in traced])) if not all(x.point for x in alike)]
    found = bind_switch(
        bounds.inner,
        index.lower,
        [(tracer, [x.lower for x in outs] + [outs[i].upper for i in twice]) for tracer, outs in traced],
    )
    count = len(bodies[0].outputs)
    uppers = dict(zip(twice, found[count:]))
    return tuple([bounds.between(x, uppers.get(i, x)) for i, x in enumerate(found[:count])])


def _hull(bounds: Intervals[Any], alike: Sequence[Interval[Any]]) -> Interval[Any]:
    """Return the smallest interval that contains several."""
    ops = bounds.inner
    least, most = (ops.logical_and, ops.logical_or) if alike[0].dtype == BOOL else (ops.minimum, ops.maximum)
    lower, upper = alike[0].lower, alike[0].upper
    for x in alike[1:]:
        lower, upper = least(lower, x.lower), most(upper, x.upper)
    return bounds.between(lower, upper)


def _linear_recurrence(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    """Compute the recurrence element after element, as a run does."""
    axis = static["axis"]
    rank = len(refs[0].shape)
    front = (axis, *[i for i in range(rank) if i != axis])
    rows = tuple([bounds.permute(x, axes=front) for x in refs])
    start = bounds.full(shape=rows[0].shape[1:], value=0.0, dtype=rows[0].dtype)

    def step(ops: Any, h: Any, row: Any) -> Any:
        h = ops.add(ops.mul(row[0], h), row[1])
        return h, h

    _, out = bounds.scan(step, start, rows, reverse=static["reverse"])
    return (bounds.permute(out, axes=[front.index(i) for i in range(rank)]),)


def _while(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    raise bounds.refusal(WHILE, ", a loop whose length depends on values,")


# Masks: the lower end is True where one certainly holds, the upper end where it may hold ------------------------------


def known(ops: Any, *xs: Interval[Any]) -> Any:
    """Return the mask of elements with known bounds: no end is nan."""
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
    infinity = full_like(ops, x.lower, float("inf"))
    low, high = (ops.equal(ops.abs(end), infinity) for end in (x.lower, x.upper))
    certain = ops.logical_and(ops.equal(x.lower, x.upper), low)
    return (bounds.between(certain, ops.logical_or(ops.logical_or(low, high), ops.logical_not(known(ops, x)))),)


def _isfinite(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x,), ops = refs, bounds.inner
    infinity = full_like(ops, x.lower, float("inf"))
    low, high = (ops.less(ops.abs(end), infinity) for end in (x.lower, x.upper))
    never = ops.logical_and(ops.equal(x.lower, x.upper), ops.logical_not(low))
    return (bounds.between(ops.logical_and(low, high), ops.logical_not(never)),)


def _select(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (mask, x, y), ops = refs, bounds.inner
    lower, upper = ops.select(mask.lower, x.lower, y.lower), ops.select(mask.lower, x.upper, y.upper)
    if mask.point:
        return (bounds.between(lower, upper),)
    undecided, either = ops.logical_and(mask.upper, ops.logical_not(mask.lower)), _hull(bounds, (x, y))
    lower, upper = ops.select(undecided, either.lower, lower), ops.select(undecided, either.upper, upper)
    return (bounds.between(lower, upper),)


def cast(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x,), ops, dtype = refs, bounds.inner, as_dtype(static["dtype"])
    if dtype == BOOL:
        if x.dtype == BOOL:
            return (bounds.between(ops.cast(x.lower, dtype=dtype), ops.cast(x.upper, dtype=dtype)),)
        zero = bounds.wrap(full_like(ops, x.lower, 0))
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
    whole = full_like(ops, lower, 1 / EPS[dtype])
    lower = ops.select(ops.less_equal(ops.abs(lower), whole), lower, down(ops, lower))
    upper = ops.select(ops.less_equal(ops.abs(upper), whole), upper, up(ops, upper))
    return (bounds.between(lower, upper),)


def _truncated(bounds: Intervals[Any], x: Interval[Any], dtype: Any) -> Interval[Any]:
    """Return floats truncated to integers, which is monotone; any integer if one may be nan or too large."""
    ops, limits = bounds.inner, np.iinfo(dtype)
    border = full_like(ops, x.lower, float(limits.max) / 2)
    fits = ops.logical_and(ops.less(ops.abs(x.lower), border), ops.less(ops.abs(x.upper), border))
    zero = full_like(ops, x.lower, 0.0)
    found = []
    for end, limit in ((x.lower, limits.min), (x.upper, limits.max)):
        whole = ops.cast(ops.select(fits, end, zero), dtype=dtype)
        found.append(ops.select(fits, whole, ops.full(shape=x.shape, value=int(limit), dtype=dtype)))
    return bounds.between(*found)


_COMPARISONS: dict[Primitive, Callable[..., Refs]] = {
    LESS: _compared("less", "less_equal"),
    LESS_EQUAL: _compared("less_equal", "less"),
    EQUAL: _equal,
    LOGICAL_AND: rising(LOGICAL_AND),
    LOGICAL_OR: rising(LOGICAL_OR),
    LOGICAL_NOT: _logical_not,
    LOGICAL_XOR: _logical_xor,
    ISNAN: _isnan,
    ISINF: _isinf,
    ISFINITE: _isfinite,
}


RULES: dict[Primitive, Callable[..., Refs]] = {
    SCAN: _scan,
    SWITCH: _switch,
    WHILE: _while,
    LINEAR_RECURRENCE: _linear_recurrence,
    **_COMPARISONS,
    SELECT: _select,
    CAST: cast,
    PAD: rising(PAD),
}
EXACT = frozenset({*_COMPARISONS, SELECT, DETACH, FULL, IOTA, RAND_UNIFORM, PAD})
OPEN_INTEGERS = frozenset({SCAN, SWITCH, *_COMPARISONS, SELECT, CAST, PAD})
