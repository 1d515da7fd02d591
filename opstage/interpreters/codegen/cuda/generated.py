"""A generated kernel ready for launch: its source, its iteration space, and the arguments that a call fills in."""

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
"""The smallest number of rows in a part of a column, and the number of threads that occupies a GPU, beyond which
columns are not split."""

_WHOLE = 64
"""The number of rows that one thread sums as fast as a second launch would join parts."""


def parts_of_columns(rows: int, extent: int) -> int:
    """Return the number of parts, with a thread each, into which columns of `rows` rows are split."""
    if rows <= _WHOLE:
        return 1
    most = min(-(-rows // _SHORTEST), max(1, _THREADS // extent))
    return -(-rows // -(-rows // most))


class Pointer(NamedTuple):
    """An argument: the memory of a root."""

    root: int


class Partial(NamedTuple):
    """An argument: the partial sums of the column sum `slot`, a row for each part."""

    slot: int


class Watching(Enum):
    """Arguments of a kernel that checks indices: the flag's memory, and the value it is set to."""

    FLAG = "flag"
    ASKED = "asked"


Argument = Pointer | Partial | Watching | np.generic


@final
class KernelArguments:
    """The arguments of a kernel under construction, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Argument] = {}
        self._pointers: dict[Pointer | Partial | Watching, str] = {}

    def pointer(self, argument: Pointer | Partial | Watching) -> str:
        """Return the name of an argument, adding it once."""
        name = self._pointers.get(argument)
        if name is None:
            name = self._pointers[argument] = f"p{len(self.by_name)}"
            self.by_name[name] = argument
        return name

    def number(self, value: Any) -> str:
        """Add a number and return its name."""
        name = f"n{len(self.by_name)}"
        self.by_name[name] = value
        return name


class Generated(NamedTuple):
    """A kernel and the arguments that follow those of its form.

    rows, extent    the iteration space: rows of `extent` elements; one row for a loop over elements
    parts           the number of parts of a column
    neighbours      whether a row's elements are contiguous in memory; otherwise adjacent rows are
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
        """The roots whose memory it reads and writes, and its sums over rows."""
        found = (a.root if isinstance(a, Pointer) else a.slot if isinstance(a, Partial) else -1 for a in self.arguments)
        return [root for root in found if root >= 0]

    @property
    def checks(self) -> bool:
        """Whether it checks indices."""
        return Watching.FLAG in self.arguments
