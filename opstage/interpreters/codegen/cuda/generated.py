"""A generated kernel as it is launched: its text, its iteration space, and the arguments that a call fills in."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np

from .texts import Text


class Form(Enum):
    """The iteration space of a kernel's threads."""

    ELEMENTS = "count"
    ROWS = "rows"
    COLUMNS = "parts of columns"


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
