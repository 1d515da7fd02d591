"""Every mistake is found: the op, the line, what is wrong and what mends it, as docs/shape-errors.md has it too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.buggy import BUGS, Bug
from tests.check.buggy.bug import CONFIGS, right, step_report
from tests.check.shape_errors import PAGE, page


@pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))
def test_found(bug: Bug, tmp_path: Path) -> None:
    report = bug.report(tmp_path)
    found = report.errors if bug.verdict == "refuted" else report.findings
    assert len(found) == bug.errors, report
    assert report.ok == (bug.verdict != "refuted")
    first = found[0]
    assert first.severity == ("warning" if bug.verdict == "warning" else "error")
    assert first.op == bug.op and bug.says in first.reason, report
    assert first.source is not None, report
    assert (Path(first.source.file).name, first.source.line) == bug.place(), report
    assert bug.fix in first.fix if bug.fix else not first.fix, report


@pytest.mark.parametrize("name", CONFIGS)
def test_the_right_models_have_no_finding(name: str) -> None:
    report = step_report(right(name))
    assert not report.errors and not report.conditions, report


def test_there_are_enough() -> None:
    assert len(BUGS) >= 60
    assert len({bug.kind for bug in BUGS.values()}) >= 12
    assert len({bug.model for bug in BUGS.values()}) >= 6


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.check.shape_errors`"
