"""Indices that kernels found out of range: noted on the device, raised when a value is next read back.

A kernel that meets such an index sets a flag to the number of its op, unless an earlier op did. Looking at the flag is
a copy of four bytes; only when it is set is more done, and the error is then that of every interpreter. Each
interpreter has a watch of its own, so an index that another one got wrong, perhaps in another thread, is raised there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final

from ....ops.errors import RangeError, SourceLine
from ..buffer import DeviceBuffer

Require = Callable[[str, tuple[int, ...], Any], None]
"""`(op, shape of a tensor, indices into it)`: raises RangeError if one of them is out of range."""


class Watched(NamedTuple):
    """An op that reads or writes at indices: what it is called, where, with what, and what it asks of them."""

    op: str
    region: str
    source: SourceLine | None
    shape: tuple[int, ...]
    idx: DeviceBuffer
    require: Require


@final
class Watch:
    """The index checks of one interpreter on a device, whose `watch` it is while that interpreter has its lock.

    flag      0, or the number of the first op in `watched` that met an index out of range; None before it is asked for
    watched   the ops that may have met one since the flag was last looked at
    """

    __slots__ = ("flag", "watched")

    def __init__(self) -> None:
        self.flag: DeviceBuffer | None = None
        self.watched: list[Watched] = []


def range_error(watched: Watched, download: Callable[[DeviceBuffer], Any]) -> RangeError:
    """The error of an op whose index was out of range."""
    try:
        watched.require(watched.op, watched.shape, download(watched.idx))
    except RangeError as error:
        error.source, error.region = watched.source, watched.region
        return error
    raise AssertionError(f"the flag of {watched.op} was set, but its indices are all in range")
