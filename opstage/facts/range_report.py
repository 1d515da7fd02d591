"""Ranges of a checked program: where it may overflow, divide by zero or take the log of zero, at every size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

from ..analysis.interpretation import Interpretation
from ..analysis.ranges import Ranges, ValueRange, float_limits, matches
from ..analysis.ranges.fact import INFINITY
from ..interpreters.shape_check.finding import Finding
from ..interpreters.shape_check.program import CheckedProgram
from ..interpreters.shape_check.report import Report
from ..ops.body import Equation
from ..ops.errors import UsageError, a_type, nearest
from ..ops.types import dtype_name

Bounds: TypeAlias = "Mapping[str, tuple[float, float]]"
_SHOWN = 8
"""The most paths of inputs that a message lists."""
_MOST_TURNS = 6
"""The most passes over a program to find invariant signs; then none is assumed."""


@final
@dataclass(frozen=True)
class RangeReport:
    """The ranges of a program.

    dtype        the float dtype of the analysis
    outputs      path and range of each output
    findings     warnings if known bounds show an error, notes if bounds are unknown
    given        sentences on the input ranges in use
    assumptions  further assumptions of the ranges
    unbounded    paths of outputs without a bound for all finite inputs, which are not proved finite
    """

    dtype: str
    outputs: tuple[tuple[str, ValueRange], ...]
    findings: tuple[Finding, ...]
    given: tuple[str, ...]
    assumptions: tuple[str, ...]
    unbounded: tuple[str, ...] = ()

    @property
    def safe(self) -> bool:
        """Return whether nothing was found, and every output is finite under the assumptions."""
        return not self.findings and not any(found.nan or found.infinite for _, found in self.outputs)

    def __str__(self) -> str:
        lines = [f"{finding.severity}: {finding}" for finding in self.findings]
        lines += [f"{name or 'the output'} is in {found}" for name, found in self.outputs]
        return "\n".join([*lines, f"in {self.dtype}, as far as {'; '.join((*self.given, *self.assumptions))}"])


def ranges_of(
    report: Report,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    dtype: str | None = None,
    *,
    initial: bool = False,
) -> RangeReport:
    """Return the ranges of a checked program.

    bounds   pattern of an input's path, such as "x" or "params.*" -> (low, high) of its elements, in place of the range
             of
             its Spec; inputs without either are any finite numbers
    dtype    float64, float32, bfloat16 or float16; by default that of the check
    initial  take parameters, state, and slots and scalars of an optimizer at their values in the first step; the
             findings
             then hold for that step alone

    Raises:
        UsageError: `report` is not a report or has errors; bounds are invalid, or a pattern matches no input.
    """
    if not isinstance(report, Report):
        raise UsageError(f"ranges_of: argument report: expected one of check or report_of, got {a_type(report)}")
    if report.errors:
        raise UsageError("ranges_of: argument report: expected one without errors. Fix report.errors first.")
    invariants = {} if initial else _signs(report.program, bounds or {})
    for turn in range(_MOST_TURNS):
        domain = range_domain(report.program, bounds, dtype, initial=initial, invariants=invariants)
        found, sources = _read(domain, report.program)
        after = dict(found.outputs)
        kept = {name: ends for name, ends in invariants.items() if _stays(after[name], ends)}
        if len(kept) == len(invariants):
            break
        invariants = kept if turn < _MOST_TURNS - 2 else {}
    return found if found.findings else replace(found, unbounded=_unbounded(domain, report.program, found, sources))


def _stays(after: ValueRange, ends: tuple[float, float]) -> bool:
    """Return whether a step's result is a number between the ends."""
    return ends[0] <= after.low and after.high <= ends[1] and not after.nan and not after.infinite


def _signs(program: CheckedProgram, bounds: Bounds) -> dict[str, tuple[float, float]]:
    """Return candidates for invariants: inputs that a step returns again, and that are nonnegative at first.

    Parameters are left out, since no step preserves their sign.
    """
    paths = set(program.output_names()) if program.body.outputs and program.initial else set()
    return {
        name: (0.0, INFINITY)
        for name in program.names[program.parameters :]
        if name in paths and program.initial.get(name, (-1.0, 0.0))[0] >= 0
        if name not in program.ranges and not any(matches(name, pattern) for pattern in bounds)
    }


def _read(domain: Ranges, program: CheckedProgram) -> tuple[RangeReport, list[ValueRange]]:
    """Return the report of a domain on a program, and the ranges of its inputs."""
    found: dict[Finding, int] = {}

    def after(equation: Equation) -> None:
        source = program.source(equation)
        for remark in dict.fromkeys(domain.remarks):
            op = equation.primitive.name
            finding = Finding(
                op, remark.text, source=source, rule=remark.rule, severity=remark.severity, fix=remark.fix
            )
            found[finding] = domain.latest
        domain.remarks.clear()

    sources = [domain.source(name, type_) for name, type_ in zip(program.names, program.body.input_types)]
    ranges = _outputs(domain, program, sources, after)
    outputs = tuple(zip(program.output_names() if ranges else [], ranges))
    findings = _once(_hidden(domain, found))
    return RangeReport(domain.limits.name, outputs, findings, tuple(domain.given), tuple(domain.assumptions)), sources


def _outputs(
    domain: Ranges,
    program: CheckedProgram,
    sources: Sequence[ValueRange],
    after: Callable[[Equation], None] = lambda equation: None,
) -> list[ValueRange]:
    """Return the ranges of a program's outputs, given those of its inputs."""
    run = domain.run = Interpretation([domain], program.scope)
    facts = run.run(program.body, [(source,) for source in sources], after)
    return [facts[slot][0] for slot in program.body.outputs]


def _unbounded(
    domain: Ranges, program: CheckedProgram, found: RangeReport, sources: Sequence[ValueRange]
) -> tuple[str, ...]:
    """Return the paths of outputs that are not proved finite for all finite inputs.

    The proof does not assume that sums and products of unbounded numbers stay finite.
    """
    finite = [domain.finite(source, type_) for source, type_ in zip(sources, program.body.input_types)]
    ranges = [known for _, known in found.outputs] if finite == sources else _outputs(domain, program, finite)
    paths = [path for path, _ in found.outputs]
    return tuple([p for p, known in zip(paths, ranges) if known.nan or not (known.bounded or known.integral)])


def range_domain(
    program: CheckedProgram,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    dtype: str | None = None,
    *,
    initial: bool = False,
    invariants: Bounds | None = None,
) -> Ranges:
    """Return the domain of a program's ranges, with the arguments of `ranges_of` and the same checks of them."""
    limits = float_limits(dtype_name(program.dtype) if dtype is None else dtype)
    first = program.initial if initial else {}
    domain = Ranges(limits, _checked(bounds or {}), program.ranges, first, program.lasting, invariants, program.dtype)
    unused = [pattern for pattern in domain.bounds if not _matches_input(pattern, program)]
    if unused:
        raise _of_no_input(unused[0], program)
    return domain


def bounds_of_claims(bounds: Bounds, report: Report, other: Report | None) -> Bounds:
    """Return those bounds that belong to inputs of the program of the claims, among bounds stated for two forms of it.

    other   the report on the other form, if its ranges are wanted; its inputs may have bounds too

    Raises:
        UsageError: a pattern matches no input of either form.
    """
    found = {pattern: ends for pattern, ends in bounds.items() if _matches_input(pattern, report.program)}
    for pattern in bounds:
        if pattern not in found and (other is None or not _matches_input(pattern, other.program)):
            raise _of_no_input(pattern, report.program, other is None)
    return found


def _matches_input(pattern: str, program: CheckedProgram) -> bool:
    return any(matches(name, pattern) for name in program.names)


def _of_no_input(pattern: str, program: CheckedProgram, of_claims: bool = False) -> UsageError:
    """Return the error for a pattern without an input; it lists inputs before parameters."""
    known = [name for name in (*program.names[program.parameters :], *program.names[: program.parameters]) if name]
    more = f", and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    what = "inputs of the forward pass, which claims are about" if of_claims else "inputs"
    how = " Leave it out, or add the ranges of the training step: --ranges." if of_claims else ""
    return UsageError(
        f"bounds: {pattern!r} matches no input{nearest(pattern, known)}; "
        f"{what}: {', '.join(known[:_SHOWN])}{more}.{how}"
    )


def with_ranges(report: Report, ranges: RangeReport, *, strict: bool = False) -> Report:
    """Return the report with the findings of its program's ranges among its warnings and notes.

    With `strict` they are errors, and so are outputs without a bound.
    """
    findings = ranges.findings
    if strict:
        unbounded = [Finding("ranges", unbounded_text(ranges), rule="unbounded")] if ranges.unbounded else []
        return replace(report, errors=(*report.errors, *[replace(f, severity="error") for f in findings], *unbounded))
    return replace(
        report,
        warnings=(*report.warnings, *[f for f in findings if f.severity == "warning"]),
        notes=(*report.notes, *[f for f in findings if f.severity == "note"]),
    )


def unbounded_text(ranges: RangeReport) -> str:
    """Return the message about outputs that are not proved finite."""
    more = f", and {len(ranges.unbounded) - _SHOWN} more" if len(ranges.unbounded) > _SHOWN else ""
    names = ", ".join([path or "the output" for path in ranges.unbounded[:_SHOWN]])
    return f"no bound of {names}{more} is known; declare the ranges of inputs, and the bounds of their sizes"


def _hidden(domain: Ranges, found: Mapping[Finding, int]) -> tuple[Finding, ...]:
    """Return the findings, with another rule for those whose values a select drops wherever they are wrong."""
    return tuple([_behind(f, domain.hidden[value]) if value in domain.hidden else f for f, value in found.items()])


def _behind(finding: Finding, fix: str) -> Finding:
    reason = f"{finding.reason}; select drops it there, but its gradient is 0 times infinity, and so nan"
    return replace(finding, reason=reason, rule="nan-behind-select", fix=fix)


def _once(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return one finding for each rule and line: the first of several iterations or layers, warnings before notes."""
    first: dict[Any, Finding] = {}
    for finding in sorted(findings, key=lambda f: f.severity != "warning"):
        source = finding.source
        first.setdefault((finding.rule, finding.op, source and (source.file, source.line)), finding)
    kept = {id(finding) for finding in first.values()}
    return tuple([finding for finding in findings if id(finding) in kept])


def _checked(bounds: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    for pattern, ends in bounds.items():
        try:
            low, high = ends
            proper = float(low) <= float(high)
        except (TypeError, ValueError):
            proper = False
        if not proper:
            raise UsageError(f"bounds: {pattern!r}: expected (low, high) with low <= high, got {ends!r}")
    return {pattern: (float(low), float(high)) for pattern, (low, high) in bounds.items()}
