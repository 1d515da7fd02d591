"""The format of GitHub's workflow commands, which GitHub shows as annotations of a pull request.

Source: "Workflow commands for GitHub Actions", GitHub's documentation: `::error file=…,line=…,col=…::message`, with
percent signs, carriage returns and newlines escaped, in properties also colons and commas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....ops.errors import SourceLine
from ....ops.untrusted import printable
from ..finding import Finding
from .outcome import CheckOutcome
from .places import shown_path


def render(outcomes: Sequence[CheckOutcome]) -> str:
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
