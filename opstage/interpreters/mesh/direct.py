"""`DirectSum`: a prepared sum of a compiled step whose notes machine code writes and reads.

It is for a rank of each process where all are of one host, and does what `Sum` does with the same names, numbers and
bytes. What it cannot do at once, such as to wait for long, is done by `Lending`, which goes on where it stopped.
"""

from __future__ import annotations

import os
from typing import Any, final

import numpy as np

from ..host import Array, address_of
from ..native import notes
from ..native.team import library_address
from .lending import Lending, MpiLoan
from .loans import lends
from .sums import Outs, Sum
from .tree import additions

_DTYPES = ("float32", "float64")


@final
class DirectSum:
    """The sum of one operand of a compiled step.

    begun   whether it is in flight
    """

    def __init__(self, sum_: Sum, lending: Lending, words: Array, operand: int, result: int):
        """`words` has the addresses of the operand and of the result at these positions."""
        fabric, near = lending.fabric, lending.near
        board = near.board
        assert board is not None
        self._sum, self._lending, self._near, self._board = sum_, lending, near, board
        (group,) = sum_.groups
        self._group, self._called = group, sum_.called
        self._peers = sorted(group.come)
        self.begun = False
        self._at, self._seen = 0, -1
        self._block = np.zeros(3, np.int64)
        ((own, _),) = group.own.items()
        pairs = additions(group.ranks, [(0, index) for index in range(group.ranks)])
        sums = np.zeros((len(pairs), notes.CHUNK), sum_.dtype)
        vectors = np.zeros(group.ranks + len(pairs), np.int64)
        vectors[group.ranks :] = [address_of(each) for each in sums]
        ordered = np.array(pairs, np.int64)
        name = np.frombuffer(fabric.name_of(sum_.called), np.uint8)
        w = self._words = np.zeros(notes.WORDS + notes.PEER * len(self._peers), np.int64)
        self._kept: list[Any] = [words, ordered, sums, vectors, name, fabric.counts]
        self._mapped: dict[int, Array] = {}
        w[notes.OPEN], w[notes.COUNTS] = address_of(board.usable), address_of(fabric.counts)
        w[notes.SENT], w[notes.WAITED] = address_of(fabric.counts[-1:]), address_of(fabric.counts[-2:])
        w[notes.CALLED], w[notes.SIZE] = address_of(name), sum_.nbytes
        w[notes.FROM], w[notes.INTO] = address_of(words[operand:]), address_of(words[result:])
        w[notes.OWN_BLOCK] = address_of(self._block)
        w[notes.SEND], w[notes.CLOCK] = map(library_address, ("send", "clock_gettime"))
        w[notes.PATIENCE] = notes.SPIN if board.places.processes <= (os.cpu_count() or 1) else notes.BRIEFLY
        w[notes.VECTORS], w[notes.ADDITIONS], w[notes.SUMS] = address_of(vectors), address_of(ordered), len(pairs)
        w[notes.OWN], w[notes.PEERS] = own, len(self._peers)
        places = board.places
        for i, process in enumerate(self._peers):
            p, place = self._of_peer(i), board.place_of(process)
            ((_, index),) = group.come[process]
            p[notes.PROCESS], p[notes.SOCKET], p[notes.ADDEND] = process, near.socket_of(process), index
            p[notes.RING], p[notes.WRITTEN] = board.own_at(places.ring(place)), address_of(board.written[place:])
            p[notes.TAKEN] = board.their_at(process, places.taken(board.place))
            p[notes.ASLEEP], p[notes.LENT] = board.their_at(process, 0), address_of(board.lent[place])
            p[notes.THEIR_RING] = board.their_at(process, places.ring(board.place))
            p[notes.OWN_TAKEN], p[notes.OWN_READ] = map(board.own_at, (places.taken(place), places.read(place)))
        self._values = w.data  # whose elements Python reads faster
        self._arguments = address_of(w)
        self._begin = notes.callable_of(notes.begin_kernel())
        self._end = notes.callable_of(notes.end_kernel(sum_.dtype.name))

    def _of_peer(self, i: int) -> Array:
        first = notes.WORDS + notes.PEER * i
        return self._words[first : first + notes.PEER]

    def begin(self, at: int) -> bool:
        """Send the operand, which stands in memory at an address if it is large; return whether it was sent."""
        fabric = self._lending.fabric
        if fabric.has_failed:
            return False
        if self._near.changes != self._seen or at != self._at:
            self._stand(at)
        self._begin(self._arguments)
        if not self._values[notes.DONE]:
            return False
        self.begun = True
        fabric.in_exchange(self._values[notes.WORDS + notes.EXCHANGE], self._called)
        return True

    def end(self) -> bool:
        """Write the sum, if what the others send comes at once; return whether it did."""
        self._end(self._arguments)
        if not self._values[notes.DONE]:
            return False
        self.begun = False
        return True

    def _stand(self, at: int) -> None:
        """Find the block of memory at an address, which the others map before a note names it."""
        block = self._near.block_at(at)
        if block is not None:
            for process in self._peers:
                self._lending.fabric.share(block, process)
        self._block[:] = (0, 0, 0) if block is None else (block.number, block.address, block.nbytes)
        self._at, self._seen = at, self._near.changes

    def finish(self, value: Array, outs: Outs) -> None:
        """Wait for what the others send, and write the sum. Raises the errors of `Fabric.exchange`."""
        loan = self._loan()
        self._sum.under_way(loan, value).end(outs)
        self.begun = False
        for i, process in enumerate(self._peers):
            block = loan.block_of(process)
            mapped = self._near.mapped(process, block) if block else None
            if mapped is not None:
                p = self._of_peer(i)
                p[notes.BLOCK_KNOWN], p[notes.BLOCK_AT], p[notes.BLOCK_BYTES] = block, address_of(mapped), len(mapped)
                self._mapped[process] = mapped

    def abandon(self) -> None:
        """Leave it, as a run does that ends before."""
        if self.begun:
            self.begun = False
            self._loan().abandon()

    def _loan(self) -> MpiLoan:
        fabric = self._lending.fabric
        numbers = {p: int(self._of_peer(i)[notes.EXCHANGE]) for i, p in enumerate(self._peers)}
        return MpiLoan(fabric, self._near, numbers, self._called, fabric.name_of(self._called))


def direct_sum(exchange: object, words: Array, operand: int, result: int, most: int | None = None) -> DirectSum | None:
    """Return a prepared exchange of at most so many bytes as one that machine code makes; None if it cannot, or cannot
    yet."""
    if not isinstance(exchange, Sum) or exchange.dtype.name not in _DTYPES:
        return None
    if most is not None and exchange.nbytes > most:
        return None
    lending = lends(exchange.fabric)
    if not isinstance(lending, Lending) or lending.near.board is None or len(exchange.groups) != 1:
        return None
    (group,) = exchange.groups
    one_each = len(group.own) == 1 and all(len(nodes) == 1 for nodes in group.come.values())
    if not (one_each and group.come and all(map(lending.near.board.has, group.come))):
        return None
    return DirectSum(exchange, lending, words, operand, result)


__all__ = ["DirectSum", "direct_sum"]
