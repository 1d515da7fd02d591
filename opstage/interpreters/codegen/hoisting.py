"""Loop-invariant code motion: equations that every iteration would compute alike are computed before the loop."""

from __future__ import annotations

from collections.abc import Sequence

from ...ops.catalogue.layout import PERMUTE, TRANSPOSE2D
from ...ops.closed import Body, Equation, with_opened
from ...ops.kinds import Kind

_TRANSPOSITIONS = (TRANSPOSE2D, PERMUTE)


def hoisted(body: Body, varying: int) -> tuple[Body, Body] | None:
    """A body that takes the inputs but the first `varying` to what no turn changes, and the rest of `body`, which takes
    these results after its inputs; None where there is nothing to take out.

    Of layout only the transposed operand of a product is, in its own memory: there a product reads it faster, which
    pays for the copy. Anything else of layout costs a turn nothing.
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
    turn = [e for e in body.equations if out.keys().isdisjoint(e.outputs)]
    read = {*body.outputs}
    for e in reversed(turn):
        if not read.isdisjoint(e.outputs) or e.outputs[0] not in makers:
            read.update(e.inputs)
    turn = [e for e in turn if not read.isdisjoint(e.outputs) or e.outputs[0] not in makers]
    results = [slot for slot in out if slot in read]
    return (
        _part(body, body.inputs[varying:], before, results),
        _part(body, [*body.inputs, *results], turn, body.outputs),
    )


def _part(body: Body, inputs: Sequence[int], equations: list[Equation], outputs: Sequence[int]) -> Body:
    read = {*outputs}.union(*[e.inputs for e in equations])
    constants = [constant for constant in body.constants if constant.slot in read]
    equations = with_opened(equations, outputs)
    return body.replace(inputs=inputs, constants=constants, equations=equations, outputs=outputs)
