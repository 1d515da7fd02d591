"""Dead code elimination: removes equations on which no output depends, and unused constants."""

from __future__ import annotations

from ....ops.closed import Body, with_opened
from ....ops.kinds import Effect


def dead_code(body: Body) -> Body:
    """Remove dead code. An equation stays whole while one of its results is read.

    An op that would raise (an index out of range) is removed like any other if its result is unused; ops with external
    effects stay.
    """
    read = set(body.outputs)
    kept = []
    for equation in reversed(body.equations):
        if not read.isdisjoint(equation.outputs) or Effect.EXTERNAL in equation.effects:
            read.update(equation.inputs)
            kept.append(equation)
    constants = [constant for constant in body.constants if constant.slot in read]
    if len(kept) == len(body.equations) and len(constants) == len(body.constants):
        return body
    kept.reverse()
    return body.replace(equations=with_opened(kept, body.outputs), constants=constants)
