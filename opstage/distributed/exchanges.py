"""Prepared exchanges of arrays for compiled steps: sums, scattered sums and gathers, on host memory.

A compiled step repeats the same few collectives, so their messages, names and order of additions are computed once.
Order, names and bytes are those of `Crossing`, which supports any collective on any interpreter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias, final

import numpy as np
from typing_extensions import override

from ..ops.collective import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from ..ops.dims import prod
from ..ops.host_arrays import Array, address_of, packed
from ..ops.types import DType
from .collectives import SMALL, additions, covering, exchange_name, node
from .processes import Hosting, RankGroup
from .transport import RepeatedExchange, Transport, prepared

# Pending vectors ----------------------------------------------------------------------------------------------------

_KNOWN = 4
"""Places of its vectors for which an exchange is prepared: inputs and results of a step take turns in a few."""


@final
class Channel:
    """An exchange of vectors of one dtype, in which the others send this number of elements each.

    It can be begun again before it has ended: each pending one has its own memory.
    """

    def __init__(self, transport: Transport, sizes: Mapping[int, int], dtype: DType, called: str):
        self._transport, self._called, self._idle = transport, called, list[PendingVectors]()
        self._sizes, self._dtype = sizes, dtype

    def take(self) -> PendingVectors:
        """Return what is idle, to be begun."""
        return (
            self._idle.pop()
            if self._idle
            else PendingVectors(self._transport, self._sizes, self._dtype, self._called, self._idle)
        )


@final
class PendingVectors:
    """Pending vectors."""

    def __init__(
        self, transport: Transport, sizes: Mapping[int, int], dtype: DType, called: str, idle: list[PendingVectors]
    ):
        self._transport, self._sizes, self._dtype, self._called, self._idle = transport, sizes, dtype, called, idle
        self._own: dict[tuple[int, str], Array] = {}
        self._room: Mapping[int, Array] = {}
        self._known: dict[tuple[int, ...], RepeatedExchange] = {}  # by where its vectors stand
        self._pending: RepeatedExchange

    def _memory(self, process: int, use: str, size: int) -> Array:
        found = self._own.get((process, use))
        if found is None:
            found = self._own[process, use] = np.empty(size, self._dtype)
        return found

    def pack_rows(self, process: int, matrices: Sequence[Array]) -> Array:
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
        pending = self._known.get(at)
        if pending is None:
            if len(self._known) == _KNOWN:
                self._known.pop(next(iter(self._known))).free()
            pending = self._known[at] = prepared(self._transport, sent, room, self._called)
        self._room, self._pending = room, pending
        self._pending.start(sent, room)

    def arrived(self) -> Mapping[int, Array]:
        """Wait for all of them, which stay until the end."""
        self._pending.wait()
        return self._room

    def end(self) -> None:
        """Let the next one have the room."""
        self._room = {}
        self._idle.append(self)

    def abandon(self) -> None:
        """Leave it: the room is that of what still comes."""
        self._pending.abandon()


# Sums -----------------------------------------------------------------------------------------------------------------

At = tuple[int, int]
"""A node of the tree: its level and index."""

Outs: TypeAlias = "Sequence[Mapping[int, Array]]"
"""Where the results of an exchange are written: of each member, by rank number."""


class _SumGroup(NamedTuple):
    """A group of ranks that sum: the nodes that are sent, those that each process sends, and how."""

    group: RankGroup
    nodes: Sequence[At]
    come: Mapping[int, Sequence[At]]
    channel: Channel


class _SumSent(NamedTuple):
    """A group's part of a pending sum: the exchange, and the locally known nodes."""

    group: _SumGroup
    pending: PendingVectors
    known: dict[At, Array]


@final
class PendingSum:
    """A pending sum."""

    def __init__(self, shape: tuple[int, ...], dtype: DType, groups: Sequence[_SumSent]):
        self._shape, self._dtype, self._groups = shape, dtype, groups

    def end(self, outs: Outs) -> None:
        """Wait for the others' values, and write the ranks' sums to the arrays of the only member."""
        (out,) = outs
        for sent in self._groups:
            (group, _, come, _), known = sent.group, sent.known
            places = [out[number] for number in group.own.values() if number in out]
            for process, vector in sent.pending.arrived().items():
                known.update(zip(come[process], vector.reshape(-1, *self._shape)))
            if places:
                sum_nodes(group.ranks, known, places[0])
            for place in places[1:]:
                np.copyto(place, places[0])
            sent.pending.end()

    def abandon(self) -> None:
        """Leave it, as a run does that ends before."""
        for sent in self._groups:
            sent.pending.abandon()


def sum_nodes(ranks: int, known: Mapping[At, Array], out: Array) -> None:
    """Write the sum over `ranks` ranks to `out`, from at least two nodes that cover them."""
    values = [*known.values()]
    *before, (a, b) = _additions(ranks, tuple(known))
    with np.errstate(all="ignore"):  # infinity less infinity is nan, without a warning
        for left, right in before:
            values.append(np.add(values[left], values[right]))
        np.add(values[a], values[b], out=out)


_additions = lru_cache(1024)(additions)


@final
class Sum:
    """The sum along a mesh axis of tensors of one type, one per rank.

    called   the name of its exchange
    groups   the groups of ranks that have hosted ones
    """

    def __init__(self, hosting: Hosting, axis: str, shape: tuple[int, ...], dtype: DType, program: str):
        self.transport = hosting.transport
        self._shape, self.dtype, self._nbytes = shape, dtype, int(prod(shape)) * dtype.itemsize
        self.called = exchange_name(ALL_REDUCE, axis, shape, dtype) + program
        self.groups = hosting.spread(axis)
        self._groups = [self._nodes(group) for group in self.groups]

    def _nodes(self, group: RankGroup) -> _SumGroup:
        come = {process: covering(*bounds) for process, bounds in group.others.items()}
        size = self._nbytes // self.dtype.itemsize
        sizes = {process: len(nodes) * size for process, nodes in come.items()}
        channel = Channel(self.transport, sizes, self.dtype, self.called)
        nodes = covering(min(group.own), max(group.own) + 1)
        return _SumGroup(group, nodes, come, channel)

    @property
    def sent_whole(self) -> bool:
        """Return whether every process sends all of its addends to every other; otherwise it cannot be computed
        here."""
        others = [len(group.others) for group in self.groups]
        return min(others) == max(others) == 1 or (min(others) > 0 and self._nbytes <= SMALL)

    def begin(self, values: Sequence[Array], into: Sequence[Array] = ()) -> PendingSum:
        """Send the hosted ranks' values, which must not be overwritten until the end. What comes may be received
        `into` the array of the only result."""
        if len(into) != 1 or len(self._groups) != 1 or into[0].nbytes != self._nbytes:
            into = ()
        return PendingSum(self._shape, self.dtype, [self._begun(group, values, into) for group in self._groups])

    def _begun(self, sums: _SumGroup, values: Sequence[Array], into: Sequence[Array]) -> _SumSent:
        (ranks, own, _), nodes, come, channel = sums
        known = leaves = {(0, index): values[number] for index, number in own.items()}
        if len(leaves) > 1:
            with np.errstate(all="ignore"):
                known = {at: node(ranks, *at, lambda *at: leaves.get(at), np.add) for at in nodes}
        vectors = [packed(known[at]).reshape(-1) for at in nodes]
        sent = vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
        pending = channel.take()
        pending.begin(dict.fromkeys(come, sent), into)
        return _SumSent(sums, pending, known)


# Parts of sums, and gathers -------------------------------------------------------------------------------------------

_Sent: TypeAlias = "tuple[RankGroup, PendingVectors | None]"
"""A group, and its pending exchange."""

_Rows: TypeAlias = "Sequence[Sequence[Array]]"
"""The members of each hosted rank as matrices, each row of which is a part."""


class _Exchange(ABC):
    """Members of one dtype that ranks exchange, of each of which a rank has a part of `sizes` elements.

    What is sent of a rank's row are its parts of all members, one after the other.

    called   the name of the exchange
    groups   the groups of ranks that have hosted ones
    """

    def __init__(self, hosting: Hosting, axis: str, sizes: Sequence[int], dtype: DType, called: str):
        self.transport, self.groups = hosting.transport, hosting.spread(axis)
        self.dtype, self.called, self.sizes = dtype, called, sizes
        self._count = len(hosting.ranks)
        self._channels = [Channel(self.transport, self._elements(group), dtype, called) for group in self.groups]

    @abstractmethod
    def _incoming(self, group: RankGroup) -> dict[int, int]:
        """Return how many rows each other process sends."""

    def _rows(self, values: Sequence[Array], parts: int) -> _Rows:
        count = self._count
        return [[packed(x).reshape(parts, -1) for x in values[rank::count]] for rank in range(count)]

    def _elements(self, group: RankGroup) -> dict[int, int]:
        return {process: count * sum(self.sizes) for process, count in self._incoming(group).items()}


class _PendingParts:
    """Pending members of an exchange."""

    def __init__(self, exchange: _Exchange, rows: _Rows, begun: Sequence[_Sent]):
        self._rows, self._begun = rows, begun
        self._edges = [*pairwise(accumulate(exchange.sizes, initial=0))]

    def abandon(self) -> None:
        """Leave it, as a run does that ends before."""
        for _, pending in self._begun:
            if pending is not None:
                pending.abandon()

    def _arrived(self) -> Iterator[tuple[RankGroup, Mapping[int, Array]]]:
        """Yield each group, with what the other processes sent, once all of it is there."""
        for group, pending in self._begun:
            yield group, {} if pending is None else pending.arrived()
            if pending is not None:
                pending.end()


@final
class Scatter(_Exchange):
    """Sums along a mesh axis of which each rank is given a part: reduce_scatter along the first axis."""

    @override
    def _incoming(self, group: RankGroup) -> dict[int, int]:
        return {process: len(group.own) * len(covering(*bounds)) for process, bounds in group.others.items()}

    def begin(self, values: Sequence[Array], into: Sequence[Array] = ()) -> PendingScatter:
        """Send the others' parts of the hosted ranks' values, which must not be overwritten until the end."""
        rows = self._rows(values, self.groups[0].ranks)
        begun = []
        for group, channel in zip(self.groups, self._channels):
            leaves = {index: rows[number] for index, number in group.own.items()}
            pending = channel.take() if group.others else None
            if pending is not None:
                join = pending.pack_rows
                pending.begin({p: self._nodes(partial(join, p), group, leaves, *b) for p, b in group.others.items()})
            begun.append((group, pending))
        return PendingScatter(self, rows, begun)

    def _nodes(
        self,
        join: Callable[[Sequence[Array]], Array],
        group: RankGroup,
        leaves: Mapping[int, Sequence[Array]],
        first: int,
        last: int,
    ) -> Array:
        """Return the sums over the hosted ranks of the parts first … last - 1: of each, the nodes that cover them."""
        if len(leaves) == 1:
            (members,) = leaves.values()
            return join([member[first:last] for member in members])
        cover = covering(min(leaves), max(leaves) + 1)
        sums = []
        with np.errstate(all="ignore"):  # infinity less infinity is nan, without a warning
            for number in range(len(self.sizes)):
                known = {(0, index): rows[number][first:last] for index, rows in leaves.items()}
                nodes = [node(group.ranks, *at, lambda *at, known=known: known.get(at), np.add) for at in cover]
                sums.append(np.stack(nodes, 1).reshape(len(cover) * (last - first), -1))
        return join(sums)


@final
class PendingScatter(_PendingParts):
    """Pending sums of which each rank is given a part."""

    def end(self, outs: Outs) -> None:
        """Wait for the others' sums, and write each rank's part of each member to its array in `outs`."""
        for group, room in self._arrived():
            for place, (index, number) in enumerate(group.own.items()):
                come: dict[tuple[int, int], Array] = {}
                for process, vector in room.items():
                    cover = covering(*group.others[process])
                    come.update(zip(cover, vector.reshape(len(group.own), len(cover), -1)[place]))
                for member, ((first, last), out) in enumerate(zip(self._edges, outs)):
                    if number in out:
                        known = {(0, i): self._rows[n][member][index] for i, n in group.own.items()}
                        known.update((at, row[first:last]) for at, row in come.items())
                        sum_nodes(group.ranks, known, flat(out[number]))


@final
class Gather(_Exchange):
    """Parts pack_rows along a mesh axis: all_gather along the first axis."""

    @override
    def _incoming(self, group: RankGroup) -> dict[int, int]:
        return {process: last - first for process, (first, last) in group.others.items()}

    def begin(self, values: Sequence[Array], into: Sequence[Array] = ()) -> PendingGather:
        """Send the hosted ranks' parts, which must not be overwritten until the end."""
        rows = self._rows(values, 1)
        begun = []
        for group, channel in zip(self.groups, self._channels):
            pending = channel.take() if group.others else None
            if pending is not None:
                own = [pending.pack_rows(number, rows[number]) for number in group.own.values()]
                sent = own[0] if len(own) == 1 else np.concatenate(own)
                pending.begin(dict.fromkeys(group.others, sent))
            begun.append((group, pending))
        return PendingGather(self, rows, begun)


@final
class PendingGather(_PendingParts):
    """Pending parts that each rank joins."""

    def end(self, outs: Outs) -> None:
        """Wait for the others' parts, and write the pack_rows members to their arrays in `outs`."""
        for group, room in self._arrived():
            for member, ((first, last), out) in enumerate(zip(self._edges, outs)):
                for number in group.own.values():
                    if number not in out:
                        continue
                    whole = flat(out[number]).reshape(group.ranks, last - first)
                    for index, n in group.own.items():
                        whole[index] = self._rows[n][member]
                    for process, vector in room.items():
                        begin, end = group.others[process]
                        whole[begin:end] = vector.reshape(end - begin, -1)[:, first:last]


PreparedExchange: TypeAlias = "Sum | Scatter | Gather"


def flat(place: Array) -> Array:
    """Return a packed array as a vector in the same memory."""
    assert place.flags.c_contiguous
    return place.reshape(-1)


def scatter(hosting: Hosting, axis: str, sizes: Sequence[int], dtype: DType, program: str) -> Scatter:
    """Return the prepared reduce_scatter of members of these numbers of elements."""
    called = exchange_name(REDUCE_SCATTER, axis, (sum(sizes),), dtype) + program
    ranks = hosting.mesh.size(axis)
    return Scatter(hosting, axis, [size // ranks for size in sizes], dtype, called)


def gather(hosting: Hosting, axis: str, sizes: Sequence[int], dtype: DType, program: str) -> Gather:
    """Return the prepared all_gather of parts of these numbers of elements."""
    return Gather(hosting, axis, sizes, dtype, exchange_name(ALL_GATHER, axis, (sum(sizes),), dtype) + program)
