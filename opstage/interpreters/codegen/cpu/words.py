"""Kernel arguments as words: numbers, or symbolic addresses of memory that are resolved once it is placed."""

from __future__ import annotations

from typing import NamedTuple

from ...native.compiler import Kernel
from ..lowered import Lowered
from ..views import View
from .texts import LoopSource


class Address(NamedTuple):
    """A word: the address of a slot's memory, `offset` bytes on."""

    slot: int
    offset: int


def address_in(lowered: Lowered, view: View) -> Address:
    """The address of a view's first element, in memory that is no part of another's."""
    view = lowered.in_memory(view)
    return Address(view.root, view.offset * lowered.types[view.root].dtype.itemsize)


class WorkerScratch(NamedTuple):
    """A word: the address of `nbytes` of scratch memory for each worker; `key` tells those of a kernel apart."""

    key: str
    nbytes: int


class ErrorFlag(NamedTuple):
    """A word: the address of the flag that an index out of range sets."""


Word = int | Address | WorkerScratch | ErrorFlag


class LoweredLoop(NamedTuple):
    """A kernel and its arguments.

    kernel      its source until it is compiled, with those of the other loops
    totals      (scratch, slot) of the sums over rows, which each worker has in scratch of its own
    """

    kernel: Kernel | LoopSource
    tasks: int
    words: tuple[Word, ...]
    totals: tuple[tuple[WorkerScratch, int], ...]
