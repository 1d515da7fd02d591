"""The cost of a program by block and by op: `Table`, as plain data, as text and as HTML."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

from ...ops.dims import Dim
from ...ops.errors import printable
from ...ops.readable_amounts import show_flops, show_formula, show_size
from ...ops.tied_parameters import show_tied
from ...ops.types import dtype_name, show_shape
from ...pages import aligned, render
from ..graph.outline import UPDATE, Fold, Group, Tree, folded
from .cost_rows import Amounts, Operand, Row, is_nothing, rows_of, total
from .program import CheckedProgram

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table as RichTable
    from rich.text import Text

    from .report import Report


Item: TypeAlias = "Row | Group[Row] | Fold[Row]"


class Line(NamedTuple):
    """A displayed line of the table: an op, a block, or `times` equal neighbours.

    A line for several is followed by the first of them, with the amounts of that one only.
    """

    name: str
    depth: int
    amounts: Amounts
    times: int
    row: Row | None
    each: bool
    """Whether it is the first of several."""


@final
class Table:
    """The cost of each block and op of a program; printed as text, in a terminal with rich, in a notebook as HTML.

    Ops are grouped by the regions of the program; equal neighbours are one line. Backward and update work is counted
    with the forward op that it belongs to. All amounts are exact: integers, or formulas in the named dims;
    `report.at(B=64)` substitutes sizes.
    """

    def __init__(self, program: CheckedProgram):
        rows, shared, self.unread = rows_of(program)
        tree: Tree[Row] = Tree()
        for row in rows:
            tree.add(row, row.region.path)
        self.root = tree.root
        if shared:
            self.root.members.append(Group(UPDATE, UPDATE, [*shared]))
        self.rows: tuple[Row, ...] = (*rows, *shared)
        """Every op, in the order in which the program calls them."""
        self.tied = program.tied
        """For each parameter with several places, which is counted once, all their paths."""
        self._known: dict[object, Amounts] = {}

    @cached_property
    def total(self) -> Amounts:
        """The amounts of the whole program. Its parameters include those that no op reads."""
        found = self.amounts(self.root)
        return found._replace(parameters=found.parameters + self.unread)

    @property
    def unread_amounts(self) -> Amounts:
        """The amounts of parameters that no op reads."""
        return Amounts(parameters=self.unread)

    def amounts(self, item: Item) -> Amounts:
        """Return the sum over an op, a block, or equal blocks."""
        if isinstance(item, Row):
            return item.amounts
        if isinstance(item, Fold):
            return total(map(self.amounts, item.members))
        found = self._known.get(item.form)
        if found is None:
            found = self._known[item.form] = total(map(self.amounts, item.members))
        return found

    def lines(self) -> Iterator[Line]:
        """Yield blocks and their ops, depth first."""
        yield from self._lines(self.root.members, 0)

    def _lines(self, members: Sequence[Row | Group[Row]], depth: int) -> Iterator[Line]:
        for item in folded(members):
            if isinstance(item, Row):
                yield Line(item.op, depth, item.amounts, 1, item, False)
            elif isinstance(item, Group):
                yield Line(item.name, depth, self.amounts(item), 1, None, False)
                yield from self._lines(item.members, depth + 1)
            else:
                first = item.members[0]
                yield Line(item.name, depth, self.amounts(item), len(item.members), None, False)
                if isinstance(first, Group):
                    yield Line(first.name, depth + 1, self.amounts(first), 1, None, True)
                    yield from self._lines(first.members, depth + 2)

    def __str__(self) -> str:

        return plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RichTable | Text]:
        from rich.text import Text

        yield rich_table(self, options.max_width)
        for line in tied_lines(self):
            yield Text(line)

    def _repr_html_(self) -> str:

        return table_html(self)


__all__ = ["Amounts", "Operand", "Row", "Table", "show_flops", "show_formula", "show_size"]


# Columns --------------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A heading, and a function from amounts to the text of a cell, possibly empty."""

    heading: str
    show: Callable[[Amounts], str]


def columns_of(table: Table) -> list[Column]:
    """Return the columns that are not empty. The share of the forward pass and the intensity need numbers."""
    whole = table.total
    columns: list[Column] = []
    for heading, field, show in _COLUMNS:
        if not is_nothing(getattr(whole, field)):
            columns.append(Column(heading, _shown(field, show)))
    forward = whole.forward
    if isinstance(forward, int) and forward:
        at = next(i for i, column in enumerate(columns) if column.heading == "forward FLOPs") + 1
        columns.insert(at, Column("share", lambda amounts: _share(amounts, forward)))
    if whole.intensity is not None:
        columns.append(Column("FLOP/byte", _intensity))
    return columns


def result_of(row: Row) -> str:
    """Return the shapes of an op's results."""
    return ", ".join(show_shape(result.type.shape) for result in row.results)


_COLUMNS = (
    ("parameters", "parameters", show_formula),
    ("forward FLOPs", "forward", show_flops),
    ("backward FLOPs", "backward", show_flops),
    ("update FLOPs", "update", show_flops),
    ("bytes moved", "moved", show_size),
    ("bytes saved", "saved", show_size),
)


def _shown(field: str, show: Callable[..., str]) -> Callable[[Amounts], str]:
    def text(amounts: Amounts) -> str:
        amount = getattr(amounts, field)
        return "" if is_nothing(amount) else show(amount)

    return text


def _share(amounts: Amounts, whole: int) -> str:
    forward = amounts.forward
    return f"{100 * forward / whole:.1f} %" if isinstance(forward, int) and forward else ""


def _intensity(amounts: Amounts) -> str:
    return f"{amounts.intensity:.1f}" if amounts.intensity and amounts.flops else ""


# Plain data, for JSON -------------------------------------------------------------------------------------------------

#     {"sizes": {name: integer}, "totals": AMOUNTS, "unread_parameters": AMOUNT, "tied": [[path …] …],
#      "blocks": [ITEM …]}
#
#     AMOUNT     an integer, or the text of a formula in the named dims, as a Spec is written: "25*B*T**2 + 4"
#     AMOUNTS    {"parameters", "forward_flops", "backward_flops", "update_flops", "forward_bytes", "backward_bytes",
#                "update_bytes", "saved_bytes": AMOUNT}
#     ITEM       {"kind": "op", "name", "count": 1, "amounts": AMOUNTS, "operands": [TENSOR …], "results": [TENSOR …],
#                 "location": {"file", "line"} or null}
#                {"kind": "block", "name", "path", "count", "amounts": AMOUNTS, "members": [ITEM …]}
#     TENSOR     {"path": the parameter or input, else "", "shape": [AMOUNT …], "dtype"}
#
# A block with a count above 1 stands for that many equal neighbours: `name` has their range, `amounts` is the sum over
# all of them, `path` and `members` are those of the first.


_NAMES = {"forward": "forward_flops", "backward": "backward_flops", "update": "update_flops", "saved": "saved_bytes"}


def table_as_dict(report: Report) -> dict[str, Any]:
    """Return the table of a report as plain data; see above."""
    table = report.table
    return {
        "sizes": dict(report.sizes),
        "totals": _amounts(table.total),
        "unread_parameters": _dim(table.unread),
        "tied": [list(paths) for paths in table.tied],
        "blocks": _items(table, table.root.members),
    }


def _items(table: Table, members: Sequence[Row | Group[Row]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for item in folded(members):
        if isinstance(item, Fold) and isinstance(item.members[0], Row):
            items += [_item(table, member) for member in item.members]
        elif isinstance(item, Fold):
            together = {"name": item.name, "count": len(item.members), "amounts": _amounts(table.amounts(item))}
            items.append(_item(table, item.members[0]) | together)
        else:
            items.append(_item(table, item))
    return items


def _item(table: Table, item: Row | Group[Row]) -> dict[str, Any]:
    amounts = _amounts(table.amounts(item))
    if isinstance(item, Group):
        return {
            "kind": "block",
            "name": item.name,
            "path": item.path,
            "count": 1,
            "amounts": amounts,
            "members": _items(table, item.members),
        }
    source = item.place.source if item.place else None
    return {
        "kind": "op",
        "name": item.op,
        "count": 1,
        "amounts": amounts,
        "operands": [_tensor(operand) for operand in item.operands],
        "results": [_tensor(result) for result in item.results],
        "location": source and {"file": source.file, "line": source.line},
    }


def _tensor(tensor: Operand) -> dict[str, Any]:
    shape, dtype = tensor.type
    return {"path": tensor.path, "shape": [_dim(dim) for dim in shape], "dtype": dtype_name(dtype)}


def _amounts(amounts: Amounts) -> dict[str, Any]:
    return {_NAMES.get(name, name): _dim(amount) for name, amount in amounts._asdict().items()}


def _dim(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


# Text, for terminals with rich, and HTML ------------------------------------------------------------------------------


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
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

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
    from rich.console import Console

    console = Console(width=width, force_terminal=True, file=io.StringIO())
    with console.capture() as capture:
        console.print(table)
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
        shown=_described,
    )


def _described(tensor: Operand) -> str:
    return f"{tensor.path} {show_shape(tensor.type.shape)}".strip()
