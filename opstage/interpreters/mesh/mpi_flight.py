"""`MpiFlight`: an exchange over MPI, which can be made again and again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

from ..host import Array

if TYPE_CHECKING:
    from .mpi import MpiFabric


@final
class MpiFlight:
    """An exchange by persistent requests: `start` makes it, and again once it has ended.

    number  of the exchange that is in flight
    tag     of its messages
    once    whether it ends for good
    """

    def __init__(self, fabric: MpiFabric, parts: Mapping[int, Array], called: str):
        self._fabric = fabric
        self.called, self.number, self.tag, self.once = called, 0, -1, False
        self._sent = sum([part.nbytes for part in parts.values()])
        self._receives: list[tuple[int, int, Any]] = []  # of each process its bytes
        self._sends: list[Any] = []
        self._every: list[Any] = []
        self._kept: object = None  # while it is in flight

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array]) -> None:
        """Make it, with arrays that stand where those did that it was prepared with."""
        fabric, self._kept = self._fabric, (parts, room)
        tag = fabric.begin(self)
        if tag != self.tag:
            self.free()
            self.tag = tag
            self._receives = [(p, out.nbytes, fabric.prepare_receive(out, p)) for p, out in room.items()]
            self._sends = [fabric.prepare_send(part, p, tag) for p, part in parts.items()]
            self._every = [*[request for _, _, request in self._receives], *self._sends]
        fabric.start_all(self._every, self._sent)

    def wait(self) -> None:
        """See `Flight.wait`."""
        self._fabric.land(self, self._receives, self._sends)
        self._kept = None
        if self.once:
            self.free()

    def abandon(self) -> None:
        """See `Flight.abandon`."""
        self._fabric.abandoned.append(self)

    @property
    def over(self) -> bool:
        """Whether nothing of it is under way any more, as of one that is abandoned."""
        return all(request.Test() for request in self._every)

    def free(self) -> None:
        """Drop the requests, none of which is under way."""
        every, self._every = self._every, []
        for request in every:
            request.Free()

    def __del__(self) -> None:
        with suppress(Exception):  # MPI may have ended
            self.free()
