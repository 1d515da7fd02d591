"""`Loan`: an exchange of vectors that are read where they stand, if all who take part are processes of one host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, final

import numpy as np

from ..host import Array
from .fabric import Fabric, Flight
from .mpi_flight import flat


class Loan(Protocol):
    """An exchange of vectors in flight."""

    def arrived(self, sizes: Mapping[int, int]) -> Mapping[int, Array]:
        """Wait for the vectors of the others, of so many bytes each; return their bytes, which must only be read.
        Raises the errors of `Fabric.exchange`."""
        ...

    def end(self) -> None:
        """Say that what arrived has been read."""
        ...

    def abandon(self) -> None:
        """Say that it will not be read, arrived or not."""
        ...


class Lends(Protocol):
    """Memory that processes of one host read where it stands."""

    def empty(self, nbytes: int) -> Array:
        """Return memory that others can read, page-aligned. Raises OutOfMemoryError."""
        ...

    def settle(self, address: int) -> None:
        """Wait until the others have read all that was lent of the memory at an address. Raises the errors of
        `Fabric.exchange`."""
        ...

    def lend(self, parts: Mapping[int, Array], called: str, *, stays: bool) -> Loan | None:
        """Do what the function `lend` does, or return None if another process is on another host."""
        ...


def lends(fabric: Fabric) -> Lends | None:
    """Return how the processes of this host lend each other memory, or None."""
    found: Lends | None = getattr(fabric, "lending", None)
    return found


def lend(fabric: Fabric, parts: Mapping[int, Array], sizes: Mapping[int, int], called: str, *, stays: bool) -> Loan:
    """Start an exchange in which the others send vectors of so many bytes; see `Fabric.start`.

    Vectors in memory of `Lends.empty` are read there, and must not be overwritten until it is settled. `stays` says
    that they are not; others are copied.
    """
    lending = lends(fabric)
    found = None if lending is None else lending.lend(parts, called, stays=stays)
    if found is not None:
        return found
    dtype = next(iter(parts.values())).dtype
    room = {process: np.empty(nbytes // dtype.itemsize, dtype) for process, nbytes in sizes.items()}
    return _Received(fabric.start(parts, room, called), room)


@final
class _Received(NamedTuple):
    """An exchange of vectors that are received in memory of this process."""

    flight: Flight
    room: Mapping[int, Array]

    def arrived(self, sizes: Mapping[int, int]) -> Mapping[int, Array]:
        """See `Loan.arrived`."""
        self.flight.wait()
        return {process: flat(each) for process, each in self.room.items()}

    def end(self) -> None:
        """Do nothing, since nobody waits for it."""

    def abandon(self) -> None:
        """Do nothing, since what comes is for memory of its own."""
