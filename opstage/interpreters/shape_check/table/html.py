"""A table, and a report with its findings, as self-contained HTML with collapsible blocks and without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....ops.types import show_shape
from ....pages import render
from .amounts import is_nothing
from .columns import columns_of
from .rows import Operand
from .table import Table
from .text import tied_lines

if TYPE_CHECKING:
    from ..report import Report


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
