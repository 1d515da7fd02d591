"""A page that compares runs: results, differences, and overlaid curves."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .page import page_html
from .report import panels_html
from .side_by_side import Cells, SideBySide


def side_by_side_html(runs: SideBySide) -> str:
    """Return the page."""
    title = f"{len(runs.runs)} runs" if len(runs.runs) > 1 else runs.runs[0].name
    sections = [f"<h1>{escape(title)}</h1>", f'<p id="runs">{escape(", ".join(run.name for run in runs.runs))}</p>']
    if runs.judged:
        late = "" if runs.judged_alike else ' class="late"'
        sections.append(f'<p id="judged"{late}>{runs.judged}</p>')
    sections.append(f'<h2 id="reached">Reached</h2>\n{_table(runs.reached, "scores")}')
    for mark, heading, rows in (("settings", "Settings", runs.settings), ("data", "Data and versions", runs.data)):
        if len(rows) > 1:
            which = " that differ" if len(runs.runs) > 1 else ""
            sections.append(f'<h2 id="{mark}">{heading}{which}</h2>\n{_table(rows, "code")}')
    sections.append(f'<h2 id="curves">Curves</h2>\n<div class="panels">{panels_html(runs.panels())}</div>')
    return page_html(title, "\n".join(sections))


def _table(rows: Sequence[Cells], kind: str) -> str:
    head, *others = rows
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in others
    )
    return f'<div class="wide"><table class="{kind}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
