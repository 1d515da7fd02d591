"""Findings on captured mutable state: lists, dicts, arrays, attributes of objects.

Such a program is correct on every interpreter: an eager run sees a change by itself, and a compiled program is recorded
again. But each change costs a recording, and state that is not an argument is neither in a checkpoint nor in a graph.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...ops.errors import ProgramError
from ..captures import Capture
from .finding import Finding
from .report import Report

RULE = "captured-state"
ABOUT = "The program reads state of Python's that may change between two runs."


def with_captured(report: Report, *programs: Any) -> Report:
    """Return the report with a note for each place of such state that the programs visibly read."""
    found: dict[tuple[str, object], Finding] = {}
    for program in programs:
        if program is None:
            continue
        try:
            read = Capture(program, listing=True)
        except ProgramError as error:
            found[str(error), None] = Finding("program", str(error), rule=RULE, severity="note")
            continue
        for what, kind, where in read.changeable:
            found.setdefault(
                (what, where),
                Finding(
                    what,
                    f"{kind}, can change between two runs of the program: each change costs a compiled program a new "
                    "recording, and no checkpoint or graph holds it",
                    source=where,
                    rule=RULE,
                    severity="note",
                    fix="pass it as an argument or as state; or make it what cannot change, such as a tuple, a frozen "
                    "dataclass or a read-only array",
                ),
            )
    return replace(report, notes=(*report.notes, *found.values())) if found else report
