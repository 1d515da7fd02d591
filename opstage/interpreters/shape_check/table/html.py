"""A table, and a report with its findings, as self-contained HTML with collapsible blocks and without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from ....ops.types import show_shape
from ...folding import Group, nested_html, title_html
from .amounts import Amounts, is_nothing
from .columns import Column, columns_of
from .rows import Operand, Row
from .table import Item, Table
from .text import tied_lines

if TYPE_CHECKING:
    from ..report import Report

STYLE = """
.opstage { font: 13px/1.45 system-ui, sans-serif; --line: #8884; --soft: #8881; overflow-x: auto; }
.opstage .r { display: grid; grid-template-columns: var(--columns); gap: 0 1.2em; align-items: baseline;
  border-top: 1px solid var(--line); padding: .12em .3em; }
.opstage .r > :first-child { padding-left: calc(1.3em * var(--depth, 0)); }
.opstage .r > .amount { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.opstage .r > .tensors { font: 12px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
.opstage .head > *, .opstage .sum > * { font-weight: 600; }
.opstage .head > .tensors { font: inherit; font-weight: 600; } .opstage .head { border-top: 0; }
.opstage .sum { border-top-width: 2px; } .opstage .table { min-width: var(--least); text-align: left; }
.opstage summary { list-style: none; cursor: pointer; } .opstage summary::-webkit-details-marker { display: none; }
.opstage summary .r { background: var(--soft); }
.opstage summary .name::before { content: "▸ "; } .opstage details[open] > summary .name::before { content: "▾ "; }
.opstage .name { font-weight: 600; } .opstage .times { font-weight: 400; opacity: .75; }
.opstage pre.finding { white-space: pre-wrap; border-left: 3px solid #c0705f; padding: .2em .8em; margin: .4em 0; }
.opstage pre.warning { border-left-color: #c9a227; } .opstage ul { margin: .2em 0 .6em; }
"""


def report_html(report: Report) -> str:
    """Return a check's report as HTML: findings with their lines, undecided conditions, then the table."""
    parts = [
        f'<pre class="finding {finding.severity}">{escape(f"{finding.severity}: {finding}")}</pre>'
        for finding in report.findings
    ]
    if report.conditions:
        listed = "".join(f"<li>{escape(str(condition))}</li>" for condition in report.conditions)
        parts.append(f"<p>This program is right only if:</p><ul>{listed}</ul>")
    parts.append(f"<p>{escape(str(report).splitlines()[-1])}</p>")
    if report.sizes:
        at = ", ".join(f"{name}={size}" for name, size in report.sizes.items())
        parts.append(f"<p>at {escape(at)}</p>")
    return _framed("".join(parts) + (_table(report.table) if report.table.rows else ""))


def table_html(table: Table) -> str:
    """Return only the table."""
    return _framed(_table(table))


def _framed(body: str) -> str:
    return f'<div class="opstage"><style>{STYLE}</style>{body}</div>'


def _table(table: Table) -> str:
    columns = columns_of(table)
    heads = ["block / op", "operands", "result"]
    widths = "minmax(11em, 2fr) minmax(10em, 2fr) minmax(6em, 1fr)" + " minmax(6.6em, 1fr)" * len(columns)
    rows = [
        _line([*heads, *[column.heading for column in columns]], "head"),
        nested_html(table.root.members, partial(_item, table, columns), opened=True, first_of_fold=True),
    ]
    if not is_nothing(table.unread):
        rows.append(_line(["read by no op", "", "", *_cells(columns, table.unread_amounts)]))
    rows.append(_line(["total", "", "", *_cells(columns, table.total)], "sum"))
    rows += [f"<p>{escape(line)}</p>" for line in tied_lines(table)]
    style = f"--columns: {widths}; --least: {30 + 7.8 * len(columns):.1f}em"
    return f'<div class="table" style="{style}">{"".join(rows)}</div>'


def _item(table: Table, columns: Sequence[Column], item: Item, depth: int) -> str:
    cells = _cells(columns, table.amounts(item))
    if isinstance(item, Row):
        source = item.place.source if item.place else None
        title = f' title="{escape(str(source))}: {escape(source.text)}"' if source else ""
        name = f"<span{title}>{escape(item.op)}</span>"
        return _line([name, _tensors(item.operands), _tensors(item.results), *cells], "op", depth)
    if isinstance(item, Group):
        name = f'<span class="name"{title_html(item)}>{escape(item.name)}</span>'
    else:
        name = f'<span class="name">{escape(item.name)} <span class="times">({len(item.members)} x)</span></span>'
    return _line([name, "", "", *cells], "", depth)


def _cells(columns: Sequence[Column], amounts: Amounts) -> list[str]:
    return [escape(column.show(amounts)) for column in columns]


def _tensors(tensors: Sequence[Operand]) -> str:
    return "<br>".join(escape(f"{tensor.path} {show_shape(tensor.type.shape)}".strip()) for tensor in tensors)


def _line(cells: Sequence[str], kind: str = "", depth: int = 0) -> str:
    """Return three cells of text and the amounts, each as HTML."""
    name, operands, results, *amounts = cells
    shown = "".join(f'<span class="amount">{cell}</span>' for cell in amounts)
    return (
        f'<div class="r {kind}" style="--depth: {depth}"><span>{name}</span><span class="tensors">{operands}</span>'
        f'<span class="tensors">{results}</span>{shown}</div>'
    )
