"""Parameters that never reach the loss, and inputs on which nothing depends.

Both are warnings. A trained parameter whose gradient is always zero is nearly always a mistake (a layer that was made
and not called, `wq` read where `wk` was meant), but such a program runs and trains, and some are intended: a switch
disables a block but keeps its weights, so that checkpoints still fit; two losses alternate over one tree; a frozen tree
is loaded completely and used in part. A check that rejected them would be disabled. Only if *no* trained parameter has
a gradient can the step do nothing, and that is an error: `blocked-gradient`.

A name that begins with `_` marks its value as intentionally unused, as elsewhere in Python, and is not reported.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ...ops.body import Equation
from ...ops.errors import SourceLine
from ...ops.logic import DETACH
from ...ops.types import dtype_name, is_float
from ...transforms.scan import SCAN
from .finding import Finding
from .lint_subject import Leaf, Subject

PARAMETER = "unused-parameter"
INPUT = "unused-input"


def unused_parameters(subject: Subject) -> Iterator[Finding]:
    """Find parameters on which the loss does not depend, or whole branches of them; without a loss, on which no result
    does.

    A frozen parameter is used if any result depends on it. A step that reads no trained parameter at all is an
    error already, see `blocked-gradient`.
    """
    if not subject.sound:
        return
    trained = {named.slot for named in subject.trained} if subject.step else set()
    if trained and trained.isdisjoint(subject.used_by_loss):
        return
    unused = [
        named
        for named in subject.parameters
        if named.slot not in (subject.used_by_loss if named.slot in trained else subject.used)
        and not _is_meant(named.path)
    ]
    for path, leaves in _branches(unused, subject.parameters):
        yield _parameter(subject, path, leaves)


def unused_inputs(subject: Subject) -> Iterator[Finding]:
    """Find arguments of the program, or leaves of its state, on which no result depends."""
    if not subject.sound:
        return
    for named in subject.given:
        if named.slot not in subject.used and not _is_meant(named.path):
            reader = _reader(subject, [named])
            reason = f"{named.type}, is never used: {_fate(subject, named, reader)}"
            fix = "use it, or take it out"
            if "." not in named.path:
                fix += f"; if it is given and not wanted, call it _{named.path}"
            source = None if reader is not None else argument_line(subject.written, named.path)
            yield Finding(
                named.path, reason, source=source or _line(subject, reader), rule=INPUT, severity="warning", fix=fix
            )


def _is_meant(path: str) -> bool:
    """Whether a name marks its value as intentionally unused."""
    return any(part.startswith("_") for part in path.split("."))


def _branches(unused: Sequence[Leaf], every: Sequence[Leaf]) -> list[tuple[str, list[Leaf]]]:
    """Return the unused leaves; those of a branch that is entirely unused are grouped under its path."""
    total, missing = (Counter(p for named in leaves for p in _prefixes(named.path)) for leaves in (every, unused))
    branches: dict[str, list[Leaf]] = {}
    for named in unused:
        whole = next(path for path in _prefixes(named.path) if missing[path] == total[path])
        branches.setdefault(whole, []).append(named)
    return [(leaves[0].path if len(leaves) == 1 else path, leaves) for path, leaves in branches.items()]


def _prefixes(path: str) -> list[str]:
    """Return `params`, `params.blocks`, `params.blocks.0`, …: the branches that contain a leaf, and the leaf itself."""
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _parameter(subject: Subject, path: str, leaves: Sequence[Leaf]) -> Finding:
    """Return the finding on one branch; it mentions a leaf of the same type that is read twice, possibly by mistake."""
    goal = "any result" if subject.loss is None else "the loss"
    reader = _reader(subject, leaves)
    what = str(leaves[0].type) if len(leaves) == 1 else f"{len(leaves)} tensors"
    reason = f"{what}, never reaches {goal}: {_fate(subject, leaves[0], reader)}"
    fix = "use it, or take it out of the parameters"
    source = _line(subject, reader)
    twin = _read_twice(subject, leaves[0]) if len(leaves) == 1 and reader is None else None
    if twin is not None:
        other, first, second = twin
        reason += f", while {other.path}, of the same type, is read here and at {subject.source(first)}"
        source, fix = subject.source(second), f"read {path} in one of the two places"
    return Finding(path, reason, source=source, rule=PARAMETER, severity="warning", fix=fix)


def _fate(subject: Subject, named: Leaf, reader: Equation | None) -> str:
    if reader is None:
        return "no op reads it"
    if named.slot in subject.used:
        return "it goes into metrics or state alone"
    return f"{reader.primitive.name} reads it, whose result goes nowhere"


def _line(subject: Subject, reader: Equation | None) -> SourceLine | None:
    """Return the op that reads it in vain; else the one that computed the result it should reach."""
    return subject.source(reader if reader is not None else subject.maker(subject.results[0]))


def _reader(subject: Subject, leaves: Sequence[Leaf]) -> Equation | None:
    """Return the first op of the program that reads one of these."""
    numbers = {named.slot for named in leaves}
    return next((e for e in subject.forward if not (e.backward or numbers.isdisjoint(e.inputs))), None)


def _read_twice(subject: Subject, unused: Leaf) -> tuple[Leaf, Equation, Equation] | None:
    """Return a parameter of the same type, with a path that differs in one part, that two calls read, and those
    calls."""
    for named in subject.parameters:
        if str(named.type) == str(unused.type) and _differ_once(named.path, unused.path):
            calls = {e.ordinal: e for e in reversed(subject.forward) if named.slot in e.inputs and not e.backward}
            if len(calls) > 1:
                second, first = list(calls.values())[-2:]
                return named, first, second
    return None


def _differ_once(path: str, other: str) -> bool:
    a, b = path.split("."), other.split(".")
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b)) == 1


# The line of an argument ----------------------------------------------------------------------------------------------


_LONGEST = 100  # lines of a signature, including decorators


def argument_line(program: Any, path: str) -> SourceLine | None:
    """Return the line of the argument with a path such as `x`, `batch.x` or `rest[0]`; None if it is not found."""
    while isinstance(program, functools.partial) or hasattr(program, "__wrapped__"):
        program = program.func if isinstance(program, functools.partial) else inspect.unwrap(program)
    code = getattr(program, "__code__", None)
    name = re.split(r"[.\[]", path)[0]
    if code is None or name not in code.co_varnames:
        return None
    begin = re.compile(r"\blambda\b" if code.co_name == "<lambda>" else rf"\bdef\s+{code.co_name}\b")
    begun = False
    for number in range(code.co_firstlineno, code.co_firstlineno + _LONGEST):
        line = linecache.getline(code.co_filename, number)
        start = None if begun else begin.search(line)
        begun = begun or start is not None
        found = re.compile(rf"\b{name}\b").search(line, start.end() if start else 0) if begun else None
        if found:
            return SourceLine(code.co_filename, number, found.start() + 1, found.end() + 1)
    return None


# Parameters on which the loss depends, but not along any path with a gradient -----------------------------------------


BLOCKED = "blocked-gradient"

_IDLE = "if that is meant, freeze what comes before it with requires_grad=False"


def blocked_gradients(subject: Subject) -> Iterator[Finding]:
    """Trained parameters whose every path to the loss ends at an op without a derivative, a finding for each such op.

    If that applies to all parameters of a step, or none reaches the loss at all, the step could change nothing, which
    is an error. Outside of a training step a gradient may not be wanted (an accuracy is a program as well), so the lack
    of one is only a warning if another parameter has one.
    """
    if not subject.sound or subject.loss is None or not subject.trained:
        return
    bits, ends = {named.slot: 1 << i for i, named in enumerate(subject.trained)}, dict[int, Equation]()
    _follow(subject, subject.forward, subject.used_by_loss, bits, ends)
    moving = bits.get(subject.loss, 0)
    nothing_moves = not moving
    if moving == (1 << len(subject.trained)) - 1 or (nothing_moves and subject.step is None):
        return
    blockers: dict[int, tuple[Equation, list[Leaf]]] = {}
    for i, named in enumerate(subject.trained):
        if i in ends and not moving >> i & 1 and named.slot in subject.used_by_loss:
            blockers.setdefault(id(ends[i]), (ends[i], []))[1].append(named)
    if nothing_moves:
        yield _nothing_moves(subject, next((call for call, _ in blockers.values()), None))
        return
    for call, leaves in blockers.values():
        names = ", ".join(named.path for named in leaves[:3]) + (f" and {len(leaves) - 3} more" if leaves[3:] else "")
        verb = "reaches" if len(leaves) == 1 else "reach"
        through = f"{call.primitive.name}, {_why(subject, call)}"
        reason = f"{names} {verb} the loss only through {through}: no gradient comes back"
        yield subject.at(call, BLOCKED, reason, f"{_fix(call)}; {_IDLE}")


def _nothing_moves(subject: Subject, blocker: Equation | None) -> Finding:
    count = len(subject.trained)
    which = subject.trained[0].path if count == 1 else f"any of the {count} parameters"
    if blocker is not None:
        reason = f"the loss has no gradient for {which}: it depends on them only through {blocker.primitive.name}"
        reason = reason if count > 1 else reason.replace("on them", "on it")
        return subject.at(blocker, BLOCKED, f"{reason}, {_why(subject, blocker)}", _fix(blocker), severity="error")
    reason = f"the loss does not depend on {which}, so a training step would change nothing"
    source = None if subject.loss is None else subject.source(subject.maker(subject.loss))
    return Finding("loss", reason, source=source, rule=BLOCKED, fix="compute the loss from the parameters")


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


def _follow(
    subject: Subject,
    equations: Sequence[Equation],
    wanted: set[int] | None,
    bits: dict[int, int],
    ends: dict[int, Equation],
) -> None:
    """Propagate the bits of parameters along paths of cotangents, floats through ops with derivatives; record in `ends`
    where a path of each ends first.

    In the program itself only `wanted` tensors are followed; in a loop all.
    """
    for call in equations:
        carried = 0
        for number in call.inputs:
            carried |= bits.get(number, 0)
        outputs = [slot for slot in call.outputs if wanted is None or slot in wanted]
        if not carried or not outputs:
            continue
        floats = [slot for slot in outputs if is_float(subject.type(slot).dtype)]
        if call.primitive is SCAN:
            _through_loop(subject, call, bits, ends)
        elif call.primitive.differentiable and floats:
            bits.update(dict.fromkeys(floats, carried))
        else:
            while carried:
                lowest = carried & -carried
                ends.setdefault(lowest.bit_length() - 1, call)
                carried ^= lowest


def _through_loop(subject: Subject, loop: Equation, bits: dict[int, int], ends: dict[int, Equation]) -> None:
    """The same through the iterations of a loop, until what returns through the carry adds nothing."""
    iteration, carries = subject.iterations.of(loop), loop.static["carries"]
    for number, outside in zip(iteration.inputs, loop.inputs):
        bits[number] = bits.get(outside, 0)
    before: list[int] | None = None
    while before != (before := [bits[number] for number in iteration.inputs[:carries]]):
        _follow(subject, iteration.equations, None, bits, ends)
        for number, following in zip(iteration.inputs[:carries], iteration.outputs):
            bits[number] |= bits.get(following, 0)
    for outside, number in zip(loop.outputs, (*iteration.outputs, *iteration.inputs)):
        bits[outside] = bits.get(number, 0)
