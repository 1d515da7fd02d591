"""The JSON format: outcomes as a document, and back.

    {"format": "opstage check", "version": 1, "exit_code": 0, "errors": 0, "warnings": 0, "targets": [TARGET …]}

A TARGET has the fields of `CheckOutcome`, a finding those of `Finding` with its place as `location`. Within a version,
fields may be added but not changed or removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ....ops.errors import SourceLine
from ..finding import Finding
from ..report import Assumption, DeclaredConstraint
from .outcome import CheckOutcome, Section, Unusable

FORMAT = "opstage check"
VERSION = 1


def render(outcomes: Sequence[CheckOutcome], exit_code: int) -> str:
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
        "target": outcome.target,
        "what": outcome.what,
        "ok": outcome.ok,
        "unusable": None
        if outcome.unusable is None
        else {"message": outcome.unusable.reason, "location": _location(outcome.unusable.source)},
        "findings": [_finding(finding) for finding in outcome.findings],
        "conditions": [
            {"relation": a.relation, "op": a.op, "message": a.reason, "location": _location(a.source)}
            for a in outcome.conditions
        ],
        "declarations": [{"constraint": d.constraint, "location": _location(d.source)} for d in outcome.declarations],
        "suggestions": list(outcome.suggestions),
        "inputs": [{"name": name, "type": type_} for name, type_ in outcome.inputs],
        "tied": [list(paths) for paths in outcome.tied],
        "outputs": outcome.outputs,
        "ops": outcome.ops,
        "parameters": outcome.parameters,
        "flops": outcome.flops,
        "bytes": outcome.bytes,
        "sections": {section.name: {"data": section.data, "text": section.text} for section in outcome.sections},
        "printed": outcome.printed,
        "suppressed": list(outcome.suppressed),
    }


def from_document(document: Mapping[str, Any]) -> CheckOutcome:
    """Return the outcome that `to_document` converted. Raises KeyError or TypeError for anything else."""
    unusable = document["unusable"]
    return CheckOutcome(
        document["target"],
        document["what"],
        tuple(_as_finding(finding) for finding in document["findings"]),
        tuple(
            Assumption(a["relation"], a["op"], _as_source(a["location"]), reason=a["message"])
            for a in document["conditions"]
        ),
        tuple(DeclaredConstraint(d["constraint"], _as_source(d["location"])) for d in document["declarations"]),
        tuple((entry["name"], entry["type"]) for entry in document["inputs"]),
        document["outputs"],
        document["ops"],
        document["parameters"],
        document["flops"],
        document["bytes"],
        tuple(document["suggestions"]),
        tuple(Section(name, part["data"], part["text"]) for name, part in document["sections"].items()),
        document["printed"],
        None if unusable is None else Unusable(unusable["message"], _as_source(unusable["location"])),
        tuple(tuple(paths) for paths in document.get("tied", ())),
        tuple(document.get("suppressed", ())),
    )


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "op": finding.op,
        "message": finding.reason,
        "region": finding.region,
        "location": _location(finding.source),
        "operands": list(finding.operands),
        "bindings": list(finding.bindings),
        "calls": [_location(call) for call in finding.calls],
        "fix": finding.fix,
        "constraint": finding.constraint,
    }


def _as_finding(document: Mapping[str, Any]) -> Finding:
    calls = [_as_source(call) for call in document["calls"]]
    return Finding(
        document["op"],
        document["message"],
        document["region"],
        _as_source(document["location"]),
        tuple(document["operands"]),
        tuple(document["bindings"]),
        document["rule"],
        document["severity"],
        document["fix"],
        document["constraint"],
        tuple(call for call in calls if call is not None),
    )


def _location(source: SourceLine | None) -> dict[str, Any] | None:
    """Return the place as data. Lines and columns count from 1, the end column is exclusive; 0 for an unknown
    column."""
    if source is None:
        return None
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
