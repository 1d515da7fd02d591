"""`Sum`: a prepared sum of arrays over ranks, with its messages, name and order of additions computed once.

A compiled step repeats the same few sums, and Python overhead between its loops matters. Order, names and bytes are
those of `Crossing`, which supports any collective on any interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias, final

import numpy as np

from ...ops.catalogue.collective import ALL_REDUCE
from ...ops.dims import prod
from ...ops.types import DType
from ..host import Array, packed
from .coming import Channel, Coming
from .crossing import SMALL, name_of
from .hosting import Hosting, RankGroup
from .tree import additions, covering, node

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
    """A group's part of a sum in flight: the exchange, and the locally known nodes."""

    group: _SumGroup
    coming: Coming
    known: dict[At, Array]


@final
class SumUnderWay:
    """A sum in flight."""

    def __init__(self, shape: tuple[int, ...], dtype: DType, groups: Sequence[_SumSent]):
        self._shape, self._dtype, self._groups = shape, dtype, groups

    def end(self, outs: Outs) -> None:
        """Wait for the others' values, and write the ranks' sums to the arrays of the only member."""
        (out,) = outs
        for sent in self._groups:
            (group, _, come, _), known = sent.group, sent.known
            places = [out[number] for number in group.own.values() if number in out]
            for process, vector in sent.coming.arrived().items():
                known.update(zip(come[process], vector.reshape(-1, *self._shape)))
            if places:
                add_up(group.ranks, known, places[0])
            for place in places[1:]:
                np.copyto(place, places[0])
            sent.coming.end()

    def abandon(self) -> None:
        """Leave it, as a run does that ends before."""
        for sent in self._groups:
            sent.coming.abandon()


def add_up(ranks: int, known: Mapping[At, Array], out: Array) -> None:
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
        self.fabric = hosting.fabric
        self._shape, self.dtype, self._nbytes = shape, dtype, int(prod(shape)) * dtype.itemsize
        self.called = name_of(ALL_REDUCE, axis, shape, dtype) + program
        self.groups = hosting.spread(axis)
        self._groups = [self._nodes(group) for group in self.groups]

    def _nodes(self, group: RankGroup) -> _SumGroup:
        come = {process: covering(*bounds) for process, bounds in group.others.items()}
        size = self._nbytes // self.dtype.itemsize
        sizes = {process: len(nodes) * size for process, nodes in come.items()}
        channel = Channel(self.fabric, sizes, self.dtype, self.called)
        nodes = covering(min(group.own), max(group.own) + 1)
        return _SumGroup(group, nodes, come, channel)

    @property
    def sent_whole(self) -> bool:
        """Whether every process sends all of its addends to every other; otherwise it cannot be computed here."""
        others = [len(group.others) for group in self.groups]
        return min(others) == max(others) == 1 or (min(others) > 0 and self._nbytes <= SMALL)

    def begin(self, values: Sequence[Array], into: Sequence[Array] = ()) -> SumUnderWay:
        """Send the hosted ranks' values, which must not be overwritten until the end. What comes may be received
        `into` the array of the only result."""
        if len(into) != 1 or len(self._groups) != 1 or into[0].nbytes != self._nbytes:
            into = ()
        return SumUnderWay(self._shape, self.dtype, [self._begun(group, values, into) for group in self._groups])

    def _begun(self, sums: _SumGroup, values: Sequence[Array], into: Sequence[Array]) -> _SumSent:
        (ranks, own, _), nodes, come, channel = sums
        known = leaves = {(0, index): values[number] for index, number in own.items()}
        if len(leaves) > 1:
            with np.errstate(all="ignore"):
                known = {at: node(ranks, *at, lambda *at: leaves.get(at), np.add) for at in nodes}
        vectors = [packed(known[at]).reshape(-1) for at in nodes]
        sent = vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
        coming = channel.take()
        coming.begin(dict.fromkeys(come, sent), into)
        return _SumSent(sums, coming, known)
