"""Selects findings: all errors, and warnings and notes of the chosen rules.

A comment `# opstage: ignore[rule]` suppresses those of its line, errors too; an unused comment is reported.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...interpreters.shape_check import RULES, Finding
from ...interpreters.shape_check.finding import RANGE_RULES
from ...interpreters.shape_check.formats import CheckOutcome
from ...interpreters.shape_check.rules import UNDECIDED, UNUSED_SUPPRESSION
from ...ops.errors import SourceLine, nearest
from .files import matches

_COMMENT = re.compile(r"#\s*opstage:\s*ignore(?:\[([^\]]*)\])?")


@dataclass(frozen=True)
class Selection:
    """select   rules whose warnings and notes count; None: all of them
    ignore   rules whose do not
    per_file   the same by a pattern of files
    root     the folder from which patterns are read
    """

    root: Path
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    per_file: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def counts(self, rule: str, file: str | None) -> bool:
        """Whether a warning or note of a rule, at a line of a file, is selected."""
        if rule in self.ignore or (self.select is not None and rule not in self.select):
            return False
        if file is None:
            return True
        return not any(rule in rules and matches(Path(file), pattern, self.root) for pattern, rules in self.per_file)


@dataclass
class _Comment:
    """A comment that suppresses rules on its line, or all of them if it names none."""

    rules: tuple[str, ...]
    source: SourceLine
    used: set[str]

    def takes(self, rule: str) -> bool:
        if self.rules and rule not in self.rules:
            return False
        self.used.add(rule)
        return True


def selected(outcomes: Sequence[CheckOutcome], selection: Selection, whole: Sequence[str | None]) -> list[CheckOutcome]:
    """Return the outcomes with the selected findings. `whole` has for each outcome the file if it was checked
    completely, so that unused comments in it are reported; None if only one function was checked."""
    comments: dict[str, dict[int, _Comment]] = {}

    def comments_of(file: str) -> dict[int, _Comment]:
        if file not in comments:
            comments[file] = _comments(file)
        return comments[file]

    def stays(rule: str, severity: str, source: SourceLine | None, own: str | None) -> bool:
        always = severity == "error" and rule != UNDECIDED and rule not in RANGE_RULES  # errors if strict alone
        comment = None if source is None else comments_of(source.file).get(source.line)
        taken = comment is not None and comment.takes(rule)  # a comment has a use for a rule that is ignored today
        return not taken and (always or selection.counts(rule, own if source is None else source.file))

    kept = []
    for outcome, own in zip(outcomes, whole):
        findings = [
            (finding, stays(finding.rule, finding.severity, finding.source, own)) for finding in outcome.findings
        ]
        conditions = [(condition, stays(UNDECIDED, "note", condition.source, own)) for condition in outcome.conditions]
        hidden = [finding.severity for finding, stay in findings if not stay]
        hidden += ["note" for _, stay in conditions if not stay]
        kept.append(
            replace(
                outcome,
                findings=tuple([finding for finding, stay in findings if stay]),
                conditions=tuple([condition for condition, stay in conditions if stay]),
                suppressed=tuple(hidden),
            )
        )
    unusable = {own for outcome, own in zip(outcomes, whole) if outcome.unusable is not None}
    for file in dict.fromkeys(own for own in whole if own is not None and own not in unusable):
        at = [*whole].index(file)
        odd = [finding for comment in comments_of(file).values() for finding in _unused(comment, selection)]
        kept[at] = replace(kept[at], findings=(*kept[at].findings, *odd))
    return kept


def _comments(file: str) -> dict[int, _Comment]:
    """Return the comments of a file by line; none if it cannot be read."""
    try:
        text = Path(file).read_bytes()
        if b"opstage:" not in text:
            return {}
        tokens = [*tokenize.tokenize(io.BytesIO(text).readline)]
    except (OSError, SyntaxError, ValueError, tokenize.TokenError):
        return {}
    found = {}
    for token in tokens:
        match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
        if match:
            rules = tuple([rule for rule in re.split(r"[,\s]+", match[1] or "") if rule])
            line, column = token.start
            source = SourceLine(file, line, column + match.start() + 1, column + match.end() + 1)
            found[line] = _Comment(rules, source, set())
    return found


def _unused(comment: _Comment, selection: Selection) -> Iterator[Finding]:
    """Report unknown rules in a comment, and rules without a finding on its line."""
    if not selection.counts(UNUSED_SUPPRESSION, comment.source.file):
        return
    for rule in comment.rules:
        if rule not in RULES:
            reason = f"there is no rule {rule!r}{nearest(rule, RULES)}"
            yield _finding(comment, reason, "opstage check --rules lists them")
        elif rule not in comment.used and selection.counts(rule, comment.source.file):
            yield _finding(comment, f"this line has no finding of {rule}", "take the comment out")
    if not comment.rules and not comment.used and selection.select is None:
        yield _finding(comment, "this line has no finding", "take the comment out")


def _finding(comment: _Comment, reason: str, fix: str) -> Finding:
    return Finding("program", reason, source=comment.source, rule=UNUSED_SUPPRESSION, severity="warning", fix=fix)
