"""`Lending`: exchanges of vectors that processes of one host read where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

from ..host import Array
from .near import Near, SentNote

if TYPE_CHECKING:
    from .mpi import MpiFabric


@final
class Lending:
    """See `loans.Lends`."""

    def __init__(self, fabric: MpiFabric, near: Near):
        self.fabric, self.near = fabric, near

    def empty(self, nbytes: int) -> Array:
        """See `loans.Lends.empty`."""
        return self.near.empty(nbytes)

    def settle(self, address: int) -> None:
        """See `loans.Lends.settle`."""
        near = self.near
        if not near.is_read(address):
            self.fabric.watch_near(
                lambda: near.is_read(address), lambda: sorted(near.ended), "the end of what others read of a sum"
            )

    def lend(self, parts: Mapping[int, Array], called: str, *, stays: bool) -> MpiLoan | None:
        """See `loans.Lends.lend`."""
        if not self.near.processes.issuperset(parts):
            return None
        numbers, name = self.fabric.count(parts, called)
        self.fabric.tell(parts, numbers, name, stays=stays)
        return MpiLoan(self.fabric, self.near, numbers, called, name)


@final
class MpiLoan:
    """See `loans.Loan`."""

    def __init__(self, fabric: MpiFabric, near: Near, numbers: Mapping[int, int], called: str, name: bytes):
        self._fabric, self._near, self._numbers, self._called, self._name = fabric, near, numbers, called, name
        self._notes: dict[int, SentNote] = {}

    def arrived(self, sizes: Mapping[int, int]) -> dict[int, Array]:
        """See `loans.Loan.arrived`."""
        fabric = self._fabric
        fabric.about(self._numbers, self._called)
        found = {}
        for p, nbytes in sizes.items():
            note = self._notes[p] = fabric.note(p, self._numbers[p], self._name, nbytes)
            found[p] = note.vector
        return found

    def block_of(self, process: int) -> int:
        """Return the block in which what arrived from a process stands; 0 if it came within a note."""
        return self._notes[process].block

    def end(self) -> None:
        """See `loans.Loan.end`."""
        for p, note in self._notes.items():
            self._fabric.release(p, note)

    def abandon(self) -> None:
        """See `loans.Loan.abandon`."""
        for p, number in self._numbers.items():
            if p not in self._notes:
                self._near.leave(p, number)
        self.end()
