"""Loops and branches on a batch of examples.

A scan runs all examples at once and carries what any example changes. If a choice differs between examples, every
branch that some example takes runs. A `while_loop` runs until the last example has ended. An example for which a branch
or an iteration does not count gets a copy of the values of one for which it does, and so cannot add a nan or an error.
A body with an external effect, such as printing, runs for one example after the other, where it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..ops.arrangement import moveaxis
from ..ops.body import Body, ScanParameters, WhileParameters
from ..ops.dims import is_zero
from ..ops.primitive import Effect, Primitive, Static
from ..ops.types import BOOL, INT64, TensorType
from .cond import bind_switch, get_branches
from .remat import bind_remat
from .scan import bind_scan
from .tracer import Tracer, constants, evaluate
from .while_loop import bind_while, loop_part

if TYPE_CHECKING:
    from .batching import Batched, Batching


def _type(ops: Batching[Any], one: TensorType, batched: bool) -> TensorType:
    return TensorType((ops.size, *one.shape), one.dtype) if batched else one


def batched_scan(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    """Bind one loop whose body runs all examples."""
    loop, inner = ScanParameters(**static), ops.inner
    body, carries, split = loop.body, loop.carries, loop.carries + loop.entries
    flags = [ref.batched for ref in refs]
    while True:  # until it is known which carries differ from example to example
        tracer = Tracer(inner, body.lines)
        over = ops.on(tracer)
        inside = [tracer.input(_type(ops, t, flag)) for t, flag in zip(body.input_types[:split], flags)]
        outside = [tracer.wrap(ref.value) for ref in refs[split:]]
        inputs = [over.ref(value, flag) for value, flag in zip((*inside, *outside), flags)]
        outs = evaluate(over, body, inputs, constants(over, body))
        grown = [flag or out.batched for flag, out in zip(flags[:carries], outs)]
        if grown == flags[:carries]:
            break
        flags[:carries] = grown
    xs = [moveaxis(inner, ref.value, source=1, target=0) if ref.batched else ref.value for ref in refs[carries:split]]
    found = bind_scan(
        tracer,
        list(zip(inside, _carried(ops, refs, grown))),
        list(zip(inside[carries:], xs)),
        _carried(over, outs, grown),
        [out.value for out in outs[carries:]],
        reverse=loop.reverse,
        length=loop.length,
    )
    ys = [
        ops.ref(moveaxis(inner, y, source=1, target=0) if out.batched else y, out.batched)
        for y, out in zip(found.ys, outs[carries:])
    ]
    return [*[ops.ref(value, flag) for value, flag in zip(found.carry, grown)], *ys]


def _carried(ops: Batching[Any], refs: Sequence[Batched], flags: Sequence[bool]) -> list[Any]:
    """Return the values of carries, with the examples first where `flags` say so."""
    return [ops.stretched(ref) if flag else ref.value for ref, flag in zip(refs, flags)]


def _has_external_effect(*bodies: Body) -> bool:
    return any(Effect.EXTERNAL in body.effects for body in bodies)


def _select(ops: Batching[Any], mask: Batched, x: Batched, y: Batched) -> Batched:
    found: Batched = ops.select(ops.broadcast_to(mask, shape=x.shape), x, y)
    return found


def _fill_unselected(ops: Batching[Any], mask: Batched, x: Batched) -> Batched:
    """Return x with a copy of an example where the mask holds in place of those where it does not.

    What these compute is not used, and has no nan that a product with a cotangent of zero could keep."""
    if not x.batched or is_zero(ops.size):
        return x
    first = ops.inner.argmax(ops.inner.cast(mask.value, dtype=INT64), axis=0)
    copy = ops.inner.detach(ops.inner.gather_rows(x.value, first))
    return _select(ops, mask, x, ops.ref(copy))


def batched_switch(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    """Keep a common choice; otherwise run each branch that any example takes, and select for each example."""
    (index, *operands), bodies = refs, get_branches(static)
    if index.batched and _has_external_effect(*bodies):
        return ops.one_by_one(primitive, refs, static)
    if index.batched:
        return _switch_of_each(ops, index, operands, bodies)
    traced = []
    for body in bodies:
        tracer = Tracer(ops.inner, body.lines, loops=False)
        over = ops.on(tracer)
        inputs = [over.ref(tracer.adopt(ref.value), ref.batched) for ref in operands]
        traced.append((tracer, over, evaluate(over, body, inputs, constants(over, body))))
    flags = [any(flags) for flags in zip(*[[out.batched for out in outs] for _, _, outs in traced])]
    rows = [(tracer, _carried(over, outs, flags)) for tracer, over, outs in traced]
    return [ops.ref(out, flag) for out, flag in zip(bind_switch(ops.inner, index.value, rows), flags)]


def batched_remat(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    """Bind one remat whose body runs all examples."""
    body: Body = static["body"]
    tracer = Tracer(ops.inner, body.lines, loops=False)
    over = ops.on(tracer)
    outs = evaluate(over, body, [over.ref(tracer.adopt(r.value), r.batched) for r in refs], constants(over, body))
    found = bind_remat(ops.inner, tracer, [out.value for out in outs])
    return [ops.ref(value, out.batched) for value, out in zip(found, outs)]


def _switch_of_each(
    ops: Batching[Any], index: Batched, operands: Sequence[Batched], bodies: Sequence[Body]
) -> Sequence[Any]:
    chosen = ops.cast(index, dtype=INT64)
    if index.dtype != BOOL:  # an index without a branch raises
        chosen = ops.gather_rows(ops.iota(shape=(len(bodies),)), chosen)
    found: list[Any] = []
    for number, body in enumerate(bodies):
        this = ops.equal(chosen, ops.const(number, dtype=INT64))

        def run(over: Any, *inputs: Any, body: Body = body) -> tuple[Any, ...]:
            return evaluate(over, body, inputs, constants(over, body))

        def nothing(over: Any, *inputs: Any, body: Body = body) -> tuple[Any, ...]:
            return tuple([over.full(shape=t.shape, value=0, dtype=t.dtype) for t in body.output_types])

        taken = ops.ref(ops.inner.reduce_any(this.value))
        outs = ops.cond(taken, run, nothing, *[_fill_unselected(ops, this, x) for x in operands])
        found = [_select(ops, this, x, y) for x, y in zip(outs, found)] if found else list(outs)
    return found


def batched_while(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    """Bind one loop that runs until the last example has ended; the carries of the others stay as they are.

    If examples end apart, the count of iterations is a carry of each, and the loop's own count is one carry more."""
    loop, inner = WhileParameters(**static), ops.inner
    types, count = loop.body.input_types, len(loop.body.outputs)
    flags = [ref.batched for ref in refs]

    def inputs_of(part: Any, number: Any) -> tuple[Batching[Any], list[Batched]]:
        tracer, state = part
        over = ops.on(tracer)
        outside = [tracer.adopt(ref.value) for ref in refs[count:]]
        given = [over.ref(value, flag) for value, flag in zip((*state[:count], *outside), flags)]
        given[count - 1] = over.ref(number)  # the number of an iteration is the same for all
        return over, given

    while True:  # until it is known which carries differ from example to example, and whether examples end apart
        apart = flags[count - 1]
        if apart and _has_external_effect(loop.test, loop.body):
            return ops.one_by_one(primitive, refs, static)
        rows = [_type(ops, t, flag) for t, flag in zip(types[:count], flags)] + [types[count - 1]] * apart
        tester, part = loop_part(inner, rows, loop.test.lines), loop_part(inner, rows, loop.body.lines)
        testing, given = inputs_of(tester, tester.state[-1])
        (flag,) = evaluate(testing, loop.test, given, constants(testing, loop.test))
        over, given = inputs_of(part, part.state[-1])
        active: Any = None
        if apart:
            (active,) = evaluate(over, loop.test, given, constants(over, loop.test))
            given = [_fill_unselected(over, active, ref) for ref in given]
        outs = evaluate(over, loop.body, given, constants(over, loop.body))
        grown = [flag.batched or apart or old or out.batched for old, out in zip(flags[:count], outs)]
        grown[-1] = flag.batched or apart
        if grown == flags[:count]:
            break
        flags[:count] = grown
    start = _carried(ops, refs[:count], grown)
    if not apart:
        found = bind_while(inner, tester, flag.value, part, _carried(over, outs, grown), start, loop.limit)
        return [ops.ref(value, each) for value, each in zip(found, grown)]
    goes_on = tester.tracer.reduce_any(flag.value)
    state = [over.ref(value, True) for value in part.state[:count]]
    new = [over.stretched(_select(over, active, out, before)) for out, before in zip(outs, state)]
    counter = inner.const(0, dtype=INT64)
    found = bind_while(inner, tester, goes_on, part, [*new, outs[-1].value], [*start, counter], loop.limit)
    return found[:count]
