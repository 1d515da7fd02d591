"""The JSON format: outcomes as a document, and back.

    {"format": "opstage check", "version": 1, "exit_code": 0, "errors": 0, "warnings": 0, "targets": [TARGET …]}

A TARGET has the fields of `CheckOutcome`, a finding those of `Finding` with its place as `location`. Within a version,
fields may be added but not changed or removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from ....ops.errors import SourceLine
from ..finding import Finding
from ..report import Assumption, DeclaredConstraint, Report

# The outcome of a check -----------------------------------------------------------------------------------------------

# `CheckOutcome`: the result of checking one target, as plain data, from which every format is written.


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


D = TypeVar("D")

FORMAT = "opstage check"
VERSION = 1


def render_json(outcomes: Sequence[CheckOutcome], exit_code: int) -> str:
    """Return the document of all outcomes as text."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "exit_code": exit_code,
        "errors": sum(len(outcome.errors) for outcome in outcomes),
        "warnings": sum(len(outcome.warnings) for outcome in outcomes),
        "targets": [to_document(outcome) for outcome in outcomes],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def to_document(outcome: CheckOutcome) -> dict[str, Any]:
    """Return one target as plain data."""
    return {
        **_encoded(outcome),
        "ok": outcome.ok,
        "inputs": [{"name": name, "type": type_} for name, type_ in outcome.inputs],
        "sections": {section.name: {"data": section.data, "text": section.text} for section in outcome.sections},
    }


def from_document(document: Mapping[str, Any]) -> CheckOutcome:
    """Return the outcome that `to_document` converted. Raises KeyError or TypeError for anything else."""
    unusable = document["unusable"]
    plain = ("target", "what", "outputs", "ops", "parameters", "flops", "bytes", "printed")
    return CheckOutcome(
        findings=tuple([_decoded(Finding, each) for each in document["findings"]]),
        conditions=tuple([_decoded(Assumption, each) for each in document["conditions"]]),
        declarations=tuple([_decoded(DeclaredConstraint, each) for each in document["declarations"]]),
        inputs=tuple([(entry["name"], entry["type"]) for entry in document["inputs"]]),
        suggestions=tuple(document["suggestions"]),
        sections=tuple([Section(name, part["data"], part["text"]) for name, part in document["sections"].items()]),
        unusable=None if unusable is None else _decoded(Unusable, unusable),
        tied=tuple(map(tuple, document.get("tied", ()))),
        suppressed=tuple(document.get("suppressed", ())),
        **{name: document[name] for name in plain},
    )


_KEYS = {"reason": "message", "source": "location"}
"""The names of fields in a document, if they differ."""


def _stored(kind: Any) -> list[str]:
    """The fields of a dataclass that a document has; a condition's function is not data."""
    return [field.name for field in fields(kind) if field.name != "holds"]


def _encoded(value: Any) -> Any:
    if isinstance(value, SourceLine):
        return _location(value)
    if isinstance(value, tuple):
        return [_encoded(each) for each in value]
    if is_dataclass(value):
        return {_KEYS.get(name, name): _encoded(getattr(value, name)) for name in _stored(value)}
    return value


def _decoded(kind: type[D], document: Mapping[str, Any]) -> D:
    """Return a dataclass that `_encoded` converted."""
    values = {name: document[_KEYS.get(name, name)] for name in _stored(kind)}
    for name, value in values.items():
        if name == "source":
            values[name] = _as_source(value)
        elif isinstance(value, list):
            values[name] = tuple([_as_source(each) if name == "calls" else each for each in value])
    return kind(**values)


def _location(source: SourceLine) -> dict[str, Any]:
    """Return the place as data. Lines and columns count from 1, the end column is exclusive; 0 for an unknown
    column."""
    return {
        "file": source.file,
        "line": source.line,
        "column": source.column,
        "end_column": source.end,
        "text": source.text,
    }


def _as_source(location: Mapping[str, Any] | None) -> SourceLine | None:
    if location is None:
        return None
    return SourceLine(location["file"], location["line"], location["column"], location["end_column"])


# File names -----------------------------------------------------------------------------------------------------------


def shown_path(file: str) -> str:
    """Return the path relative to the working directory, with forward slashes; the absolute path for a file
    elsewhere."""
    path = Path(file)
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()
