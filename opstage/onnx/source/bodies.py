"""Loops and choices: their bodies as functions defined before the call of `ops.scan`, `while_loop` or `cond`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...interpreters.branching import branches_of
from ...ops.closed import Body, ScanParameters, WhileParameters
from ...ops.types import BOOL
from .layout import Expression, call, lines, tuple_of
from .operands import simplified
from .steps import CallStep, ProgramSteps, reads

if TYPE_CHECKING:
    from .writer import Scope

STRUCTURAL = frozenset({"scan", "switch", "while_loop"})
"""Ops with bodies as static parameters."""


def structural_lines(scope: Scope, step: CallStep, indent: int) -> list[str]:
    """Return the functions of an op's bodies, and its call."""
    write = {"scan": _scan, "switch": _switch, "while_loop": _while}[step.primitive.name]
    return write(scope, step, indent)


def _scan(scope: Scope, step: CallStep, indent: int) -> list[str]:
    loop = ScanParameters(**dict(step.static))
    outer = [scope.tensor(slot) for slot in step.inputs]
    own = loop.carries + loop.entries
    names = _taken(scope, "carry", loop.carries), _taken(scope, "entry", loop.entries)
    inner = dict(zip(loop.body.inputs, [*names[0], *names[1], *outer[own:]]))
    name = scope.names.take("step")
    text, results = _function(scope, name, names, loop.body, loop.body.outputs, inner, indent)
    given = tuple_of([_nested(results[: loop.carries]), _nested(results[loop.carries :])])
    text += [*lines("return ", given, indent + 4), ""]
    keywords: list[tuple[str, Expression]] = [("reverse", "True")] if loop.reverse else []
    if not loop.entries:
        keywords.append(("length", scope.around.expressions.static(loop.length)))
    words: list[Expression] = [name, _nested(outer[: loop.carries]), _nested(outer[loop.carries : own])]
    targets = [scope.target(slot, step, 2) for slot in step.outputs]
    ys = targets[loop.carries : len(loop.body.outputs)]
    left = f"{_targets(targets[: loop.carries])}, {_targets(ys)}"
    return [*text, *lines(f"{left} = ", call("ops.scan", words, keywords), indent)]


def _switch(scope: Scope, step: CallStep, indent: int) -> list[str]:
    index, *outer = [scope.tensor(slot) for slot in step.inputs]
    bodies = branches_of(step.static)
    chosen = scope.around.found.types[step.inputs[0]].dtype == BOOL
    text: list[str] = []
    names = []
    for i, body in enumerate(bodies):
        names.append(scope.names.take(("otherwise", "then")[i] if chosen else f"branch_{i}"))
        inner = dict(zip(body.inputs, outer))
        made, results = _function(scope, names[-1], (), body, body.outputs, inner, indent, after=bool(text))
        text += [*made, *lines("return ", _nested(results), indent + 4), ""]
    words: list[Expression] = [index, *reversed(names)] if chosen else [index, tuple_of(names)]
    targets = [scope.target(slot, step, len(step.outputs)) for slot in step.outputs]
    left = ", ".join(targets)
    return [*text, *lines(f"{left} = ", call(f"ops.{'cond' if chosen else 'switch'}", words), indent)]


def _while(scope: Scope, step: CallStep, indent: int) -> list[str]:
    loop = WhileParameters(**dict(step.static))
    carries = len(loop.body.outputs) - 1  # the last one counts the iterations, which the op does itself
    outer = [scope.tensor(slot) if i != carries else "" for i, slot in enumerate(step.inputs)]
    text: list[str] = []
    names = []
    for word, body, outputs in (
        ("unfinished", loop.test, loop.test.outputs),
        ("step", loop.body, loop.body.outputs[:carries]),
    ):
        names.append(scope.names.take(word))
        carried = _taken(scope, "carry", carries)
        inner = dict(zip(body.inputs, [*carried, "", *outer[carries + 1 :]]))
        del inner[body.inputs[carries]]
        made, results = _function(scope, names[-1], (carried,), body, outputs, inner, indent, after=bool(text))
        text += [*made, *lines("return ", _nested(results), indent + 4), ""]
    keywords: list[tuple[str, Expression]] = []
    if loop.limit is not None:
        keywords.append(("max_iterations", scope.around.expressions.static(loop.limit)))
    words: list[Expression] = [*names, _nested(outer[:carries])]
    targets = [scope.target(slot, step, 2) for slot in step.outputs[:carries]]
    left = ", ".join(targets)
    return [*text, *lines(f"{left} = ", call("ops.while_loop", words, keywords), indent)]


def _taken(scope: Scope, word: str, count: int) -> list[str]:
    return [scope.names.take(word) for _ in range(count)]


def _function(
    scope: Scope,
    name: str,
    trees: Sequence[Sequence[str]],
    body: Body,
    outputs: Sequence[int],
    inner: Mapping[int, str],
    indent: int,
    *,
    after: bool = False,
) -> tuple[list[str], list[str]]:
    """Return the lines of a function of trees of tensors up to its `return`, and the expressions of its results.

    inner   the names of the body's inputs
    after   whether a function precedes it
    """
    calls: list[Any] = [CallStep(e.primitive, e.static, e.inputs, e.outputs, ()) for e in body.equations]
    constants = {constant.slot: constant.value for constant in body.constants}
    wanted = {str(i): slot for i, slot in enumerate(outputs)}
    found = simplified(ProgramSteps({}, constants, dict(enumerate(body.types)), calls, wanted))
    arguments = [names[0] if len(names) == 1 else scope.names.take("tensors") for names in trees]
    outside = scope.lines, scope.slots, scope.around.found, scope.inner_reads
    scope.lines, scope.slots, scope.around.found, scope.inner_reads = [], dict(inner), found, {*body.read()}
    try:
        for each in found.steps:
            assert isinstance(each, CallStep)
            scope.call_step(each, indent + 4)
        results = [scope.tensor(slot) for slot in outputs]
        made = scope.lines
    finally:
        scope.lines, scope.slots, scope.around.found, scope.inner_reads = outside
    text = [""] if scope.lines and not scope.lines[-1].endswith(":") and not after else []
    text += lines(f"def {name}", call("", ["ops", *arguments]), indent, ":")
    used = {inner.get(slot) for slot in (*outputs, *[slot for each in found.steps for slot in reads(each)])}
    for names, argument in zip(trees, arguments):
        if len(names) > 1:
            left = ", ".join(name if name in used else "_" for name in names)
            text.append(f"{' ' * (indent + 4)}{left} = {argument}")
    return [*text, *made], results


def _nested(words: list[str]) -> Expression:
    if not words:
        return "None"
    return words[0] if len(words) == 1 else tuple_of(words)


def _targets(names: list[str]) -> str:
    if not names:
        return "_"
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
