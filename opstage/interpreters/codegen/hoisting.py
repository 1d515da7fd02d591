"""Loop-invariant code motion: equations with the same result in every iteration run before the loop."""

from __future__ import annotations

from collections.abc import Sequence

from ...ops.catalogue.layout import PERMUTE, TRANSPOSE2D
from ...ops.closed import Body, Equation, with_opened
from ...ops.kinds import Kind

_TRANSPOSITIONS = (TRANSPOSE2D, PERMUTE)


def hoisted(body: Body, varying: int) -> tuple[Body, Body] | None:
    """Return the loop invariants of `body` as a body of its inputs except the first `varying`, and the rest of `body`,
    with these results as additional inputs; None if there is nothing to hoist.

    The only layout ops that are hoisted are transposed operands of products, as copies: the product reads them faster,
    which pays for the copy. Other layout ops cost nothing in an iteration.
    """
    fixed = {*body.inputs[varying:], *[constant.slot for constant in body.constants]}
    makers = {}
    for e in body.equations:
        if not e.effects and e.inputs and fixed.issuperset(e.inputs):
            fixed.update(e.outputs)
            makers.update(dict.fromkeys(e.outputs, e))
    out: dict[int, None] = {}
    for e in body.equations:
        if e.outputs[0] in makers:
            if e.primitive.kind is not Kind.LAYOUT:
                out.update(dict.fromkeys(e.outputs))
        elif e.primitive.kind is Kind.CONTRACTION:
            out.update({s: None for s in e.inputs if s in makers and makers[s].primitive in _TRANSPOSITIONS})
    if not out:
        return None
    needed = set(out)
    for e in reversed(body.equations):
        if e.outputs[0] in makers and not needed.isdisjoint(e.outputs):
            needed.update(e.inputs)
    before = [e for e in body.equations if e.outputs[0] in makers and not needed.isdisjoint(e.outputs)]
    varying_part = [e for e in body.equations if out.keys().isdisjoint(e.outputs)]
    read = {*body.outputs}
    for e in reversed(varying_part):
        if not read.isdisjoint(e.outputs) or e.outputs[0] not in makers:
            read.update(e.inputs)
    varying_part = [e for e in varying_part if not read.isdisjoint(e.outputs) or e.outputs[0] not in makers]
    results = [slot for slot in out if slot in read]
    return (
        _part(body, body.inputs[varying:], before, results),
        _part(body, [*body.inputs, *results], varying_part, body.outputs),
    )


def _part(body: Body, inputs: Sequence[int], equations: list[Equation], outputs: Sequence[int]) -> Body:
    read = {*outputs}.union(*[e.inputs for e in equations])
    constants = [constant for constant in body.constants if constant.slot in read]
    equations = with_opened(equations, outputs)
    return body.replace(inputs=inputs, constants=constants, equations=equations, outputs=outputs)
