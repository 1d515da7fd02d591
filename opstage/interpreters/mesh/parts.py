"""`Scatter` and `Gather`: prepared exchanges of parts, for sums that ranks share out and for parts that they join.

As `Sum`, for compiled steps with ZeRO: no array is copied that can be sent or added where it is. Names, bytes and the
order of additions are those of `Bucket` and `Crossing`, which support any axis of a tensor on any interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

import numpy as np

from ...ops.catalogue.collective import ALL_GATHER, REDUCE_SCATTER
from ...ops.types import DType
from ..host import Array, packed
from .crossing import name_of
from .hosting import Hosting
from .loans import Loan, lend
from .sums import Outs, add_up
from .tree import covering, node


class _PartsGroup(NamedTuple):
    """A group of ranks, as seen by this process.

    ranks   the size of the group; `own` maps the index of each hosted rank to its number
    others  the first index of each other process's ranks, and the one after its last
    """

    ranks: int
    own: Mapping[int, int]
    others: Mapping[int, tuple[int, int]]


def _groups(hosting: Hosting, axis: str) -> list[_PartsGroup]:
    """Return the groups along an axis that have hosted ranks, in one order on all processes."""
    made, here = [], hosting.ranks
    for group in sorted({hosting.mesh.group(rank, axis) for rank in here}):
        spread: dict[int, list[int]] = {}
        for index, rank in enumerate(group):
            spread.setdefault(rank // len(here), []).append(index)
        own = {index: group[index] - here[0] for index in spread.pop(hosting.fabric.process)}
        made.append(_PartsGroup(len(group), own, {p: (indices[0], indices[-1] + 1) for p, indices in spread.items()}))
    return made


_Sent: TypeAlias = "tuple[_PartsGroup, Loan | None, Mapping[int, int]]"
"""A group, its exchange in flight, and the bytes that each other process sends."""


class _Exchange:
    """Members of one dtype that ranks exchange, of each of which a rank has a part of `sizes` elements.

    A row of a rank is its parts of all members, one after the other; `edges` has where each begins and ends.
    """

    def __init__(self, hosting: Hosting, axis: str, sizes: Sequence[int], dtype: DType, called: str):
        self._fabric, self._groups = hosting.fabric, _groups(hosting, axis)
        self.dtype, self._called = dtype, called
        self._count = len(hosting.ranks)
        self.edges = [(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]
        self._length = sum(sizes)

    def _rows(self, values: Sequence[Array], parts: int) -> list[Array]:
        """Return, for each hosted rank, so many rows; without a copy if there is one member."""
        made: dict[tuple[int, ...], Array] = {}
        found = []
        for rank in range(self._count):
            members = values[rank :: self._count]
            key = tuple(map(id, members))
            if key not in made:
                made[key] = self._joined(members, parts)
            found.append(made[key])
        return found

    def _joined(self, members: Sequence[Array], parts: int) -> Array:
        if len(members) == 1:
            return packed(members[0]).reshape(parts, -1)
        rows = np.empty((parts, self._length), self.dtype)
        for (first, last), member in zip(self.edges, members):
            rows[:, first:last] = packed(member).reshape(parts, -1)
        return rows

    def _start(self, group: _PartsGroup, sent: Mapping[int, Array], rows: Mapping[int, int], stays: bool) -> _Sent:
        """Start the exchange of a group, in which each other process sends so many rows."""
        if not sent:
            return group, None, {}
        sizes = {process: count * self._length * self.dtype.itemsize for process, count in rows.items()}
        return group, lend(self._fabric, sent, sizes, self._called, stays=stays), sizes


class _UnderWay:
    """Exchanged members in flight."""

    def __init__(self, exchange: _Exchange, rows: Sequence[Array], begun: Sequence[_Sent]):
        self._rows, self._begun, self._edges, self._dtype = rows, begun, exchange.edges, exchange.dtype

    def abandon(self) -> None:
        """Leave it, as a run does that ends before."""
        for _, loan, _ in self._begun:
            if loan is not None:
                loan.abandon()

    def _arrived(self) -> Iterator[tuple[_PartsGroup, Mapping[int, Array]]]:
        """Yield each group, with what the other processes sent, once all of it is there."""
        for group, loan, sizes in self._begun:
            come = {} if loan is None else loan.arrived(sizes)
            yield group, {process: vector.view(self._dtype) for process, vector in come.items()}
            if loan is not None:
                loan.end()


@final
class Scatter(_Exchange):
    """Sums along a mesh axis of which each rank is given a part: reduce_scatter along the first axis."""

    def begin(self, values: Sequence[Array], *, stays: bool = False) -> ScatterUnderWay:
        """Send the others' parts of the hosted ranks' values, which must not be overwritten until the end."""
        ranks = self._groups[0].ranks
        rows = self._rows(values, ranks)
        begun = []
        for group in self._groups:
            leaves = {index: rows[number] for index, number in group.own.items()}
            sent = {process: self._nodes(group, leaves, *bounds) for process, bounds in group.others.items()}
            own = len(group.own)
            counts = {process: own * len(covering(*bounds)) for process, bounds in group.others.items()}
            begun.append(self._start(group, sent, counts, stays))
        return ScatterUnderWay(self, rows, begun)

    def _nodes(self, group: _PartsGroup, leaves: Mapping[int, Array], first: int, last: int) -> Array:
        """Return the sums over the hosted ranks of the parts first … last - 1: of each, the nodes that cover them."""
        if len(leaves) == 1:
            (rows,) = leaves.values()
            return rows[first:last].reshape(-1)
        cover = covering(min(leaves), max(leaves) + 1)
        sums = np.empty((last - first, len(cover), self._length), self.dtype)
        with np.errstate(all="ignore"):  # infinity less infinity is nan, without a warning
            for part in range(first, last):
                known = {(0, index): rows[part] for index, rows in leaves.items()}
                for i, at in enumerate(cover):
                    sums[part - first, i] = node(group.ranks, *at, lambda *at, known=known: known.get(at), np.add)
        return sums.reshape(-1)


@final
class ScatterUnderWay(_UnderWay):
    """Sums in flight of which each rank is given a part."""

    def end(self, outs: Outs) -> None:
        """Wait for the others' sums, and write each rank's part of each member to its array in `outs`."""
        for group, room in self._arrived():
            for place, (index, number) in enumerate(group.own.items()):
                known = {(0, i): self._rows[n][index] for i, n in group.own.items()}
                for process, vector in room.items():
                    cover = covering(*group.others[process])
                    each = vector.reshape(len(group.own), len(cover), -1)[place]
                    known.update(zip(cover, each))
                for (first, last), out in zip(self._edges, outs):
                    if number in out:
                        parts = {at: row[first:last] for at, row in known.items()}
                        add_up(group.ranks, parts, flat(out[number]))


@final
class Gather(_Exchange):
    """Parts joined along a mesh axis: all_gather along the first axis."""

    def begin(self, values: Sequence[Array], *, stays: bool = False) -> GatherUnderWay:
        """Send the hosted ranks' parts, which must not be overwritten until the end."""
        rows = self._rows(values, 1)
        begun = []
        for group in self._groups:
            own = [rows[number].reshape(-1) for number in group.own.values()]
            sent = own[0] if len(own) == 1 or not group.others else np.concatenate(own)
            counts = {process: last - first for process, (first, last) in group.others.items()}
            begun.append(self._start(group, dict.fromkeys(group.others, sent), counts, stays))
        return GatherUnderWay(self, rows, begun)


@final
class GatherUnderWay(_UnderWay):
    """Parts in flight that each rank joins."""

    def end(self, outs: Outs) -> None:
        """Wait for the others' parts, and write the joined members to their arrays in `outs`."""
        for group, room in self._arrived():
            for (first, last), out in zip(self._edges, outs):
                for number in group.own.values():
                    if number not in out:
                        continue
                    whole = flat(out[number]).reshape(group.ranks, last - first)
                    for index, n in group.own.items():
                        whole[index] = self._rows[n].reshape(-1)[first:last]
                    for process, vector in room.items():
                        begin, end = group.others[process]
                        whole[begin:end] = vector.reshape(end - begin, -1)[:, first:last]


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
