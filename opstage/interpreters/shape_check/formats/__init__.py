"""Formats of findings: for a terminal, for programs, and for services that annotate code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module

from .document import CheckOutcome, render_json
from .hosts import render_github, render_sarif
from .terminal import render_terminal

FORMATS = ("terminal", "json", "github", "sarif")


def render(
    form: str,
    outcomes: Sequence[CheckOutcome],
    exit_code: int = 0,
    *,
    colour: bool = False,
    verbose: bool = False,
    quiet: bool = False,
    warnings_as_errors: bool = False,
) -> str:
    """Return the text of all outcomes in the format called `form`."""
    match form:
        case "json":
            return _escaped(render_json(outcomes, exit_code))
        case "github":
            return render_github(outcomes)
        case "sarif":
            return _escaped(render_sarif(outcomes, exit_code, str(import_module("opstage").__version__)))
        case _:
            return render_terminal(
                outcomes, colour=colour, verbose=verbose, quiet=quiet, warnings_as_errors=warnings_as_errors
            )


def _escaped(text: str) -> str:
    """Escape control characters in JSON, which can only be inside strings."""
    return "".join([c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text])
