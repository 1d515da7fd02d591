"""Copies between arrays of the host and memory of a GPU, through pinned memory that the GPU reads by itself.

The pinned memory is two halves, each with the event after which it may be used again: while the GPU copies out of one,
the host fills the other, and a caller's array is free as soon as its bytes stand there.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

HALF = 4 << 20
"""Bytes: a copy takes 80 µs by PCIe 5, long enough to hide what starts it."""


class Copies(Protocol):
    """The driver's copies, in the order of one stream."""

    def pinned(self, nbytes: int) -> int:
        """The address of so many bytes of the host that stay where they are."""

    def copy_in(self, target: int, host: int, nbytes: int) -> None:
        """From the host to the GPU; returns before it is done."""

    def copy_out(self, host: int, source: int, nbytes: int) -> None:
        """From the GPU to the host; returns before it is done."""

    def event(self) -> Any:
        """Record an event that completes when all work launched so far is done; its `sync()` waits for it."""

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""


@final
class Everything:
    """An event of all launched work, by synchronising; for when there is no event, or its wait was interrupted."""

    def __init__(self, copies: Copies):
        self._copies = copies

    def sync(self) -> None:
        self._copies.synchronize()


@final
class Staging:
    """Pinned memory, made when the first copy is."""

    def __init__(self, copies: Copies, half: int = HALF):
        self._copies = copies
        self._half = half
        self._address = 0
        self._memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._free_at: list[Any] = [None, None]
        self._everything = Everything(copies)
        self._next = 0

    def write(self, target: int, array: npt.NDArray[Any]) -> None:
        """Copy a contiguous array to the GPU. The array may be changed as soon as this returns."""
        source = array.reshape(-1).view(np.uint8)
        for at in range(0, source.size, self._half):
            piece = source[at : at + self._half]
            half, start = self._take()
            self._memory[start : start + piece.size] = piece
            self._free_at[half] = self._everything  # if no event can be had for this copy
            self._copies.copy_in(target + at, self._address + start, piece.size)
            self._free_at[half] = self._copies.event()

    def read(self, source: int, array: npt.NDArray[Any]) -> None:
        """Copy from the GPU into a contiguous array, once everything asked for before is done."""
        target = array.reshape(-1).view(np.uint8)
        for at in range(0, target.size, self._half):
            piece = target[at : at + self._half]
            half, start = self._take()
            self._free_at[half] = self._everything
            self._copies.copy_out(self._address + start, source + at, piece.size)
            self._copies.event().sync()
            self._free_at[half] = None
            piece[:] = self._memory[start : start + piece.size]

    def _take(self) -> tuple[int, int]:
        """A half that the GPU is done with, and where it starts."""
        if not self._address:
            size = 2 * self._half
            self._address = self._copies.pinned(size)
            self._memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self._address))
        half, self._next = self._next, 1 - self._next
        event = self._free_at[half]
        if event is not None:
            event.sync()
        return half, half * self._half
