"""Hoisting: loop-invariant values are computed once, before the loop."""

from __future__ import annotations

from ....ops.closed import Body, ScanParameters
from ...codegen.hoisting import hoisted
from ...structural import SCAN
from .rewrite import Rewrite


def hoist(body: Body) -> Body:
    """Move the invariants of each loop out of it; the loop captures them."""
    rewrite = Rewrite(body)
    for equation in body.equations:
        inputs = rewrite.inputs(equation)
        parts = None
        if equation.primitive is SCAN:
            loop = ScanParameters(**equation.static)
            split = loop.carries + loop.entries
            if isinstance(loop.length, int) and loop.length > 1:
                parts = hoisted(loop.body, split)
        if parts is None:
            rewrite.keep(equation, inputs)
            continue
        before, rest = parts
        operands = (*inputs, *rewrite.inline(before, inputs[split:], equation))
        read = rest.read()
        kept = [i for i, slot in enumerate(rest.inputs) if i < split or slot in read]
        static = {**equation.static, "body": rest.taking([rest.inputs[i] for i in kept])}
        types = [body.types[slot] for slot in equation.outputs]
        results = rewrite.write(SCAN, tuple([operands[i] for i in kept]), static, types, equation)
        rewrite.replace(equation.outputs, results)
    return rewrite.close()
