"""The frame of a page of runs: a self-contained HTML file, complete without its script.

The script adds interaction: values under the cursor, logarithmic axes, and reloading while a run is in progress.
"""

from __future__ import annotations

from html import escape

from .page_files import SCRIPT, STYLE

REFRESH = 3
"""The page of a running run is reloaded after this many seconds."""


def page_html(title: str, body: str, *, written: float | None = None) -> str:
    """Return the page. `written`, in seconds since 1970, is the time of writing if the run is still in progress."""
    live = "" if written is None else f' data-written="{1000 * written:.0f}" data-refresh="{1000 * REFRESH}"'
    again = "" if written is None else f'<noscript><meta http-equiv="refresh" content="{REFRESH}"></noscript>\n'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"{again}<style>{STYLE}</style>\n</head>\n<body{live}>\n{body}\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
