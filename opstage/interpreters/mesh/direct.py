"""`DirectExchange`: a prepared exchange of a compiled step whose notes machine code writes and reads.

It is for a rank of each process where all are of one host, and does what `Sum`, `Scatter` or `Gather` does with the
same names, numbers and bytes. What it cannot do at once, such as to wait for long, is done by `Lending`, which goes on
where it stopped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ..host import Array, address_of
from ..native import notes
from ..native.team import library_address
from .lending import Lending, MpiLoan
from .loans import lends
from .parts import Gather, PreparedExchange, Scatter
from .sums import Outs, Sum
from .tree import additions

_DTYPES = ("float32", "float64")
"""Those whose sums machine code makes."""


@final
class DirectExchange:
    """The exchange of the operands of a compiled step.

    begun   whether it is in flight
    """

    def __init__(
        self,
        exchange: PreparedExchange,
        lending: Lending,
        words: Array,
        operands: Sequence[int],
        results: Sequence[int],
    ):
        """`words` has the addresses of the operands and of the results at these positions."""
        fabric, near = lending.fabric, lending.near
        board = near.board
        assert board is not None
        self._exchange, self._lending, self._near, self._board = exchange, lending, near, board
        (group,) = exchange.groups
        self._called = exchange.called
        self._peers = sorted(group.others)
        self.begun = False
        self._at, self._seen = 0, -1
        self._block = np.zeros(3, np.int64)
        (own,) = group.own
        pairs = [] if isinstance(exchange, Gather) else additions(group.ranks, [(0, i) for i in range(group.ranks)])
        sums = np.zeros((len(pairs), notes.CHUNK), exchange.dtype)
        vectors = np.zeros(group.ranks + len(pairs), np.int64)
        vectors[group.ranks :] = [address_of(each) for each in sums]
        ordered = np.array(pairs, np.int64)
        name = np.frombuffer(fabric.name_of(exchange.called), np.uint8)
        members = exchange.members
        count = notes.WORDS + notes.PEER * len(self._peers) + notes.MEMBER * len(members)
        w = self._words = np.zeros(count, np.int64)
        self._kept: list[Any] = [words, ordered, sums, vectors, name, fabric.counts]
        self._mapped: dict[int, Array] = {}
        w[notes.OPEN], w[notes.COUNTS] = address_of(board.usable), address_of(fabric.counts)
        w[notes.SENT], w[notes.WAITED] = address_of(fabric.counts[-1:]), address_of(fabric.counts[-2:])
        w[notes.CALLED], w[notes.SIZE] = address_of(name), sum(each.nbytes for each in members)
        w[notes.OWN_BLOCK] = address_of(self._block)
        w[notes.SEND], w[notes.CLOCK], w[notes.COPY] = map(library_address, ("send", "clock_gettime", "memcpy"))
        w[notes.PATIENCE] = notes.SPIN if board.places.processes <= (os.cpu_count() or 1) else notes.BRIEFLY
        w[notes.VECTORS], w[notes.ADDITIONS], w[notes.SUMS] = address_of(vectors), address_of(ordered), len(pairs)
        w[notes.OWN], w[notes.PEERS], w[notes.MEMBERS] = own, len(self._peers), len(members)
        places = board.places
        for i, process in enumerate(self._peers):
            p, place = self._of_peer(i), board.place_of(process)
            p[notes.INDEX], _ = group.others[process]
            p[notes.PROCESS], p[notes.SOCKET] = process, near.socket_of(process)
            p[notes.RING], p[notes.WRITTEN] = board.own_at(places.ring(place)), address_of(board.written[place:])
            p[notes.TAKEN] = board.their_at(process, places.taken(board.place))
            p[notes.ASLEEP], p[notes.LENT] = board.their_at(process, 0), address_of(board.lent[place])
            p[notes.THEIR_RING] = board.their_at(process, places.ring(board.place))
            p[notes.OWN_TAKEN], p[notes.OWN_READ] = map(board.own_at, (places.taken(place), places.read(place)))
            p[notes.LAST_TAKEN] = address_of(board.taken[place])
        of_members = w[count - notes.MEMBER * len(members) :].reshape(-1, notes.MEMBER)
        for q, member, operand, result in zip(of_members, members, operands, results, strict=True):
            q[notes.FROM], q[notes.INTO] = address_of(words[operand:]), address_of(words[result:])
            q[notes.LENGTH], q[notes.STRIDE] = member
        self._values = w.data  # whose elements Python reads faster
        self._arguments = address_of(w)
        end = notes.sum_kernel(exchange.dtype.name) if pairs else notes.join_kernel()
        self._begin, self._end = notes.callable_of(notes.begin_kernel()), notes.callable_of(end)

    def _of_peer(self, i: int) -> Array:
        first = notes.WORDS + notes.PEER * i
        return self._words[first : first + notes.PEER]

    def begin(self, at: int) -> bool:
        """Send the operands, which stand in memory at an address if they are large; return whether they were sent."""
        fabric = self._lending.fabric
        if fabric.has_failed:
            return False
        if self._near.changes != self._seen or at != self._at:
            self._stand(at)
        self.begun = True  # before, for an interrupt may come as soon as it is
        self._begin(self._arguments)
        if not self._values[notes.DONE]:
            self.begun = False
            return False
        fabric.in_exchange(self._values[notes.WORDS + notes.EXCHANGE], self._called)
        return True

    def end(self) -> bool:
        """Write the results, if what the others send comes at once; return whether it did."""
        taken = self._near.notes  # by Python, while it waited for others; machine code would wait for them in vain
        if taken and not taken.keys().isdisjoint(self._numbers().items()):
            return False
        self._end(self._arguments)
        if not self._values[notes.DONE]:
            return False
        self.begun = False
        return True

    def _stand(self, at: int) -> None:
        """Find the block of memory at an address, which the others map before a note names it."""
        fabric, block = self._lending.fabric, self._near.block_at(at)
        if block is not None:
            fabric.in_exchange(1 + max([int(fabric.counts[process]) for process in self._peers]), self._called)
            for process in self._peers:
                fabric.share(block, process)
        self._block[:] = (0, 0, 0) if block is None else (block.number, block.address, block.nbytes)
        self._at, self._seen = at, self._near.changes

    def finish(self, values: Sequence[Array], outs: Outs) -> None:
        """Wait for what the others send, and write the results. Raises the errors of `Fabric.exchange`."""
        loan = self._loan()
        self._exchange.under_way(loan, values).end(outs)
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

    def _numbers(self) -> dict[int, int]:
        """Return the numbers of the exchange with each of the others."""
        return {p: int(self._of_peer(i)[notes.EXCHANGE]) for i, p in enumerate(self._peers)}

    def _loan(self) -> MpiLoan:
        fabric = self._lending.fabric
        return MpiLoan(fabric, self._near, self._numbers(), self._called, fabric.name_of(self._called))


def direct_exchange(
    exchange: PreparedExchange, words: Array, operands: Sequence[int], results: Sequence[int], most: int | None = None
) -> DirectExchange | None:
    """Return a prepared exchange of at most so many bytes as one that machine code makes; None if it cannot, or cannot
    yet."""
    nbytes = sum(each.nbytes for each in exchange.members)
    if (most is not None and nbytes > most) or (nbytes > notes.INLINE and len(exchange.members) > notes.MOST_PIECES):
        return None
    if isinstance(exchange, (Sum, Scatter)) and exchange.dtype.name not in _DTYPES:
        return None
    lending = lends(exchange.fabric)
    if not isinstance(lending, Lending) or lending.near.board is None or len(exchange.groups) != 1:
        return None
    (group,) = exchange.groups
    one_each = len(group.own) == 1 and all(last - first == 1 for first, last in group.others.values())
    if not (one_each and group.others and all(map(lending.near.board.has, group.others))):
        return None
    return DirectExchange(exchange, lending, words, operands, results)


__all__ = ["DirectExchange", "direct_exchange"]
