"""Parameters that never reach the loss, and inputs on which nothing depends.

Both are warnings. A trained parameter whose gradient is always zero is nearly always a mistake (a layer that was made
and not called, `wq` read where `wk` was meant), but such a program runs and trains, and some are intended: a switch
disables a block but keeps its weights, so that checkpoints still fit; two losses alternate over one tree; a frozen tree
is loaded completely and used in part. A check that rejected them would be disabled. Only if *no* trained parameter has
a gradient can the step do nothing, and that is an error: `blocked-gradient`.

A name that begins with `_` marks its value as intentionally unused, as elsewhere in Python, and is not reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ....ops.closed import Equation
from ....ops.errors import SourceLine
from ..finding import Finding
from ..signature import argument_line
from .subject import Leaf, Subject

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
