"""`Scatter` and `Gather`: prepared exchanges of parts, for sums that ranks share out and for parts that they join.

As `Sum`, for compiled steps with ZeRO: no array is copied that can be sent or added where it is. Names, bytes and the
order of additions are those of `Bucket` and `Crossing`, which support any axis of a tensor on any interpreter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TypeAlias, final

import numpy as np
from typing_extensions import override

from ...ops.catalogue.collective import ALL_GATHER, REDUCE_SCATTER
from ...ops.types import DType
from ..host import Array, packed
from .coming import Channel, Coming
from .crossing import name_of
from .hosting import Hosting, RankGroup
from .sums import Outs, Sum, add_up
from .tree import covering, node

_Sent: TypeAlias = "tuple[RankGroup, Coming | None]"
"""A group, and its exchange in flight."""

_Rows: TypeAlias = "Sequence[Sequence[Array]]"
"""The members of each hosted rank as matrices, each row of which is a part."""


class _Exchange(ABC):
    """Members of one dtype that ranks exchange, of each of which a rank has a part of `sizes` elements.

    What is sent of a rank's row are its parts of all members, one after the other.

    called   the name of the exchange
    groups   the groups of ranks that have hosted ones
    """

    def __init__(self, hosting: Hosting, axis: str, sizes: Sequence[int], dtype: DType, called: str):
        self.fabric, self.groups = hosting.fabric, hosting.spread(axis)
        self.dtype, self.called, self.sizes = dtype, called, sizes
        self._count = len(hosting.ranks)
        self._channels = [Channel(self.fabric, self._elements(group), dtype, called) for group in self.groups]

    @abstractmethod
    def _incoming(self, group: RankGroup) -> dict[int, int]:
        """Return how many rows each other process sends."""

    def _rows(self, values: Sequence[Array], parts: int) -> _Rows:
        count = self._count
        return [[packed(x).reshape(parts, -1) for x in values[rank::count]] for rank in range(count)]

    def _elements(self, group: RankGroup) -> dict[int, int]:
        return {process: count * sum(self.sizes) for process, count in self._incoming(group).items()}


class _UnderWay:
    """Exchanged members in flight."""

    def __init__(self, exchange: _Exchange, rows: _Rows, begun: Sequence[_Sent]):
        self._rows, self._begun = rows, begun
        self._edges = [*pairwise(accumulate(exchange.sizes, initial=0))]

    def abandon(self) -> None:
        """Leave it, as a run does that ends before."""
        for _, coming in self._begun:
            if coming is not None:
                coming.abandon()

    def _arrived(self) -> Iterator[tuple[RankGroup, Mapping[int, Array]]]:
        """Yield each group, with what the other processes sent, once all of it is there."""
        for group, coming in self._begun:
            yield group, {} if coming is None else coming.arrived()
            if coming is not None:
                coming.end()


@final
class Scatter(_Exchange):
    """Sums along a mesh axis of which each rank is given a part: reduce_scatter along the first axis."""

    @override
    def _incoming(self, group: RankGroup) -> dict[int, int]:
        return {process: len(group.own) * len(covering(*bounds)) for process, bounds in group.others.items()}

    def begin(self, values: Sequence[Array], into: Sequence[Array] = ()) -> ScatterUnderWay:
        """Send the others' parts of the hosted ranks' values, which must not be overwritten until the end."""
        rows = self._rows(values, self.groups[0].ranks)
        begun = []
        for group, channel in zip(self.groups, self._channels):
            leaves = {index: rows[number] for index, number in group.own.items()}
            coming = channel.take() if group.others else None
            if coming is not None:
                join = coming.joined
                coming.begin({p: self._nodes(partial(join, p), group, leaves, *b) for p, b in group.others.items()})
            begun.append((group, coming))
        return ScatterUnderWay(self, rows, begun)

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
class ScatterUnderWay(_UnderWay):
    """Sums in flight of which each rank is given a part."""

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
                        add_up(group.ranks, known, flat(out[number]))


@final
class Gather(_Exchange):
    """Parts joined along a mesh axis: all_gather along the first axis."""

    @override
    def _incoming(self, group: RankGroup) -> dict[int, int]:
        return {process: last - first for process, (first, last) in group.others.items()}

    def begin(self, values: Sequence[Array], into: Sequence[Array] = ()) -> GatherUnderWay:
        """Send the hosted ranks' parts, which must not be overwritten until the end."""
        rows = self._rows(values, 1)
        begun = []
        for group, channel in zip(self.groups, self._channels):
            coming = channel.take() if group.others else None
            if coming is not None:
                own = [coming.joined(number, rows[number]) for number in group.own.values()]
                sent = own[0] if len(own) == 1 else np.concatenate(own)
                coming.begin(dict.fromkeys(group.others, sent))
            begun.append((group, coming))
        return GatherUnderWay(self, rows, begun)


@final
class GatherUnderWay(_UnderWay):
    """Parts in flight that each rank joins."""

    def end(self, outs: Outs) -> None:
        """Wait for the others' parts, and write the joined members to their arrays in `outs`."""
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
    """Return the prepared reduce_scatter of members of so many elements."""
    called = name_of(REDUCE_SCATTER, axis, (sum(sizes),), dtype) + program
    ranks = hosting.mesh.size(axis)
    return Scatter(hosting, axis, [size // ranks for size in sizes], dtype, called)


def gather(hosting: Hosting, axis: str, sizes: Sequence[int], dtype: DType, program: str) -> Gather:
    """Return the prepared all_gather of parts of so many elements."""
    return Gather(hosting, axis, sizes, dtype, name_of(ALL_GATHER, axis, (sum(sizes),), dtype) + program)
