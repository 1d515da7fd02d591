"""Select a format by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module

from . import document, github, sarif, terminal
from .outcome import CheckOutcome

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
            return _escaped(document.render(outcomes, exit_code))
        case "github":
            return github.render(outcomes)
        case "sarif":
            return _escaped(sarif.render(outcomes, exit_code, str(import_module("opstage").__version__)))
        case _:
            return terminal.render(
                outcomes, colour=colour, verbose=verbose, quiet=quiet, warnings_as_errors=warnings_as_errors
            )


def _escaped(text: str) -> str:
    """Escape control characters in JSON, which can only be inside strings."""
    return "".join([c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text])
