"""Which format a name means."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from . import document, github, sarif, terminal
from .outcome import Outcome

FORMATS = ("terminal", "json", "github", "sarif")


def render(form: str, outcomes: Sequence[Outcome], exit_code: int = 0, *, colour: bool = False) -> str:
    """The text of all outcomes in the format called `form`."""
    match form:
        case "json":
            return document.render(outcomes, exit_code)
        case "github":
            return github.render(outcomes)
        case "sarif":
            return sarif.render(outcomes, exit_code, str(import_module("opstage").__version__))
        case _:
            return terminal.render(outcomes, colour=colour)
