"""Formats of code hosts: GitHub's workflow commands, and SARIF 2.1.0, which code hosts and editors read.

Source: "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", OASIS Standard, 27 March 2020.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ....ops.errors import SourceLine, printable
from ..finding import Finding
from ..rules import RULES
from .document import CheckOutcome, shown_path

# GitHub ---------------------------------------------------------------------------------------------------------------

# The format of GitHub's workflow commands, which GitHub shows as annotations of a pull request.
#
# Source: "Workflow commands for GitHub Actions", GitHub's documentation: `::error file=…,line=…,col=…::message`, with
# percent signs, carriage returns and newlines escaped, in properties also colons and commas.


def render_github(outcomes: Sequence[CheckOutcome]) -> str:
    """Return a command per finding, undecided condition and target that could not be checked."""
    return "".join(f"{line}\n" for outcome in outcomes for line in _outcome(outcome))


def _outcome(outcome: CheckOutcome) -> Iterator[str]:
    if outcome.unusable is not None:
        message = f"{outcome.target}: {outcome.unusable.reason}"
        yield _command("error", outcome.unusable.source, "opstage: not checked", message)
    for finding in outcome.findings:
        kind = "notice" if finding.severity == "note" else finding.severity
        yield _command(kind, finding.source, f"opstage: {finding.rule}", _message(finding))
    for condition in outcome.conditions:
        message = f"{outcome.target} is right only if {condition.relation}; every run is held to it"
        yield _command("notice", condition.source, "opstage: undecided", message)


def _message(finding: Finding) -> str:
    place = f" ({finding.region})" if finding.region else ""
    lines = [f"{finding.op}{place}: {finding.reason}"]
    lines += [f"called at {call}: {call.text}" for call in finding.calls]
    lines += [*finding.operands, *finding.bindings]
    lines += [f"fix: {finding.fix}"] if finding.fix else []
    return "\n".join(lines)


def _command(kind: str, source: SourceLine | None, title: str, message: str) -> str:
    properties = {}
    if source is not None:
        properties = {"file": shown_path(source.file), "line": str(source.line), "endLine": str(source.line)}
        if 0 < source.column < source.end:
            properties |= {"col": str(source.column), "endColumn": str(source.end)}
    properties["title"] = title
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{kind} {listed}::{_data(message)}"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render_sarif(outcomes: Sequence[CheckOutcome], exit_code: int, version: str) -> str:
    """Return the log of one run; a target that could not be checked is a notification of its invocation."""
    met = {finding.rule: None for outcome in outcomes for finding in outcome.findings}
    rules = [*RULES, *(rule for rule in met if rule not in RULES)]
    results = [_result(finding, outcome.target, rules) for outcome in outcomes for finding in outcome.findings]
    results += [
        {
            "ruleId": "undecided",
            "ruleIndex": rules.index("undecided"),
            "level": "note",
            "message": {"text": f"{outcome.target} is right only if {condition.relation}"},
            **_locations(condition.source),
        }
        for outcome in outcomes
        for condition in outcome.conditions
    ]
    notifications = [
        {
            "level": "error",
            "message": {"text": f"{outcome.target}: {outcome.unusable.reason}"},
            **_locations(outcome.unusable.source),
        }
        for outcome in outcomes
        if outcome.unusable is not None
    ]
    driver = {
        "name": "opstage",
        "version": version,
        "semanticVersion": version,
        "rules": [{"id": rule, "shortDescription": {"text": RULES.get(rule, rule)}} for rule in rules],
    }
    invocation: dict[str, Any] = {"executionSuccessful": not notifications, "exitCode": exit_code}
    if notifications:
        invocation["toolExecutionNotifications"] = notifications
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"uri": Path.cwd().as_uri() + "/"}},
        "results": results,
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _result(finding: Finding, target: str, rules: Sequence[str]) -> dict[str, Any]:
    details = [*finding.operands, *finding.bindings, *([f"fix: {finding.fix}"] if finding.fix else [])]
    text = "\n".join([f"{finding.op}: {finding.reason}", *details])
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": finding.severity,
        "message": {"text": text},
        **_locations(finding.source, finding.region),
    }
    if finding.calls:
        result["relatedLocations"] = [
            {"id": n, "message": {"text": "called here"}, **_location(call)} for n, call in enumerate(finding.calls)
        ]
    result["properties"] = {"target": target}
    if finding.constraint:
        result["properties"]["constraint"] = finding.constraint
    return result


def _locations(source: SourceLine | None, region: str = "") -> dict[str, Any]:
    if source is None and not region:
        return {}
    location = _location(source) if source is not None else {}
    if region:
        location["logicalLocations"] = [{"fullyQualifiedName": region, "kind": "member"}]
    return {"locations": [location]}


def _location(source: SourceLine) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": source.line}
    if 0 < source.column < source.end:
        region |= {"startColumn": source.column, "endColumn": source.end}
    if source.text:
        region["snippet"] = {"text": source.text}
    return {"physicalLocation": {"artifactLocation": _artifact(source.file), "region": region}}


def _artifact(file: str) -> dict[str, str]:
    path = Path(file)
    try:
        return {"uri": quote(path.relative_to(Path.cwd()).as_posix()), "uriBaseId": "SRCROOT"}
    except ValueError:
        return {"uri": path.as_uri() if path.is_absolute() else quote(path.as_posix())}
