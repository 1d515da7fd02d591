"""Kernel arguments as words: numbers, or symbolic addresses that are resolved when memory is planned."""

from __future__ import annotations

from typing import NamedTuple

from ...native.compiler import Kernel
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


class WorkerScratch(NamedTuple):
    """A word: the address of `nbytes` of scratch memory per worker; `key` distinguishes those of one kernel."""

    key: str
    nbytes: int


class ErrorFlag(NamedTuple):
    """A word: the address of the flag that is set when an index is out of range."""


Word = int | Address | WorkerScratch | ErrorFlag


class LoweredLoop(NamedTuple):
    """A kernel and its arguments.

    kernel      its source until it is compiled, together with those of other loops
    totals      (scratch, slot) of the sums over rows, which are partial sums in each worker's scratch
    """

    kernel: Kernel | LoopSource
    tasks: int
    words: tuple[Word, ...]
    totals: tuple[tuple[WorkerScratch, int], ...]
