"""Exceptions from outside, raised before a bytecode of the caller's choice, as a handler of a signal may do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, final

import opstage

PACKAGE = str(Path(opstage.__file__).parent)


class Torn(Exception):
    """What nobody expects."""


@final
class RaiseAt:
    """In the block `Torn` is raised before the n-th bytecode that the code of the package runs; 0 only counts them.

    within    the parts of the package whose bytecodes count, by how their paths begin
    """

    def __init__(self, n: int, within: tuple[str, ...] = ("",)):
        self.n = n
        self.seen = 0
        self._within = tuple(str(Path(PACKAGE, part)) for part in within)

    def __enter__(self) -> RaiseAt:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call" and not frame.f_code.co_filename.startswith(self._within):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            self.seen += 1
            if self.seen == self.n:
                raise Torn
        return self._trace


def bytecodes(work: Callable[[], object], within: tuple[str, ...] = ("",)) -> int:
    """How many of them `work` runs."""
    with RaiseAt(0, within) as counted:
        work()
    return counted.seen


def moments(count: int, changed: Callable[[int], bool], *, around: int, spread: int) -> list[int]:
    """Of `count` moments `spread` at equal distances, and `around` on each side of the first that finds it changed.

    `changed(n)` is False up to some moment and True from there on; all moments where there are no more than that.
    """
    if count <= 2 * around + spread:
        return list(range(1, count + 1))
    low, high = 1, count + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if changed(middle) else (middle + 1, high)
    near = range(max(1, low - around), min(count, low + around) + 1)
    return sorted({*range(1, count + 1, max(1, count // spread)), *near})
