"""Loops as `ops.scan` over a function that stands beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ops.closed import Body, ScanParameters
from .layout import Expression, call, lines, tuple_of
from .operands import simplified
from .steps import CallStep, ProgramSteps

if TYPE_CHECKING:
    from .scope import FunctionScope


def scan_lines(scope: FunctionScope, step: CallStep, indent: int) -> list[str]:
    """The function of the loop's body, and the call of `ops.scan`."""
    loop = ScanParameters(**dict(step.static))
    outer = [scope.tensor(slot) for slot in step.inputs]
    carries, entries = loop.carries, loop.carries + loop.entries
    body = loop.body
    found = _steps(body)
    saved = scope.lines, scope.slots, scope.around.found
    name = scope.names.take("step")
    inner: dict[int, str] = {}
    carried = [scope.names.take("carry") for _ in range(carries)]
    columns = [scope.names.take("entry") for _ in range(loop.entries)]
    arguments = [
        names[0] if len(names) == 1 else scope.names.take(word)
        for word, names in (("carries", carried), ("entries", columns))
    ]
    for slot, word in zip(body.inputs, [*carried, *columns, *outer[entries:]]):
        inner[slot] = word
    margin = " " * (indent + 4)
    scope.lines, scope.slots = [], inner
    scope.around.found = found
    reads_before, scope.inner_reads = scope.inner_reads, {*body.read()}
    try:
        for each in found.steps:
            assert isinstance(each, CallStep)
            scope.call_step(each, indent + 4)
        results = [scope.tensor(slot) for slot in body.outputs]
        made = scope.lines
    finally:
        scope.lines, scope.slots, scope.around.found = saved
        scope.inner_reads = reads_before
    given = tuple_of([_nested(results[:carries]), _nested(results[carries:])])
    text = [""] if scope.lines and not scope.lines[-1].endswith(":") else []
    text += [f"{' ' * indent}def {name}(ops, {', '.join(arguments)}):"]
    for names, argument in zip((carried, columns), arguments):
        if len(names) > 1:
            text.append(f"{margin}{', '.join(names)} = {argument}")
    text += [*made, *lines("return ", given, indent + 4), ""]
    keywords: list[tuple[str, Expression]] = [("reverse", "True")] if loop.reverse else []
    if not loop.entries:
        keywords.append(("length", scope.around.expressions.static(loop.length)))
    words: list[Expression] = [name, _nested(outer[:carries]), _nested(outer[carries:entries])]
    targets = [scope.target(slot, step, 2) for slot in step.outputs]
    ys = targets[carries : len(body.outputs)]
    left = f"{_targets(targets[:carries])}, {_targets(ys)}"
    return [*text, *lines(f"{left} = ", call("ops.scan", words, keywords), indent)]


def _steps(body: Body) -> ProgramSteps:
    calls: list[Any] = [CallStep(e.primitive, e.static, e.inputs, e.outputs, ()) for e in body.equations]
    constants = {constant.slot: constant.value for constant in body.constants}
    outputs = {str(i): slot for i, slot in enumerate(body.outputs)}
    return simplified(ProgramSteps({}, constants, dict(enumerate(body.types)), calls, outputs))


def _nested(words: list[str]) -> Expression:
    if not words:
        return "None"
    return words[0] if len(words) == 1 else tuple_of(words)


def _targets(names: list[str]) -> str:
    if not names:
        return "_"
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
