"""Parameters on which the loss depends, but not along any path with a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....ops.catalogue.logic import DETACH
from ....ops.closed import Equation
from ....ops.types import dtype_name, is_float
from ...structural import SCAN
from ..finding import Finding
from .reach import sources
from .subject import Leaf, Subject

RULE = "blocked-gradient"

_IDLE = "if that is meant, freeze what comes before it with requires_grad=False"


def blocked_gradients(subject: Subject) -> Iterator[Finding]:
    """Trained parameters whose every path to the loss ends at an op without a derivative, a finding for each such op.

    If that applies to all parameters of a step, or none reaches the loss at all, the step could change nothing, which
    is an error. Outside of a training step a gradient may not be wanted (an accuracy is a program as well), so the lack
    of one is only a warning if another parameter has one.
    """
    if not subject.sound or subject.loss is None or not subject.trained:
        return
    moved = sources(subject.forward, [subject.loss], subject.iterations, differentiably=True)
    still = [named for named in subject.trained if named.slot not in moved]
    nothing_moves = len(still) == len(subject.trained)
    if not still or (nothing_moves and subject.step is None):
        return
    blockers = _blockers(subject, [named for named in still if named.slot in subject.used_by_loss])
    if nothing_moves:
        yield _nothing_moves(subject, next((call for call, _ in blockers), None))
        return
    for call, leaves in blockers:
        names = ", ".join(named.path for named in leaves[:3]) + (f" and {len(leaves) - 3} more" if leaves[3:] else "")
        verb = "reaches" if len(leaves) == 1 else "reach"
        through = f"{call.primitive.name}, {_why(subject, call)}"
        reason = f"{names} {verb} the loss only through {through}: no gradient comes back"
        yield subject.at(call, RULE, reason, f"{_fix(call)}; {_IDLE}")


def _nothing_moves(subject: Subject, blocker: Equation | None) -> Finding:
    count = len(subject.trained)
    which = subject.trained[0].path if count == 1 else f"any of the {count} parameters"
    if blocker is not None:
        reason = f"the loss has no gradient for {which}: it depends on them only through {blocker.primitive.name}"
        reason = reason if count > 1 else reason.replace("on them", "on it")
        return subject.at(blocker, RULE, f"{reason}, {_why(subject, blocker)}", _fix(blocker), severity="error")
    reason = f"the loss does not depend on {which}, so a training step would change nothing"
    source = None if subject.loss is None else subject.source(subject.maker(subject.loss))
    return Finding("loss", reason, source=source, rule=RULE, fix="compute the loss from the parameters")


def _why(subject: Subject, call: Equation) -> str:
    if call.primitive is DETACH:
        return "which ends a gradient"
    if not is_float(subject.type(call.outputs[0]).dtype):
        return f"whose result is {dtype_name(subject.type(call.outputs[0]).dtype)}"
    return "which has no derivative"


def _fix(call: Equation) -> str:
    if call.primitive is DETACH:
        return "take out the detach"
    return f"compute the loss from what {call.primitive.name} reads, or from a smooth stand-in for it"


def _blockers(subject: Subject, blocked: Sequence[Leaf]) -> list[tuple[Equation, list[Leaf]]]:
    """Return the first op at which each parameter's gradient ends, with the parameters that end there."""
    found: dict[int, Equation] = {}
    bits = {named.slot: 1 << i for i, named in enumerate(blocked)}
    _follow(subject, subject.forward, subject.used_by_loss, bits, found)
    ends: dict[int, tuple[Equation, list[Leaf]]] = {}
    for i, named in enumerate(blocked):
        if i in found:
            ends.setdefault(id(found[i]), (found[i], []))[1].append(named)
    return list(ends.values())


def _follow(
    subject: Subject,
    equations: Sequence[Equation],
    wanted: set[int] | None,
    bits: dict[int, int],
    found: dict[int, Equation],
) -> None:
    """Propagate the bits of parameters along differentiable paths; record in `found` where each path ends first.

    In the program itself only `wanted` tensors are followed; in a loop all.
    """
    for call in equations:
        carried = 0
        for number in call.inputs:
            carried |= bits.get(number, 0)
        if not carried or (wanted is not None and wanted.isdisjoint(call.outputs)):
            continue
        if call.primitive is SCAN:
            _through_loop(subject, call, bits, found)
        passes = call.primitive.differentiable and any(is_float(subject.type(slot).dtype) for slot in call.outputs)
        if passes:
            for number in call.outputs:
                bits[number] = carried
        else:
            while carried:
                lowest = carried & -carried
                found.setdefault(lowest.bit_length() - 1, call)
                carried ^= lowest


def _through_loop(subject: Subject, loop: Equation, bits: dict[int, int], found: dict[int, Equation]) -> None:
    iteration = subject.iterations.of(loop)
    for number, outside in zip(iteration.inputs, loop.inputs):
        bits[number] = bits.get(outside, 0)
    for _ in range(2):  # the second time for values that return through the carry
        _follow(subject, iteration.equations, None, bits, found)
        for i in range(loop.static["carries"]):
            bits[iteration.inputs[i]] |= bits.get(iteration.outputs[i], 0)
