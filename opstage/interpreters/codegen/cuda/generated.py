"""A generated kernel as it is launched: its text, its iteration space, and the arguments that a call fills in."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, final

import numpy as np

from .texts import Text


class Form(Enum):
    """The iteration space of a kernel's threads."""

    ELEMENTS = "count"
    ROWS = "rows"
    COLUMNS = "parts of columns"


_SHORTEST, _THREADS = 16, 1 << 17
"""Rows of a part of a column, at least; and with how many threads a GPU is busy, so that columns are cut no further."""

_WHOLE = 64
"""Rows that one thread goes down as fast as another launch would join parts of them."""


def parts_of_columns(rows: int, extent: int) -> int:
    """Into how many parts, a thread each, columns of so many rows are cut."""
    if rows <= _WHOLE:
        return 1
    most = min(-(-rows // _SHORTEST), max(1, _THREADS // extent))
    return -(-rows // -(-rows // most))


class Pointer(NamedTuple):
    """An argument: the memory of a root."""

    root: int


class Partial(NamedTuple):
    """An argument: a row of sums for each part, of the column sum `slot`."""

    slot: int


class Watching(Enum):
    """Arguments of a kernel that looks at indices: a number in memory, and what that becomes at one out of range."""

    FLAG = "flag"
    ASKED = "asked"


Argument = Pointer | Partial | Watching | np.generic


@final
class KernelArguments:
    """The arguments of a kernel in the making, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Argument] = {}
        self._pointers: dict[Pointer | Partial | Watching, str] = {}

    def pointer(self, argument: Pointer | Partial | Watching) -> str:
        """The name of one, of which there is but one."""
        name = self._pointers.get(argument)
        if name is None:
            name = self._pointers[argument] = f"p{len(self.by_name)}"
            self.by_name[name] = argument
        return name

    def number(self, value: Any) -> str:
        """The name of a new one."""
        name = f"n{len(self.by_name)}"
        self.by_name[name] = value
        return name


class Generated(NamedTuple):
    """A kernel and the arguments that come after those of its form.

    rows, extent    what it steps through: rows of `extent` elements; one row, where it steps through elements
    parts           into how many parts a column is cut
    neighbours      whether the elements of a row are neighbours in memory; else rows are, side by side
    """

    text: Text
    form: Form
    rows: int
    extent: int
    parts: int
    neighbours: bool
    arguments: tuple[Argument, ...]

    @property
    def roots(self) -> list[int]:
        """Whose memory it reads and writes, and what it sums over rows."""
        found = (a.root if isinstance(a, Pointer) else a.slot if isinstance(a, Partial) else -1 for a in self.arguments)
        return [root for root in found if root >= 0]

    @property
    def checks(self) -> bool:
        """Whether it looks at indices."""
        return Watching.FLAG in self.arguments
