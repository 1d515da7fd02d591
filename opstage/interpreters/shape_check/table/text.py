"""A table as plain text, and for terminals with rich."""

from __future__ import annotations

from itertools import zip_longest

from rich.table import Table as RichTable
from rich.text import Text

from .amounts import is_nothing
from .columns import columns_of, result_of
from .table import Line, Table

_GAP = "  "


def plain(table: Table) -> str:
    """Columns divided by spaces: the block or op, what it makes, then its amounts, from the right."""
    columns = columns_of(table)
    rows = [["block / op", "result", *[column.heading for column in columns]]]
    for line in table.lines():
        result = result_of(line.row) if line.row else ""
        rows.append([_INDENT * line.depth + name_of(line), result, *[column.show(line.amounts) for column in columns]])
    if not is_nothing(table.unread):
        rows.append(["read by no op", "", *[column.show(table.unread_amounts) for column in columns]])
    rows.append(["total", "", *[column.show(table.total) for column in columns]])
    widths = [max(map(len, cells)) for cells in zip_longest(*rows, fillvalue="")]
    lines = [
        _GAP.join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        for row in rows
    ]
    rule = "-" * sum(widths, len(_GAP) * (len(widths) - 1))
    return "\n".join(line.rstrip() for line in (lines[0], rule, *lines[1:-1], rule, lines[-1]))


def rich_table(table: Table) -> RichTable:
    """The same with colours, in as many columns as the terminal has."""
    columns = columns_of(table)
    shown = RichTable(show_footer=True, header_style="bold", footer_style="bold", pad_edge=False)
    shown.add_column("block / op", footer="total", no_wrap=True)
    shown.add_column("result", style="dim")
    for column in columns:
        shown.add_column(column.heading, footer=column.show(table.total), justify="right")
    for line in table.lines():
        style = "" if line.row else "bold"
        name = Text(_INDENT * line.depth + name_of(line), style=style or "cyan")
        result = result_of(line.row) if line.row else ""
        shown.add_row(name, result, *[Text(column.show(line.amounts), style=style) for column in columns])
    if not is_nothing(table.unread):
        shown.add_row("read by no op", "", *[column.show(table.unread_amounts) for column in columns])
    return shown


_INDENT = "  "


def name_of(line: Line) -> str:
    """`blocks.0 … blocks.47 (48 x)`, and for the first of them `each: blocks.0`."""
    if line.times > 1:
        return f"{line.name} ({line.times} x)"
    return f"each: {line.name}" if line.each else line.name
