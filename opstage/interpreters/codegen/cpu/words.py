"""Kernel arguments as words: numbers, or symbolic addresses that are resolved when memory is planned."""

from __future__ import annotations

from typing import NamedTuple

from ...native.compiler import Kernel
from ...native.pool import workers
from ..lowered import Lowered
from ..views import View
from .texts import LoopSource


class Address(NamedTuple):
    """A word: the address of a slot's memory, at `offset` bytes."""

    slot: int
    offset: int


def address_in(lowered: Lowered, view: View) -> Address:
    """Return the address of a view's first element; a part is addressed in its whole's memory."""
    view = lowered.in_memory(view)
    return Address(view.root, view.offset * lowered.types[view.root].dtype.itemsize)


class Scratch(NamedTuple):
    """A word: the address of scratch memory, `nbytes` for each of `parts` of the work, or for each worker where that
    is 0; `key` tells those of a kernel apart."""

    key: str
    nbytes: int
    parts: int = 0

    @property
    def room(self) -> int:
        """Bytes in all."""
        return self.nbytes * (self.parts or workers())


class ErrorFlag(NamedTuple):
    """A word: the address of the flag that is set when an index is out of range."""


Word = int | Address | Scratch | ErrorFlag


class LoweredLoop(NamedTuple):
    """A kernel and its arguments.

    kernel      its source until it is compiled, together with those of other loops
    totals      (scratch, slot) of the sums over rows, which are partial sums in the scratch of each part of the rows
    """

    kernel: Kernel | LoopSource
    tasks: int
    words: tuple[Word, ...]
    totals: tuple[tuple[Scratch, int], ...]
