"""The terminal format: each finding with its source line, as compilers show errors."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ....ops.errors import SourceLine, printable
from ....ops.tied_parameters import show_tied
from ..finding import Finding
from ..report import count_of
from .document import CheckOutcome, from_document, shown_path, to_document

Paint = Callable[[str, str], str]
"""A function (text, style) -> styled text."""

_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan", "rail": "blue", "good": "bold green"}
_PRINTED, _WIDE = 20, 200  # lines and columns shown of a target's output


def render_terminal(
    outcomes: Sequence[CheckOutcome],
    *,
    colour: bool = False,
    verbose: bool = False,
    quiet: bool = False,
    warnings_as_errors: bool = False,
) -> str:
    """Return all outcomes. A clean program is one line; `verbose` adds inputs and constraints, `quiet` omits clean
    programs and the total of many. With `warnings_as_errors`, a program with a warning is not clean."""
    paint = _painter() if colour else _plain
    shown = [outcome for outcome in outcomes if not quiet or outcome.findings or outcome.unusable or outcome.sections]
    parts = [_outcome(_shown(outcome), paint, verbose, warnings_as_errors) for outcome in shown]
    text = "\n".join(parts) if verbose else "".join(_spaced(parts))
    if len(outcomes) > 1 and not quiet:
        text += "\n" + _total(outcomes, paint, warnings_as_errors) + "\n"
    return text


def _spaced(parts: Sequence[str]) -> Iterator[str]:
    """Put blank lines around multi-line parts, and none between single lines."""
    for i, part in enumerate(parts):
        if i and (part.count("\n") > 1 or parts[i - 1].count("\n") > 1):
            yield "\n"
        yield part


def render_unusable(outcome: CheckOutcome, *, colour: bool = False) -> str:
    """Say why a target could not be checked."""
    outcome = _shown(outcome)
    assert outcome.unusable is not None
    paint = _painter() if colour else _plain
    lines = [f"{paint('opstage', 'error')}: {outcome.target}: {outcome.unusable.reason}"]
    return "\n".join([*lines, *_excerpt(outcome.unusable.source, "error", paint)]) + "\n"


def render_finding(finding: Finding, *, colour: bool = False) -> str:
    """Format one finding."""
    return "\n".join(_finding(finding, _painter() if colour else _plain))


def suggestion(outcomes: Sequence[CheckOutcome]) -> str:
    """Return all constraints that would settle refuted or undecided relations, as an argument to paste."""
    every = dict.fromkeys(constraint for outcome in outcomes for constraint in outcome.suggestions)
    return f"where=[{', '.join(_quoted(constraint) for constraint in every)}]" if every else ""


def _outcome(outcome: CheckOutcome, paint: Paint, verbose: bool, strictly: bool) -> str:
    title = f"{outcome.target}, {outcome.what}" if outcome.what else outcome.target
    sections = [f"\n{section.text}" for section in outcome.sections]
    declared = outcome.declarations if verbose or outcome.conditions else ()
    if not (verbose or outcome.printed or outcome.unusable or outcome.findings or outcome.conditions):
        return "\n".join([_summary(outcome, paint, strictly, f"{title}: "), *sections]) + "\n"
    lines = [paint(f"{title}:", "bold")]
    if outcome.printed:
        lines += _printed(outcome.printed, paint)
    if outcome.unusable is not None:
        lines.append(f"  {paint('not checked', 'error')}")
        return "\n".join(lines) + "\n"
    if verbose:
        inputs = [(name, type_) for name, type_ in outcome.inputs if not name.startswith("slots.")]
        lines += [f"  {name:<28} {type_}" for name, type_ in inputs]
        lines += [f"  {paint('tied', 'note')}, one parameter: {show_tied(paths)}" for paths in outcome.tied]
    for finding in outcome.findings:
        lines += ["", *_finding(finding, paint)]
    if outcome.conditions:
        lines += ["", paint("right only if", "note") + " (every run is held to it):"]
        for condition in outcome.conditions:
            lines.append(f"  {condition}")
    if declared:
        lines += ["", f"{paint('given', 'note')}:", *(f"  {declaration}" for declaration in declared)]
    if outcome.findings or outcome.conditions or declared:
        lines.append("")
    return "\n".join([*lines, _summary(outcome, paint, strictly), *sections]) + "\n"


def _shown(outcome: CheckOutcome) -> CheckOutcome:
    """Return the outcome with control characters escaped, except in sections, which may be coloured."""
    document = _printable(to_document(replace(outcome, sections=())))
    return replace(from_document(document), sections=outcome.sections)


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return "\n".join(map(printable, value.split("\n")))
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, (list, tuple)) else value


def _summary(outcome: CheckOutcome, paint: Paint, strictly: bool, title: str = "") -> str:
    counts = [count_of(len(outcome.errors), "error"), count_of(len(outcome.warnings), "warning")]
    if outcome.errors:
        return paint(" and ".join(count for count in counts if not count.startswith("0")), "error")
    if strictly and outcome.warnings:
        return paint(f"{counts[1]}, and warnings are errors", "error")
    rest = f", {counts[1]}" if outcome.warnings else ""
    rest += f", {len(outcome.suppressed)} suppressed" if outcome.suppressed else ""
    work = f"{outcome.ops} ops, {_large(outcome.flops)} flops, {_large(outcome.bytes)} bytes moved{rest}"
    if (hidden := outcome.suppressed.count("error")) > 0:  # after an error the program's behaviour is unknown
        work = f"{count_of(hidden, 'error')} suppressed"
    return f"{paint('ok', 'good')}: {title}{work}"


def _total(outcomes: Sequence[CheckOutcome], paint: Paint, strictly: bool) -> str:
    codes = [outcome.exit_code(strictly) for outcome in outcomes]
    wrong = sum(bool(outcome.errors) for outcome in outcomes)
    counts = {"with errors": wrong, "with warnings": codes.count(1) - wrong, "not checked": codes.count(2)}
    parts = [f"{codes.count(0)} of {count_of(len(outcomes), 'program')} right"]
    parts += [f"{count} {what}" for what, count in counts.items() if count]
    return paint(", ".join(parts), "error" if any(codes) else "good")


def _finding(finding: Finding, paint: Paint) -> Iterator[str]:
    tag = paint(f"{finding.severity}[{finding.rule}]", finding.severity)
    op = "" if finding.op in ("program", finding.rule) else f"{finding.op}: "
    yield f"{tag}{paint(f': {op}{finding.reason}', 'bold')}"
    yield from _excerpt(finding.source, finding.severity, paint, finding.region)
    margin = " " * (len(str(finding.source.line)) + 1) if finding.source is not None else "  "
    rail = f"{margin}{paint('=', 'rail')} "
    for call in finding.calls:
        yield f"{rail}{paint('note', 'note')}: called at {call}: {printable(call.text)}"
    for fact in (*finding.operands, *finding.bindings):
        yield f"{rail}{paint('note', 'note')}: {fact}"
    if finding.fix:
        yield f"{rail}{paint('fix', 'good')}: {finding.fix}"
    if finding.constraint:
        yield f"{rail}{paint('constraint', 'good')}: where=[{_quoted(finding.constraint)}]"


def _excerpt(source: SourceLine | None, severity: str, paint: Paint, region: str = "") -> Iterator[str]:
    """Return the place, the source line, and carets under the relevant part."""
    inside = f" ({region})" if region else ""
    if source is None:
        if region:
            yield f"  {paint('-->', 'rail')} {region}"
        return
    number = str(source.line)
    margin = " " * (len(number) + 1)
    column = f":{source.column}" if source.column else ""
    yield f"{margin[:-1]}{paint('-->', 'rail')} {shown_path(source.file)}:{number}{column}{inside}"
    line = linecache.getline(source.file, source.line).rstrip()
    if not line:
        return
    bar = paint("|", "rail")
    yield f"{margin}{bar}"
    yield f"{paint(number, 'rail')} {bar} {printable(line.expandtabs(4))}"
    start, end = source.column - 1, min(source.end - 1, len(line))
    if 0 <= start < end:
        before, under = len(line[:start].expandtabs(4)), len(line[:end].expandtabs(4))
        yield f"{margin}{bar} {' ' * before}{paint('^' * (under - before), severity)}"


def _printed(text: str, paint: Paint) -> list[str]:
    lines = text.rstrip("\n").splitlines()
    left = f"    … and {len(lines) - _PRINTED} lines more"
    shown = [f"    {line[:_WIDE]}{'…' * (len(line) > _WIDE)}" for line in lines[:_PRINTED]] + (
        [left] if len(lines) > _PRINTED else []
    )
    return [paint("  it printed:", "note"), *shown]


def _quoted(constraint: str) -> str:
    return '"' + constraint.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _large(number: str) -> str:
    return f"{int(number):,}" if number.isdecimal() else number


def _plain(text: str, style: str) -> str:
    return text


def _painter() -> Paint:
    from rich.color import ColorSystem
    from rich.style import Style

    def paint(text: str, style: str) -> str:
        return Style.parse(_STYLES.get(style, style)).render(text, color_system=ColorSystem.STANDARD)

    return paint
