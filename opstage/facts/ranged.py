"""Ranges of a checked program: where it may overflow, divide by zero or take the log of zero, at every size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

from ..interpreters.shape_check import Finding, Report
from ..interpreters.shape_check.program import CheckedProgram
from ..ops.closed import Equation
from ..ops.errors import UsageError, nearest
from ..ops.types import dtype_name
from ..ops.untrusted import a_type
from .interpret import Interpretation
from .ranges import Ranges, ValueRange, limits_of, matches
from .ranges.fact import INFINITY

Bounds: TypeAlias = "Mapping[str, tuple[float, float]]"
_SHOWN = 8
"""How many paths of inputs a message names."""


@final
@dataclass(frozen=True)
class RangeReport:
    """dtype        the float dtype that the program was read in
    outputs      path and range of each output
    findings     warnings where known bounds say that something may go wrong, notes where there are no bounds
    given        the ranges of inputs that they follow from
    assumptions  what the ranges take for granted besides
    """

    dtype: str
    outputs: tuple[tuple[str, ValueRange], ...]
    findings: tuple[Finding, ...]
    given: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def safe(self) -> bool:
        """Whether nothing was found, and every output is a finite number."""
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
    """The ranges of a checked program.

    bounds  pattern of an input's path, such as "x" or "params.*" -> (low, high) of its elements, in place of what its
            Spec declares; inputs without either are finite and no more is known
    dtype   float64, float32, bfloat16 or float16; by default that of the check
    initial whether declared parameters, state, and slots and scalars of an optimizer, are what they are in the first
            step: what is found then is said of that step alone

    Raises:
        UsageError: what is no report; bounds that are none; a pattern that no input has; an error of the check.
    """
    if not isinstance(report, Report):
        raise UsageError(f"ranges_of takes the report of opstage.check or of report_of, not {a_type(report)}")
    if report.errors:
        raise UsageError("a program with errors has no ranges; see the report's errors")
    if initial:
        return _ranges_of(report, bounds, dtype, True, {})
    invariants = _signs(report.program, bounds or {})
    while True:
        found = _ranges_of(report, bounds, dtype, False, invariants)
        after = dict(found.outputs)
        kept = {name: ends for name, ends in invariants.items() if _stays(after[name], ends)}
        if len(kept) == len(invariants):
            return found
        invariants = kept


def _stays(after: ValueRange, ends: tuple[float, float]) -> bool:
    """Whether what a step gives is a number between the ends."""
    return ends[0] <= after.low and after.high <= ends[1] and not after.nan and not after.infinite


def _signs(program: CheckedProgram, bounds: Bounds) -> dict[str, tuple[float, float]]:
    """Candidates for what stays at least 0: what a step is given and gives again, and is not negative at first.

    Parameters are left out: no step keeps their sign.
    """
    paths = set(program.output_names()) if program.body.outputs and program.initial else set()
    return {
        name: (0.0, INFINITY)
        for name in program.names[program.parameters :]
        if name in paths and program.initial.get(name, (-1.0, 0.0))[0] >= 0
        if name not in program.ranges and not any(matches(name, pattern) for pattern in bounds)
    }


def _ranges_of(
    report: Report, bounds: Bounds | None, dtype: str | None, initial: bool, invariants: Bounds
) -> RangeReport:
    program = report.program
    body, names = program.body, program.names
    domain = domain_of(program, bounds, dtype, initial=initial, invariants=invariants)
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

    sources = [(domain.source(name, body.types[slot]),) for name, slot in zip(names, body.inputs)]
    run = domain.run = Interpretation([domain], program.scope)
    facts: list[Any] = [known and known[0] for known in run.run(body, sources, after)]
    paths = program.output_names() if body.outputs else []
    outputs = tuple([(path, facts[slot]) for path, slot in zip(paths, body.outputs)])
    return RangeReport(
        domain.limits.name, outputs, _once(_hidden(domain, found)), tuple(domain.given), tuple(domain.assumptions)
    )


def domain_of(
    program: CheckedProgram,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    dtype: str | None = None,
    *,
    initial: bool = False,
    invariants: Bounds | None = None,
) -> Ranges:
    """The domain of a program's ranges, for arguments as those of `ranges_of`, which it checks as that does."""
    limits = limits_of(dtype_name(program.dtype) if dtype is None else dtype)
    first = program.initial if initial else {}
    domain = Ranges(limits, _checked(bounds or {}), program.ranges, first, program.lasting, invariants, program.dtype)
    unused = [pattern for pattern in domain.bounds if not _is_of(pattern, program)]
    if unused:
        raise _of_no_input(unused[0], program)
    return domain


def bounds_of_claims(bounds: Bounds, report: Report, other: Report | None) -> Bounds:
    """The bounds of inputs of the program that claims are about, among those that were stated for two forms of it.

    other   the report on the other form, where its ranges are asked for; its inputs may have bounds too

    Raises UsageError for a pattern that no input of either has.
    """
    found = {pattern: ends for pattern, ends in bounds.items() if _is_of(pattern, report.program)}
    for pattern in bounds:
        if pattern not in found and (other is None or not _is_of(pattern, other.program)):
            raise _of_no_input(pattern, report.program, other is None)
    return found


def _is_of(pattern: str, program: CheckedProgram) -> bool:
    return any(matches(name, pattern) for name in program.names)


def _of_no_input(pattern: str, program: CheckedProgram, of_claims: bool = False) -> UsageError:
    """A pattern that no input has; inputs that are no parameters are named first."""
    known = [name for name in (*program.names[program.parameters :], *program.names[: program.parameters]) if name]
    more = f", and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    what = "no input has" if not of_claims else "no input of the forward pass, which claims are about, has"
    how = "" if not of_claims else "; leave it out, or ask for the ranges of the training step too: --ranges"
    return UsageError(
        f"{what} a path {pattern!r}{nearest(pattern, known)}; there are {', '.join(known[:_SHOWN])}{more}{how}"
    )


def with_ranges(report: Report, ranges: RangeReport) -> Report:
    """The report with the findings of its program's ranges among its warnings and notes."""
    findings = ranges.findings
    return replace(
        report,
        warnings=(*report.warnings, *[f for f in findings if f.severity == "warning"]),
        notes=(*report.notes, *[f for f in findings if f.severity == "note"]),
    )


def _hidden(domain: Ranges, found: Mapping[Finding, int]) -> tuple[Finding, ...]:
    """The findings, those of another rule whose values a select drops wherever they are wrong."""
    return tuple([_behind(f, domain.hidden[value]) if value in domain.hidden else f for f, value in found.items()])


def _behind(finding: Finding, fix: str) -> Finding:
    reason = f"{finding.reason}; select drops it there, but its gradient is 0 times infinity, and so nan"
    return replace(finding, reason=reason, rule="nan-behind-select", fix=fix)


def _once(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Each rule once for each line: the first of several iterations or layers, a warning before notes."""
    first: dict[Any, Finding] = {}
    for finding in sorted(findings, key=lambda f: f.severity != "warning"):
        source = finding.source
        first.setdefault((finding.rule, finding.op, source and (source.file, source.line)), finding)
    return tuple([finding for finding in findings if any(finding is kept for kept in first.values())])


def _checked(bounds: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    for pattern, ends in bounds.items():
        try:
            low, high = ends
            proper = float(low) <= float(high)
        except (TypeError, ValueError):
            proper = False
        if not proper:
            raise UsageError(f"the range of {pattern!r} is {ends!r}; expected (low, high) with low <= high")
    return {pattern: (float(low), float(high)) for pattern, (low, high) in bounds.items()}
