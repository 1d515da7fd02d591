"""`MpiFlight`: an exchange in flight over MPI."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..host import Array
from ..native.notes import NAME

if TYPE_CHECKING:
    from .mpi import MpiFabric

HEADER = struct.Struct(f"<qq{NAME}s")
"""The header of a vector from another host: the number of the exchange, the vector's bytes, and the name."""


def flat(x: Array) -> Array:
    """Return the bytes of a packed array."""
    return x.reshape(-1).view(np.uint8)


def text_of(name: bytes) -> str:
    return name.rstrip(b"\0").decode(errors="replace")


def nothing() -> None:
    """Do nothing: the default end of an exchange."""


class MpiFlight(NamedTuple):
    """An exchange in flight.

    numbers of this process's exchanges with each other one, what it is called, and its `name` as it is sent
    heads   the requests for the headers of processes of other hosts, with their buffers
    rest    all other requests; `statuses` has what is said of incoming vectors
    arrays  kept while they are sent; `over` is called at the end
    """

    fabric: MpiFabric
    numbers: Mapping[int, int]
    called: str
    name: bytes
    heads: Mapping[int, tuple[Any, bytearray]]
    rest: Mapping[int, Any]
    statuses: Mapping[int, Any]
    parts: Mapping[int, Array]
    room: Mapping[int, Array]
    over: Callable[[], None]

    def wait(self) -> None:
        """See `Flight.wait`."""
        self.fabric.land(self)
        self.over()
