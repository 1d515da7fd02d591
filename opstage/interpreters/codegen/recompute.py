"""Recomputation: a later loop recomputes values if that moves fewer bytes than storing and loading them.

A loop that ends with a sum passes only the sums to the next loop if that one recomputes `(x - mean) · rstd` from x, as
in normalisations. The same ops give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from ...ops.catalogue.cheap import CHEAP
from ...ops.closed import Equation
from .clusters import Cluster, FusionGroup, Level, memory_read, read_by, roots_read
from .lowered import Lowered

_LONGEST = 6
"""The largest number of equations that recompute a value."""

_SMALLEST = 1 << 12
"""The smallest size in bytes of values that are recomputed; smaller ones stay in cache."""


def recomputed(lowered: Lowered, groups: list[FusionGroup]) -> list[FusionGroup]:
    """Return the groups, with later groups recomputing values that earlier ones would have to store."""
    rewriting = _Rewriting(lowered, groups)
    for place in range(len(groups)):
        rewriting.recompute(place)
    return [group for group in groups if group.equations]


@final
class _Rewriting:
    def __init__(self, lowered: Lowered, groups: list[FusionGroup]):
        self.lowered = lowered
        self.groups = groups
        self.results = {lowered.views[slot].root for slot in lowered.outputs}
        self.readers = read_by(lowered, groups)  # the positions of a root's readers

    def _bytes(self, slot: int) -> int:
        size = math.prod(self.lowered.views[slot].shape)
        return size * int(self.lowered.types[slot].dtype.itemsize)

    def recompute(self, place: int) -> None:
        """Let the readers of a group's elementwise values recompute them, if that pays off for all together."""
        group = self.groups[place]
        cluster = group.cluster
        if cluster is None:
            return
        made = {slot: e for e in group.equations for slot in e.outputs}
        again: dict[int, list[Equation]] = {}
        for slot, level in cluster.levels.items():
            left = self.readers.get(slot, set()) - {place}
            fixed = slot in self.results or slot in self.lowered.parts or self._bytes(slot) < _SMALLEST
            if level is Level.ELEMENT and left and not fixed and all(self._alike(cluster, at) for at in left):
                chain = self._chain(slot, made, cluster.levels)
                if chain is not None:
                    again[slot] = chain
        if not again or not self._pays(place, again):
            return
        changed: dict[int, tuple[list[Equation], Cluster]] = {}
        for reader in sorted(set().union(*[self.readers[slot] for slot in again]) - {place}):
            rewritten = self._rewritten(reader, again, cluster.size)
            if rewritten is None:
                return
            changed[reader] = rewritten
        for reader, (equations, of) in changed.items():
            self._replace(reader, equations, of)
        self._prune(place, cluster)

    def _alike(self, cluster: Cluster, place: int) -> bool:
        other = self.groups[place].cluster
        return other is not None and other.size == cluster.size

    def _chain(self, slot: int, made: Mapping[int, Equation], levels: Mapping[int, Level]) -> list[Equation] | None:
        """Return the equations that recompute a value from memory and row values; None if they are too many or
        expensive."""
        chain: dict[int, Equation] = {}
        waiting = [slot]
        while waiting:
            e = made[waiting.pop()]
            if e.primitive not in CHEAP or len(chain) >= _LONGEST:
                return None
            chain[e.outputs[0]] = e
            for root in roots_read(self.lowered, [e]):
                if levels.get(root) is Level.ELEMENT and root not in chain:
                    waiting.append(root)
        order = {slot: i for i, slot in enumerate(made)}
        return [chain[slot] for slot in sorted(chain, key=order.__getitem__)]

    def _pays(self, place: int, again: Mapping[int, list[Equation]]) -> bool:
        """Return whether fewer bytes are moved, without keeping more bytes live."""
        written = sum(map(self._bytes, again))
        saved = 2 * written  # to write a line of memory is to read it first
        kept: set[int] = set()
        for reader in set().union(*[self.readers[slot] for slot in again]) - {place}:
            values = [slot for slot in again if reader in self.readers[slot]]
            sources = roots_read(self.lowered, [e for slot in values for e in again[slot]])
            own = {e.outputs[0] for slot in values for e in again[slot]}
            more = {root for root in sources - own if reader not in self.readers.get(root, ())}
            saved += sum(map(self._bytes, values)) - sum(map(self._bytes, more))
            kept |= {r for r in more if r not in self.lowered.body.inputs and max(self.readers[r], default=0) < reader}
        return saved > 0 and sum(map(self._bytes, kept)) <= written

    def _rewritten(
        self, reader: int, again: Mapping[int, list[Equation]], size: int
    ) -> tuple[list[Equation], Cluster] | None:
        """Return the equations of a reader, after those that it recomputes, and their cluster; None if they do not
        fit."""
        lowered, group = self.lowered, self.groups[reader]
        renamed: dict[int, int] = {}
        equations: list[Equation] = []
        for slot in [slot for slot in again if reader in self.readers[slot]]:
            for e in again[slot]:
                (out,) = e.outputs
                if out not in renamed:
                    equations.append(self._with(e, renamed))
                    renamed[out] = lowered.fresh(lowered.views[out].shape, lowered.types[out])
                    equations[-1] = equations[-1]._replace(outputs=(renamed[out],), opened=False)
        equations += [self._with(e, renamed) for e in group.equations]
        cluster = Cluster(lowered, size)
        return (equations, cluster) if cluster.admit_all(equations) else None

    def _with(self, e: Equation, renamed: Mapping[int, int]) -> Equation:
        """Return an equation that reads renamed values."""
        lowered = self.lowered
        inputs = []
        for slot in e.inputs:
            name = None if slot in lowered.literals else renamed.get(lowered.views[slot].root)
            inputs.append(
                slot if name is None else lowered.seen(lowered.views[slot]._replace(root=name), lowered.types[slot])
            )
        return e if tuple(inputs) == e.inputs else e._replace(inputs=tuple(inputs))

    def _replace(self, place: int, equations: list[Equation], cluster: Cluster) -> None:
        group = self.groups[place]
        for root in memory_read(self.lowered, group.equations):
            self.readers[root].discard(place)
        group.equations, group.cluster = equations, cluster
        for root in memory_read(self.lowered, equations):
            self.readers.setdefault(root, set()).add(place)

    def _prune(self, place: int, of: Cluster) -> None:
        """Remove equations of a group whose results have no readers left."""
        left: list[Equation] = []
        wanted: set[int] = set()
        for e in reversed(self.groups[place].equations):
            (out,) = e.outputs
            if (
                out in wanted
                or out in self.results
                or out in self.lowered.parts
                or self.readers.get(out, set()) - {place}
            ):
                left.append(e)
                wanted |= roots_read(self.lowered, [e])
        left.reverse()
        if len(left) < len(self.groups[place].equations):
            cluster = self._for_what_is_left(left, of)
            if cluster is not None:
                self._replace(place, left, cluster)

    def _for_what_is_left(self, left: list[Equation], of: Cluster) -> Cluster | None:
        """Return a cluster for the remaining equations: over elements, over rows, or over both."""
        for size, extent in ((of.size, None), (of.rows, None), (of.size, of.extent)):
            cluster = Cluster(self.lowered, size)
            if (extent is None or cluster.set_extent(extent, of.columns)) and cluster.admit_all(left):
                return cluster
        return None
