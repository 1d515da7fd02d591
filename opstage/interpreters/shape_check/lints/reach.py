"""Dependencies between tensors: by any path, or by one with a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ....ops.closed import Equation
from ....ops.types import is_float
from ...structural import SCAN
from .iterations import Iterations


def sources(
    equations: Sequence[Equation], targets: Iterable[int], iterations: Iterations, *, differentiably: bool = False
) -> set[int]:
    """Return all tensors on which the targets depend, including the targets.

    With `differentiably`, only paths of cotangents count: floats, through ops with derivatives.
    """
    live = set(targets)
    for call in reversed(equations):
        if live.isdisjoint(call.outputs) or (differentiably and not call.primitive.differentiable):
            continue
        if call.primitive is SCAN:
            live.update(_of_loop(call, live, iterations, differentiably))
        elif differentiably:
            live.update([slot for slot in call.inputs if is_float(iterations.types[slot].dtype)])
        else:
            live.update(call.inputs)
    return live


def _of_loop(loop: Equation, live: set[int], iterations: Iterations, differentiably: bool) -> list[int]:
    """Return the operands of a loop on which its live outputs depend; a carry depends on the previous iteration."""
    iteration, carries = iterations.of(loop), loop.static["carries"]
    results = len(iteration.outputs)
    inside = {iteration.outputs[i] for i, n in enumerate(loop.outputs[:results]) if n in live}
    inside |= {iteration.inputs[i] for i, n in enumerate(loop.outputs[results:]) if n in live}
    while True:
        inside = sources(iteration.equations, inside, iterations, differentiably=differentiably)
        more = {iteration.outputs[i] for i in range(carries) if iteration.inputs[i] in inside} - inside
        if not more:
            break
        inside |= more
    return [outside for outside, number in zip(loop.inputs, iteration.inputs) if number in inside]
