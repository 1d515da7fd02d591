"""`Channel`: where a prepared collective exchanges the same vectors again and again, in memory that is used again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from ...ops.types import DType
from ..host import Array, address_of
from .fabric import Fabric, RepeatedFlight, prepared

_KNOWN = 4
"""Places of its vectors for which an exchange is prepared: inputs and results of a step take turns in a few."""


@final
class Channel:
    """An exchange of vectors of one dtype, in which the others send so many elements each.

    It can be begun again before it has ended: each flight has memory of its own.
    """

    def __init__(self, fabric: Fabric, sizes: Mapping[int, int], dtype: DType, called: str):
        self._fabric, self._called, self._idle = fabric, called, list[Coming]()
        self._sizes, self._dtype = sizes, dtype

    def take(self) -> Coming:
        """Return what is idle, to be begun."""
        return (
            self._idle.pop() if self._idle else Coming(self._fabric, self._sizes, self._dtype, self._called, self._idle)
        )


@final
class Coming:
    """Vectors in flight."""

    def __init__(self, fabric: Fabric, sizes: Mapping[int, int], dtype: DType, called: str, idle: list[Coming]):
        self._fabric, self._sizes, self._dtype, self._called, self._idle = fabric, sizes, dtype, called, idle
        self._own: dict[tuple[int, str], Array] = {}
        self._room: Mapping[int, Array] = {}
        self._known: dict[tuple[int, ...], RepeatedFlight] = {}  # by where its vectors stand
        self._flight: RepeatedFlight

    def _memory(self, process: int, use: str, size: int) -> Array:
        found = self._own.get((process, use))
        if found is None:
            found = self._own[process, use] = np.empty(size, self._dtype)
        return found

    def joined(self, process: int, matrices: Sequence[Array]) -> Array:
        """Return as a vector, row by row, what matrices have there; without a copy if there is one of them."""
        if len(matrices) == 1:
            return matrices[0].reshape(-1)
        vector = self._memory(process, "sent", sum([matrix.size for matrix in matrices]))
        np.concatenate(matrices, 1, out=vector.reshape(len(matrices[0]), -1))
        return vector

    def begin(self, sent: Mapping[int, Array], into: Sequence[Array] = ()) -> None:
        """Send these vectors, which must not be overwritten until the end. The first that comes is received `into` an
        array, if there is one that it fills."""
        room, left = {}, list(into)
        for process, size in self._sizes.items():
            whole = left and left[0].size == size and left[0].flags.c_contiguous
            room[process] = left.pop().reshape(-1) if whole else self._memory(process, "room", size)
        at = (*map(address_of, sent.values()), *map(address_of, room.values()))
        flight = self._known.get(at)
        if flight is None:
            if len(self._known) == _KNOWN:
                self._known.pop(next(iter(self._known))).free()
            flight = self._known[at] = prepared(self._fabric, sent, room, self._called)
        self._room, self._flight = room, flight
        self._flight.start(sent, room)

    def arrived(self) -> Mapping[int, Array]:
        """Wait for all of them, which stay until the end."""
        self._flight.wait()
        return self._room

    def end(self) -> None:
        """Let the next one have the room."""
        self._room = {}
        self._idle.append(self)

    def abandon(self) -> None:
        """Leave it: the room is that of what still comes."""
        self._flight.abandon()
