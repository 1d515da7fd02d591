"""What the tests of the lints share: a program's findings of one rule, and the line at which one must stand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import opstage
from opstage import Spec
from opstage.interpreters.shape_check.finding import Finding
from opstage.interpreters.shape_check.report import Report
from opstage.training.validate import check_step


def specs(**shapes: str) -> dict[str, Spec]:
    """Parameters by name, each of a shape."""
    return {name: Spec(shape) for name, shape in shapes.items()}


def found(report: Report, rule: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.rule == rule]


def checked(rule: str, program: Callable[..., Any], *args: Any, **more: Any) -> list[Finding]:
    """The findings of a rule in a program; of any other there must be none."""
    report = opstage.check(program, *args, **more)
    assert {finding.rule for finding in report.findings} <= {rule}, report
    return found(report, rule)


def stepped(rule: str, loss: Callable[..., Any], params: Any, *batch: Any, **more: Any) -> list[Finding]:
    """The findings of a rule in a whole training step; of any other there must be none."""
    report = check_step(loss, params, *batch, **more)
    assert {finding.rule for finding in report.findings} <= {rule}, report
    return found(report, rule)


def stands_at(finding: Finding, program: Callable[..., Any], mark: str) -> bool:
    """Whether a finding stands at the one line of the program that holds `mark`, its call underlined."""
    lines, first = inspect.getsourcelines(program)
    (number,) = [first + i for i, line in enumerate(lines) if mark in line]
    source = finding.source
    assert source is not None and "^" in str(finding)
    return (source.file, source.line) == (inspect.getsourcefile(program), number)
