"""`Table`: the cost of a program by block and by op, computed from a checked program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

from ...folding import UPDATE, Fold, Group, Tree, folded
from ..program import CheckedProgram
from .amounts import Amounts, total
from .rows import Row, rows_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table as RichTable
    from rich.text import Text

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
        from .text import plain

        return plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RichTable | Text]:
        from rich.text import Text

        from .text import rich_table, tied_lines

        yield rich_table(self, options.max_width)
        for line in tied_lines(self):
            yield Text(line)

    def _repr_html_(self) -> str:
        from .html import table_html

        return table_html(self)
