"""Out-of-range indices in kernels: recorded on the device, and raised when a value is next read back.

A kernel that finds such an index sets a flag to the number of its op, unless an earlier op did. Checking the flag
copies four bytes; only if it is set is more work done, to raise the same error as other interpreters. Each interpreter
has its own watch, so an error of another one, perhaps in another thread, is raised there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final

from ....ops.errors import RangeError, SourceLine
from ..buffer import DeviceBuffer

Require = Callable[[str, tuple[int, ...], Any], None]
"""A function `(op, shape of a tensor, indices into it)` that raises RangeError if an index is out of range."""


class Watched(NamedTuple):
    """An op that reads or writes at indices: its name, place and operands, and its requirement on them."""

    op: str
    region: str
    source: SourceLine | None
    shape: tuple[int, ...]
    idx: DeviceBuffer
    require: Require


@final
class Watch:
    """The index checks of one interpreter on a device, active while that interpreter holds its lock.

    flag      0, or the number of the first op in `watched` with an index out of range; None before the first use
    watched   the ops since the last check of the flag that may have had one
    """

    __slots__ = ("flag", "watched")

    def __init__(self) -> None:
        self.flag: DeviceBuffer | None = None
        self.watched: list[Watched] = []


def range_error(watched: Watched, download: Callable[[DeviceBuffer], Any]) -> RangeError:
    """Return the error of an op whose index was out of range."""
    try:
        watched.require(watched.op, watched.shape, download(watched.idx))
    except RangeError as error:
        error.source, error.region = watched.source, watched.region
        return error
    raise AssertionError(f"the flag of {watched.op} was set, but its indices are all in range")
