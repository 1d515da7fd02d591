"""Fusion: one pass over a body's equations, which groups those that one loop can compute."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import final

from ...ops.body import Equation
from ...ops.catalogue import CHEAP
from ...ops.primitive import Effect
from .clusters import MOST_EQUATIONS, Cluster, FusionGroup, Level, memory_read, read_by, roots_read
from .formulas import COLUMN_SUM, INDEX_CHECK, REDUCTIONS, elementwise
from .lowering import Lowered

# Recomputation --------------------------------------------------------------------------------------------------------

# A loop that ends with a sum passes only the sums to the next loop if that one recomputes `(x - mean) · rstd` from x,
# as in normalisations. The same ops give the same bits.

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
                    equations.append(self._rename_operands(e, renamed))
                    renamed[out] = lowered.fresh(lowered.views[out].shape, lowered.types[out])
                    equations[-1] = equations[-1]._replace(outputs=(renamed[out],), opened=False)
        equations += [self._rename_operands(e, renamed) for e in group.equations]
        cluster = Cluster(lowered, size)
        return (equations, cluster) if cluster.admit_all(equations) else None

    def _rename_operands(self, e: Equation, renamed: Mapping[int, int]) -> Equation:
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


# Fusion ---------------------------------------------------------------------------------------------------------------


def fuse(lowered: Lowered, ahead: Collection[int] = ()) -> list[FusionGroup]:
    """Fuse the equations of a body; return the groups in topological order.

    Equations whose outputs are `ahead`, and that read nothing of the others, come first, in groups of their own.
    """
    return _early(lowered, recomputed(lowered, _Fusion(lowered, ahead).groups()))


_LONG_ROW = 32
"""The length in elements from which on several workers can share one row."""

_LITTLE = 1 << 14
"""The number of elements below which a second pass in one loop costs less than starting another loop."""

_SMALL = 64
"""The number of elements up to which results take negligible memory."""


def _early(lowered: Lowered, groups: list[FusionGroup]) -> list[FusionGroup]:
    """Move groups without readers, such as parameter updates, and small groups right after the last group they read.

    Then a gradient is still in cache, and its memory is free for the next one; otherwise a step would keep the
    gradients of all parameters until its end. External effects keep their order.
    """
    maker = {slot: i for i, group in enumerate(groups) for e in group.equations for slot in e.outputs}
    reads: list[set[int]] = []  # by group: the groups it reads
    for i, group in enumerate(groups):
        reads.append({maker[root] for root in roots_read(lowered, group.equations) if root in maker} - {i})
    read = set().union(*reads)
    outside: int | None = None  # the last group with an external effect
    for i, group in enumerate(groups):
        if any(Effect.EXTERNAL in e.effects for e in group.equations):
            if outside is not None:
                reads[i].add(outside)
            outside = i
    places: list[tuple[int, int, int]] = []
    for i, group in enumerate(groups):
        small = group.cluster is not None and group.cluster.size <= _SMALL
        moves = small or i not in read
        places.append((max([places[j][0] for j in reads[i]], default=-1), 1, i) if moves else (i, 0, i))
    return [groups[i] for _, _, i in sorted(places)]


class _Fusion:
    """One pass over the equations. Each joins the latest group of its operands, or starts a new one.

    Groups are numbered in order of creation and only read groups with lower numbers. So the numbers are a topological
    order, and no cycle check is needed. When an equation connects two clusters, the earlier one is merged into the
    later one, unless a group between them reads it.
    """

    def __init__(self, lowered: Lowered, ahead: Collection[int] = ()):
        self.lowered = lowered
        self.ahead = ahead
        self.maker: dict[int, FusionGroup] = {}
        self.reader: dict[int, FusionGroup] = {}  # the latest reader of each root
        self.made: dict[int, Equation] = {}  # by its outputs
        self.sums: dict[tuple[int, int, bool], FusionGroup] = {}  # the latest group with reductions of a form
        self.found: list[FusionGroup | None] = []

    def groups(self) -> list[FusionGroup]:
        views_ = self.lowered.views
        for e in self._numbers_first():
            clusters, makers = self._clusters(e), self._makers(e)
            group = (clusters and (self._join_latest(e, makers) or self._join_sibling(e, makers))) or self._new(
                e, clusters, makers
            )
            for slot in e.inputs:
                self.reader[views_[slot].root] = group
            for maker in makers:
                if maker is not group:
                    maker.readers.add(group.number)
            for slot in e.outputs:
                self.maker[slot], self.made[slot] = group, e
            if e.primitive in REDUCTIONS:
                self.sums[self._form(e)] = group
        return [group for group in self.found if group is not None]

    def _numbers_first(self) -> list[Equation]:
        """Return the equations, with those ahead first, and then scalar computations on scalars.

        Otherwise an optimizer's scalar arithmetic (a learning rate with bias correction) would split its loop over a
        parameter: what follows would read a group that began later.
        """
        views_, literals = self.lowered.views, self.lowered.literals
        ahead = [e for e in self.lowered.equations if self._is_ahead(e)]
        numbers, others = list[Equation](), list[Equation]()
        later: set[int] = set()  # results of the others
        for e in self.lowered.equations:
            if self._is_ahead(e):
                continue
            slots = [slot for slot in e.inputs if slot not in literals]
            single = all(views_[slot].size == 1 for slot in (*slots, *e.outputs))
            if single and self._clusters(e) and later.isdisjoint([views_[slot].root for slot in slots]):
                numbers.append(e)
            else:
                others.append(e)
                later.update(e.outputs)
        return ahead + numbers + others

    def _is_ahead(self, e: Equation) -> bool:
        return e.outputs[0] in self.ahead

    def _new(self, e: Equation, clusters: bool, makers: Sequence[FusionGroup]) -> FusionGroup:
        cluster = None
        if clusters:
            of = e.inputs[0] if e.primitive in REDUCTIONS else e.outputs[0]
            cluster = Cluster(self.lowered, self.lowered.views[of].size)
            if not cluster.admit(e):
                raise AssertionError(f"a single {e.primitive} does not fit into a loop")
        group = FusionGroup(e, len(self.found), cluster, ahead=self._is_ahead(e))
        self.found.append(group)
        for maker in makers:
            if self.found[maker.number] is maker:  # not merged yet
                self._merge(maker, group)
        return group

    def _clusters(self, e: Equation) -> bool:
        if e.primitive in REDUCTIONS or e.primitive is INDEX_CHECK:
            return True
        types, views_ = self.lowered.types, self.lowered.views
        return (
            len(e.outputs) == 1
            and elementwise(e.primitive, tuple([types[slot] for slot in e.inputs]), types[e.outputs[0]])
            and not any(0 in views_[slot].shape for slot in (*e.inputs, *e.outputs))
        )

    def _makers(self, e: Equation) -> list[FusionGroup]:
        roots = roots_read(self.lowered, [e])
        made = {group.number: group for root in roots if (group := self.maker.get(root)) is not None}
        return [made[number] for number in sorted(made, reverse=True)]

    def _join_latest(self, e: Equation, makers: Sequence[FusionGroup]) -> FusionGroup | None:
        """Add an equation to the latest group that it reads, merging the others into it; None if that fails."""
        if not makers or makers[0].cluster is None:
            return None
        latest = makers[0]
        if latest.ahead != self._is_ahead(e):
            return None
        for earlier in makers[1:]:
            self._merge(earlier, latest)
        assert latest.cluster is not None
        if not latest.cluster.admit(e):
            return None
        latest.equations.append(e)
        return latest

    def _join_sibling(self, e: Equation, makers: Sequence[FusionGroup]) -> FusionGroup | None:
        """Return an existing loop for a reduction: one that reads the same operand and begins after all operands exist;
        or, if loops have only one form of sums, one with sums of this form that reads a value computed from that
        operand, or where the operand is small."""
        if e.primitive not in REDUCTIONS:
            return None
        groups = [self.reader.get(self.lowered.views[e.inputs[0]].root)]
        if not self.lowered.target.both_sums:
            groups.append(self.sums.get(self._form(e)))
        for place, group in enumerate(groups):
            if group is None or group.cluster is None or self.found[group.number] is not group:
                continue
            if group.ahead != self._is_ahead(e):
                continue
            if any(maker.number >= group.number for maker in makers) or (place and not self._relies(group, e)):
                continue
            if group.cluster.admit(e):
                group.equations.append(e)
                return group
        return None

    def _form(self, e: Equation) -> tuple[int, int, bool]:
        """Return the form of a reduction: its number of elements, the row length, and whether it sums down columns."""
        return self.lowered.views[e.inputs[0]].size, e.static["extent"], e.primitive is COLUMN_SUM

    def _relies(self, group: FusionGroup, e: Equation) -> bool:
        """Return whether a group reads values computed from the operand of `e`, which it may recompute; or the operand
        is small."""
        if self.lowered.views[e.inputs[0]].size <= _LITTLE:
            return True
        read = [self.made[root] for root in roots_read(self.lowered, group.equations) if root in self.made]
        return self.lowered.views[e.inputs[0]].root in roots_read(self.lowered, read)

    def _for_both(self, a: Cluster, b: Cluster) -> Cluster | None:
        """Return a cluster for the equations of both: over equal elements, or over rows and their elements.

        It contains the equations of `a` or, if the target joins rows to elements, is empty.
        """
        if a.size == b.size:
            return Cluster(self.lowered, a.size) if self.lowered.target.joins_rows else a.copied()
        rows, elements = sorted((a, b), key=lambda cluster: cluster.size)
        if not self.lowered.target.joins_rows or rows.extent is not None or elements.size % rows.size:
            return None
        cluster, extent = Cluster(self.lowered, elements.size), elements.size // rows.size
        # without a sum, rows are a detour if they are short or too few for all workers
        useful = elements.extent == extent or (extent >= _LONG_ROW and rows.size > self.lowered.target.few_rows)
        fits = elements.extent in (None, extent) and useful and cluster.set_extent(extent)
        return cluster if fits else None

    def _merge(self, earlier: FusionGroup, later: FusionGroup) -> None:
        """Merge `earlier` into `later`, if one loop can compute both and no group between them reads it."""
        if earlier.cluster is None or later.cluster is None or earlier.ahead != later.ahead:
            return
        equations = earlier.equations + later.equations
        if len(equations) > MOST_EQUATIONS or any(number < later.number for number in earlier.readers):
            return
        cluster = self._for_both(earlier.cluster, later.cluster)
        if cluster is None or not cluster.admit_all(equations[len(cluster.levels) :]):
            return
        later.equations, later.cluster = equations, cluster
        later.readers |= earlier.readers - {later.number}
        self.found[earlier.number] = None
        for e in earlier.equations:
            for slot in e.outputs:
                self.maker[slot] = later
