"""Text in columns, and self-contained HTML pages: a frame, templates, style sheets and scripts, all as files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """Return rows of cells as lines of text, in columns two blanks apart; from the one at `left` on, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.ljust(width) if left is None or i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def render(template: str, /, **values: Any) -> str:
    """Return the text of a template of this folder with `values`, escaped as HTML."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        autoescape=True,
        loader=FileSystemLoader(_FOLDER),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    made.globals["file"] = cache(lambda name: (_FOLDER / name).read_text(encoding="utf-8"))
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return made
