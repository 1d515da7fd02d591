"""On which tensors others depend: by any path, or by one along which a gradient flows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ....ops.closed import Equation
from ....ops.types import is_float
from ...structural import SCAN
from .turns import Turns


def sources(
    equations: Sequence[Equation], targets: Iterable[int], turns: Turns, *, differentiably: bool = False
) -> set[int]:
    """All tensors on which the targets depend, themselves among them.

    With `differentiably` only what takes a cotangent from them counts: floats, through ops that have derivatives.
    """
    live = set(targets)
    for call in reversed(equations):
        if live.isdisjoint(call.outputs) or (differentiably and not call.primitive.differentiable):
            continue
        if call.primitive is SCAN:
            live.update(_of_loop(call, live, turns, differentiably))
        elif differentiably:
            live.update([slot for slot in call.inputs if is_float(turns.types[slot].dtype)])
        else:
            live.update(call.inputs)
    return live


def _of_loop(loop: Equation, live: set[int], turns: Turns, differentiably: bool) -> list[int]:
    """The operands of a loop on which its live outputs depend; a carry depends on what the turn before made of it."""
    turn, carries = turns.of(loop), loop.static["carries"]
    results = len(turn.outputs)
    inside = {turn.outputs[i] for i, n in enumerate(loop.outputs[:results]) if n in live}
    inside |= {turn.inputs[i] for i, n in enumerate(loop.outputs[results:]) if n in live}
    while True:
        inside = sources(turn.equations, inside, turns, differentiably=differentiably)
        more = {turn.outputs[i] for i in range(carries) if turn.inputs[i] in inside} - inside
        if not more:
            break
        inside |= more
    return [outside for outside, number in zip(loop.inputs, turn.inputs) if number in inside]
