"""A table as plain text, for terminals with rich, and as self-contained HTML with collapsible blocks."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ....ops.errors import printable
from ....ops.places import show_tied
from ....ops.types import show_shape
from ....pages import aligned, render
from . import Line, Table, columns_of, result_of
from .rows import Operand, is_nothing

if TYPE_CHECKING:
    from ..report import Report


_INDENT = "  "
_NARROW = 16
"""In a terminal, a wider formula is wrapped."""
_SPARED = ("FLOP/byte", "result", "update FLOPs", "share", "bytes moved")
"""Columns that a narrow terminal omits, in this order."""


class _Cells(NamedTuple):
    """The cells of a line, in the order of the headings."""

    texts: list[str]
    op: bool
    """Whether the line is for an op."""


def plain(table: Table) -> str:
    """Return columns separated by spaces: the block or op, its results, then its amounts, right-aligned."""
    headings, lines, total = _read(table)
    rows = [headings, *[line.texts for line in lines], total]
    texts = aligned(rows, 2)
    rule = "-" * (sum(_widths(rows)) + 2 * (len(headings) - 1))
    return "\n".join((texts[0], rule, *texts[1:-1], rule, texts[-1], *tied_lines(table)))


def tied_lines(table: Table) -> list[str]:
    """Return the lines after the total: parameters with several places."""
    return [f"tied, counted once: {printable(show_tied(paths))}" for paths in table.tied]


def rich_table(table: Table, width: int) -> RichTable:
    """Return the table with colours, in as many columns as fit a terminal of that width."""
    headings, lines, total = _read(table)
    widths = [min(w, _NARROW) if i else w for i, w in enumerate(_widths([headings, *[x.texts for x in lines], total]))]
    shown = list(range(len(headings)))
    for spared in _SPARED:
        if sum(widths[i] + 3 for i in shown) > width and spared in headings:
            shown.remove(headings.index(spared))
    made = RichTable(box=box.SIMPLE_HEAD, show_footer=True, header_style="bold", footer_style="bold", pad_edge=False)
    if sum(widths[i] + 3 for i in shown) > width:
        widths[1:] = [min(w, max(1, (width - widths[0]) // (len(shown) - 1) - 3)) for w in widths[1:]]
    for i in shown:
        made.add_column(
            Text(headings[i]), Text(total[i]), justify="left" if i < 2 else "right", width=widths[i], overflow="fold"
        )
    for line in lines:
        style = "" if line.op else "bold cyan"
        made.add_row(*[Text(line.texts[i], style=style) for i in shown])
    return made


def for_terminal(table: Table, width: int) -> str:
    """Return the table as rich prints it in a terminal of this width, with colours."""
    console = Console(width=width, force_terminal=True, file=io.StringIO())
    with console.capture() as capture:
        console.print(rich_table(table, width))
        for line in tied_lines(table):
            console.print(Text(line))
    return capture.get()


def _read(table: Table) -> tuple[list[str], list[_Cells], list[str]]:
    """Return headings, lines and totals."""
    columns = columns_of(table)
    lines = []
    for line in table.lines():
        result = result_of(line.row) if line.row else ""
        name = _INDENT * line.depth + _name(line)
        lines.append(_Cells([name, result, *[column.show(line.amounts) for column in columns]], line.row is not None))
    if not is_nothing(table.unread):
        lines.append(_Cells(["read by no op", "", *[column.show(table.unread_amounts) for column in columns]], True))
    headings = ["block / op", "result", *[column.heading for column in columns]]
    return headings, lines, ["total", "", *[column.show(table.total) for column in columns]]


def _widths(rows: list[list[str]]) -> list[int]:
    return [max(map(len, cells)) for cells in zip(*rows)]


def _name(line: Line) -> str:
    """Return `blocks.0 … blocks.47 (48 x)`, and for the first of them `each: blocks.0`."""
    name = printable(line.name)
    if line.times > 1:
        return f"{name} ({line.times} x)"
    return f"each: {name}" if line.each else name


# HTML -----------------------------------------------------------------------------------------------------------------


def table_html(table: Table, report: Report | None = None) -> str:
    """Return a table; with its report, also findings with their lines, and undecided conditions."""
    return render(
        "cost_table.html",
        table=table,
        report=report,
        columns=columns_of(table),
        unread=not is_nothing(table.unread),
        tied_lines=tied_lines(table),
        shown=_shown,
    )


def _shown(tensor: Operand) -> str:
    return f"{tensor.path} {show_shape(tensor.type.shape)}".strip()
