"""`Lending`: exchanges of vectors that processes of one host read where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

from ..host import Array
from .near import INLINE, Near, SentNote

if TYPE_CHECKING:
    from .mpi import MpiFabric


@final
class Lending:
    """See `fabric.Lends`."""

    def __init__(self, fabric: MpiFabric, near: Near):
        self._fabric, self._near = fabric, near

    def empty(self, nbytes: int) -> Array:
        """See `fabric.Lends.empty`."""
        return self._near.empty(nbytes)

    def settle(self, address: int) -> None:
        """See `fabric.Lends.settle`."""
        near = self._near
        if not near.is_read(address):
            self._fabric.watch_near(
                lambda: near.is_read(address), lambda: sorted(near.ended), "the end of what others read of a sum"
            )

    def lend(self, parts: Mapping[int, Array], called: str, *, stays: bool) -> MpiLoan | None:
        """See `fabric.Lends.lend`."""
        near, fabric = self._near, self._fabric
        if not near.processes.issuperset(parts):
            return None
        nbytes = next(iter(parts.values())).nbytes
        if nbytes > INLINE and not stays:
            return None
        blocks = {p: near.block_of(x) if x.nbytes > INLINE else None for p, x in parts.items()}
        if any(block is None and parts[p].nbytes > INLINE for p, block in blocks.items()):
            return None
        numbers, name = fabric.count(parts, called)
        try:
            for p, x in parts.items():
                near.tell(p, numbers[p], name, x.nbytes, x, blocks[p])
                fabric.sent += x.nbytes
        except OSError as error:
            raise fabric.cut_off(error) from None
        return MpiLoan(fabric, near, numbers, name)


@final
class MpiLoan:
    """See `fabric.Loan`."""

    def __init__(self, fabric: MpiFabric, near: Near, numbers: Mapping[int, int], name: bytes):
        self._fabric, self._near, self._numbers, self._name = fabric, near, numbers, name
        self._notes: dict[int, SentNote] = {}

    def arrived(self, sizes: Mapping[int, int]) -> dict[int, Array]:
        """See `fabric.Loan.arrived`."""
        fabric = self._fabric
        fabric.about(self._numbers, self._name)
        found = {}
        for p, nbytes in sizes.items():
            note = self._notes[p] = fabric.note(p, self._numbers[p], self._name, nbytes)
            found[p] = note.vector
        return found

    def end(self) -> None:
        """See `fabric.Loan.end`."""
        for p, note in self._notes.items():
            self._near.read(p, note)

    def abandon(self) -> None:
        """See `fabric.Loan.abandon`."""
        for p, number in self._numbers.items():
            if p not in self._notes:
                self._near.leave(p, number)
        self.end()
