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
from .crossing import SMALL, name_of
from .hosting import Hosting, RankGroup
from .loans import Loan, lend
from .tree import additions, covering, node

At = tuple[int, int]
"""A node of the tree: its level and index."""

Outs: TypeAlias = "Sequence[Mapping[int, Array]]"
"""Where the results of an exchange are written: of each member, by rank number."""


class Member(NamedTuple):
    """A tensor of an exchange, by the pieces of it that ranks send each other.

    nbytes  sent to one rank
    stride  bytes from what one rank is sent to what the next one is; 0 if all are sent the same
    """

    nbytes: int
    stride: int


class _SumGroup(NamedTuple):
    """A group of ranks that sum: the nodes that are sent, those that each process sends, and their bytes."""

    group: RankGroup
    nodes: Sequence[At]
    come: Mapping[int, Sequence[At]]
    nbytes: Mapping[int, int]


class _SumSent(NamedTuple):
    """A group's part of a sum in flight: the exchange, and the locally known nodes."""

    group: _SumGroup
    loan: Loan
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
            (group, _, come, nbytes), known = sent.group, sent.known
            for process, vector in sent.loan.arrived(nbytes).items():
                known.update(zip(come[process], vector.view(self._dtype).reshape(-1, *self._shape)))
            places = [out[number] for number in group.own.values() if number in out]
            if places:
                add_up(group.ranks, known, places[0])
                for place in places[1:]:
                    np.copyto(place, places[0])
            sent.loan.end()

    def abandon(self) -> None:
        """Leave it, as a run does that ends before."""
        for sent in self._groups:
            sent.loan.abandon()


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
    members  what is sent of the only tensor
    groups   the groups of ranks that have hosted ones
    """

    def __init__(self, hosting: Hosting, axis: str, shape: tuple[int, ...], dtype: DType, program: str):
        self.fabric = hosting.fabric
        self._shape, self.dtype, self._nbytes = shape, dtype, int(prod(shape)) * dtype.itemsize
        self.called = name_of(ALL_REDUCE, axis, shape, dtype) + program
        self.members = [Member(self._nbytes, 0)]
        self.groups = hosting.spread(axis)
        self._groups = [self._nodes(group) for group in self.groups]

    def _nodes(self, group: RankGroup) -> _SumGroup:
        come = {process: covering(*bounds) for process, bounds in group.others.items()}
        nbytes = {process: len(nodes) * self._nbytes for process, nodes in come.items()}
        return _SumGroup(group, covering(min(group.own), max(group.own) + 1), come, nbytes)

    @property
    def sent_whole(self) -> bool:
        """Whether every process sends all of its addends to every other; otherwise it cannot be computed here."""
        others = [len(group.others) for group in self.groups]
        return min(others) == max(others) == 1 or (min(others) > 0 and self._nbytes <= SMALL)

    def begin(self, values: Sequence[Array], *, stays: bool = False) -> SumUnderWay:
        """Send the hosted ranks' values, which must not be overwritten until the end, or, if they say that they stay,
        until their memory is settled, see `lend`."""
        groups = [self._begun(group, values, stays) for group in self._groups]
        return SumUnderWay(self._shape, self.dtype, groups)

    def _begun(self, sums: _SumGroup, values: Sequence[Array], stays: bool) -> _SumSent:
        (ranks, own, _), nodes, come, nbytes = sums
        known = leaves = {(0, index): values[number] for index, number in own.items()}
        if len(leaves) > 1:
            with np.errstate(all="ignore"):
                known = {at: node(ranks, *at, lambda *at: leaves.get(at), np.add) for at in nodes}
        vectors = [packed(known[at]).reshape(-1) for at in nodes]
        sent = vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
        return _SumSent(sums, lend(self.fabric, dict.fromkeys(come, sent), nbytes, self.called, stays=stays), known)

    def under_way(self, loan: Loan, values: Sequence[Array]) -> SumUnderWay:
        """Return this sum in flight of the only hosted rank's value, which was sent."""
        (sums,), (value,) = self._groups, values
        (index,) = sums.group.own
        return SumUnderWay(self._shape, self.dtype, [_SumSent(sums, loan, {(0, index): value})])
