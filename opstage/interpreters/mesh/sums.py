"""`Sum`: a sum over ranks of arrays, prepared once: who is sent what, what it is called, in which order it is added up.

A compiled step makes the same few sums again and again, and between its loops every line of Python counts. Order, words
and bytes are those of `Crossing`, which does the same of any collective, on any interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np

from ...ops.catalogue.collective import ALL_REDUCE
from ...ops.dims import prod
from ...ops.types import DType
from ..host import Array, packed
from .crossing import SMALL, name_of
from .fabric import Flight
from .hosting import Hosting
from .tree import covering, node, total

At = tuple[int, int]
"""A node of the tree: its level, and its place there."""


class _SumGroup(NamedTuple):
    """Ranks that add up, as this process sees them.

    ranks   how many; own: by its index the number of each that is here
    nodes   what is sent of them; come: by process the nodes that it sends
    """

    ranks: int
    own: Mapping[int, int]
    nodes: Sequence[At]
    come: Mapping[int, Sequence[At]]


class _SumSent(NamedTuple):
    """A group's part of a sum under way: its flight, the nodes known here, room for those that come."""

    group: _SumGroup
    flight: Flight
    known: dict[At, Array]
    room: Mapping[int, Array]


@final
class SumUnderWay:
    """A sum that was begun."""

    def __init__(self, shape: tuple[int, ...], groups: Sequence[_SumSent]):
        self._shape, self._groups = shape, groups

    def end(self, out: Mapping[int, Array]) -> None:
        """Wait for what the others have, and write the ranks' sums over the arrays that `out` has by their numbers."""
        for group, flight, known, room in self._groups:
            flight.wait()
            for process, vector in room.items():
                known.update(zip(group.come[process], vector.reshape(-1, *self._shape)))
            places = [out[number] for number in group.own.values() if number in out]
            if places:
                _add_up(group.ranks, known, places[0])
                for place in places[1:]:
                    np.copyto(place, places[0])


def _add_up(ranks: int, known: Mapping[At, Array], out: Array) -> None:
    left = len(known) - 1

    def add(a: Array, b: Array) -> Array:
        nonlocal left
        left -= 1
        return np.add(a, b) if left else np.add(a, b, out=out)

    with np.errstate(all="ignore"):  # infinity less infinity is nan, without a warning
        total(ranks, lambda *at: known.get(at), add)


@final
class Sum:
    """The sum along an axis of tensors of one type, of which one is on each rank."""

    def __init__(self, hosting: Hosting, axis: str, shape: tuple[int, ...], dtype: DType, program: str):
        mesh, self._fabric = hosting.mesh, hosting.fabric
        self._shape, self._dtype, self._size = shape, dtype, int(prod(shape))
        self._called = name_of(ALL_REDUCE, axis, shape, dtype) + program
        self._groups: list[_SumGroup] = []
        here = hosting.ranks
        for group in dict.fromkeys(mesh.group(rank, axis) for rank in here):
            spread: dict[int, list[int]] = {}
            for index, rank in enumerate(group):
                spread.setdefault(rank // len(here), []).append(index)
            cover = {process: covering(indices[0], indices[-1] + 1) for process, indices in spread.items()}
            own = {index: rank - here[0] for index, rank in enumerate(group) if rank in here}
            self._groups.append(_SumGroup(len(group), own, cover.pop(self._fabric.process), cover))

    @property
    def sent_whole(self) -> bool:
        """Whether everybody sends everybody else all that it adds: then it can be made here."""
        others = [len(group.come) for group in self._groups]
        return min(others) == max(others) == 1 or (min(others) > 0 and self._size * self._dtype.itemsize <= SMALL)

    def begin(self, values: Sequence[Array]) -> SumUnderWay:
        """Send what the ranks here have, over which nobody writes until the end."""
        return SumUnderWay(self._shape, [self._begun(group, values) for group in self._groups])

    def _begun(self, group: _SumGroup, values: Sequence[Array]) -> _SumSent:
        leaves = {(0, index): values[number] for index, number in group.own.items()}
        with np.errstate(all="ignore"):
            known = {at: node(group.ranks, *at, lambda *at: leaves.get(at), np.add) for at in group.nodes}
        vectors = [packed(known[at]).reshape(-1) for at in group.nodes]
        sent = vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
        room = {process: np.empty(len(nodes) * self._size, self._dtype) for process, nodes in group.come.items()}
        flight = self._fabric.start(dict.fromkeys(group.come, sent), room, self._called)
        return _SumSent(group, flight, known, room)
