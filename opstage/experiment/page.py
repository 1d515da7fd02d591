"""The frame of a page of runs: one HTML file that needs nothing else, and says all it has to without its script.

That adds what moves: values under the cursor, logarithmic axes, and while a run goes the page anew.
"""

from __future__ import annotations

from html import escape

from .page_files import SCRIPT, STYLE

REFRESH = 3
"""After so many seconds the page of a run that goes on is loaded again."""


def page_html(title: str, body: str, *, written: float | None = None) -> str:
    """The page. `written`, seconds since 1970, is when that of a run was written that still goes on."""
    live = "" if written is None else f' data-written="{1000 * written:.0f}" data-refresh="{1000 * REFRESH}"'
    again = "" if written is None else f'<noscript><meta http-equiv="refresh" content="{REFRESH}"></noscript>\n'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"{again}<style>{STYLE}</style>\n</head>\n<body{live}>\n{body}\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
