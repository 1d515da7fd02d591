"""Loops and branches: their bodies run on intervals, and stay one op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....ops.catalogue.sequence import LINEAR_RECURRENCE
from ....ops.closed import Body, ScanParameters
from ....ops.primitive import Primitive, Static
from ....ops.types import BOOL
from ...branching import SWITCH, bind_switch, branches_of
from ...interpreter import Variable
from ...looping import WHILE
from ...structural import SCAN, bind_scan
from ...tracer import Tracer, constants, evaluate
from ..interpreter import Interval, Intervals

Refs = tuple[Interval[Any], ...]


def _on_pairs(
    inner: Intervals[Variable], body: Body, pairs: Sequence[Interval[Variable]]
) -> tuple[Interval[Variable], ...]:
    return evaluate(inner, body, pairs, constants(inner, body))


def _scan(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    """The loop with two carries for one that the box leaves open, at the start or after an iteration."""
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
    bodies = branches_of(static)
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
    """The least interval around several."""
    ops = bounds.inner
    least, most = (ops.logical_and, ops.logical_or) if alike[0].dtype == BOOL else (ops.minimum, ops.maximum)
    lower, upper = alike[0].lower, alike[0].upper
    for x in alike[1:]:
        lower, upper = least(lower, x.lower), most(upper, x.upper)
    return bounds.between(lower, upper)


def _linear_recurrence(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    """Element after element, as it is computed."""
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
    raise bounds.refusal(WHILE, "a loop whose length the values decide")


RULES: dict[Primitive, Callable[..., Refs]] = {
    SCAN: _scan,
    SWITCH: _switch,
    WHILE: _while,
    LINEAR_RECURRENCE: _linear_recurrence,
}
OPEN_INTEGERS = frozenset({SCAN, SWITCH})
