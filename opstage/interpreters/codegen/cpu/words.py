"""Kernel arguments as words: numbers, or symbolic addresses of memory that are resolved once it is placed."""

from __future__ import annotations

from typing import NamedTuple

from ...native.compiler import Kernel
from .texts import LoopSource


class Address(NamedTuple):
    """A word of a kernel's arguments: where a slot's memory is, `offset` bytes on."""

    slot: int
    offset: int


class WorkerScratch(NamedTuple):
    """A word: where memory of `nbytes` for each worker is; `key` tells the rooms of a kernel apart."""

    key: str
    nbytes: int


class ErrorFlag(NamedTuple):
    """A word: where an index out of range is noted."""


Word = int | Address | WorkerScratch | ErrorFlag


class LoweredLoop(NamedTuple):
    """A kernel and what it is called with.

    kernel      its text until it is compiled, with those of the other loops
    totals      (room, slot) of the sums over rows, which each worker has in a room of its own
    """

    kernel: Kernel | LoopSource
    tasks: int
    words: tuple[Word, ...]
    totals: tuple[tuple[WorkerScratch, int], ...]
