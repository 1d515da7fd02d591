"""Self-contained HTML pages: a frame, a template for each page, style sheets and scripts, all as files."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent


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
