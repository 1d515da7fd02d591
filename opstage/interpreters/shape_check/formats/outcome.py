"""`CheckOutcome`: the result of checking one target, as plain data, from which every format is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....ops.errors import SourceLine
from ..finding import Finding
from ..report import Assumption, DeclaredConstraint, Report


@dataclass(frozen=True)
class Section:
    """A further part of a report: `data` is plain JSON data, `text` the same for a person."""

    name: str
    data: Any
    text: str


@dataclass(frozen=True)
class Unusable:
    """The reason why a target could not be checked, and its place."""

    reason: str
    source: SourceLine | None = None


@dataclass(frozen=True)
class CheckOutcome:
    """The result of checking one target.

    target     what was checked: `model.py:loss`, `cnn`
    what       the checked part: `one training step`, `the forward pass`
    findings   errors, then warnings
    outputs    the type of the program's result, empty if that is not a single tensor
    tied       for each parameter with several places, all their paths, the first as in `inputs`
    printed    the output of the target's file
    unusable   the reason if it could not be checked; all else is then empty
    suppressed   the severities of suppressed findings
    """

    target: str
    what: str = ""
    findings: tuple[Finding, ...] = ()
    conditions: tuple[Assumption, ...] = ()
    declarations: tuple[DeclaredConstraint, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    outputs: str = ""
    ops: int = 0
    parameters: str = "0"
    flops: str = "0"
    bytes: str = "0"
    suggestions: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    printed: str = ""
    unusable: Unusable | None = None
    tied: tuple[tuple[str, ...], ...] = ()
    suppressed: tuple[str, ...] = ()

    @classmethod
    def of(cls, report: Report, target: str, what: str = "", sections: Sequence[Section] = ()) -> CheckOutcome:
        """Return the outcome of a completed check."""
        return cls(
            target,
            what,
            (*report.findings, *report.notes),
            report.conditions,
            report.declarations,
            report.inputs,
            "" if report.outputs is None or isinstance(report.outputs, (dict, list)) else str(report.outputs),
            report.ops,
            str(report.parameters),
            str(report.cost.flops),
            str(report.cost.bytes),
            report.suggestions,
            tuple(sections),
            tied=report.tied,
        )

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    @property
    def ok(self) -> bool:
        """Whether it could be checked and has no error."""
        return self.unusable is None and not self.errors

    def exit_code(self, warnings_as_errors: bool = False) -> int:
        """Return the exit code: 0 clean, 1 findings, 2 unusable."""
        if self.unusable is not None:
            return 2
        return 1 if self.errors or (warnings_as_errors and self.warnings) else 0
