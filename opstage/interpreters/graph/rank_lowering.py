"""`host`: turns the fused program of one rank into one program for all ranks that a process hosts.

Fusion is decided for one rank. Each group then runs once per rank, or once in all for ranks with the same operands;
collectives connect the ranks. So the bits of a rank's results do not depend on how many other ranks its process hosts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from ...compiler.codegen import views as views
from ...compiler.codegen.clusters import Cluster, FusionGroup, roots_read
from ...compiler.codegen.formulas import ASSEMBLE, CONTIGUOUS, PRODUCTS
from ...compiler.codegen.lowering import Lowered, Part
from ...compiler.codegen.views import View
from ...distributed.compiled_collectives import MEET, MEET_BEGIN, MEET_END, Joint, joint, meeting
from ...distributed.processes import Hosting
from ...distributed.ranks import Ranks, in_parts
from ...distributed.transport import get_handle
from ...ops.body import Equation
from ...ops.collective import ALL_GATHER, ALL_MAX, ALL_REDUCE, AXIS_INDEX, SHARD
from ...ops.primitive import Kind
from ...ops.types import INT64, TensorType
from .rank_schedule import Begin, Calls, Ordered

Alike: TypeAlias = tuple[int, ...]
"""For each hosted rank, the first rank with the same value."""


class Hosted(NamedTuple):
    """The lowered and fused program of several ranks.

    places   for each output of a rank's program, the positions of the ranks' values among the outputs
    """

    lowered: Lowered
    groups: list[FusionGroup]
    places: tuple[tuple[int, ...], ...]


class RankInput(NamedTuple):
    """Which ranks have the same value of an input. With an `axis`, each rank has only its own rows along that axis."""

    alike: Alike
    axis: str | None = None


def host(
    lowered: Lowered, groups: Sequence[FusionGroup], order: Sequence[Ordered], given: Sequence[RankInput], ranks: Ranks
) -> Hosted:
    """Return the program for all hosted ranks, given their inputs, with groups in the order that `overlapped` returned.

    The program's inputs are the distinct values of the first input in the order of the ranks, then those of the next
    input. `ranks` on arrays run the collectives. Raises MeshError for a program that reads all rows where a rank has
    only its own.
    """
    return _Hosting(lowered, groups, given, ranks).hosted(order)


@final
class _Hosting:
    def __init__(self, lowered: Lowered, groups: Sequence[FusionGroup], given: Sequence[RankInput], ranks: Ranks):
        self._lowered, self._groups, self._given, self._ranks = lowered, groups, given, ranks
        self._mesh = Hosting(ranks.mesh, ranks.transport)
        self._count = len(ranks.hosted)
        self._same: Alike = (0,) * self._count
        self._alike = {slot: each.alike for slot, each in zip(lowered.body.inputs, given, strict=True)}
        self._rows = {slot: each.axis for slot, each in zip(lowered.body.inputs, given) if each.axis is not None}
        body = lowered.body.replace(inputs=(), constants=(), equations=(), outputs=(), types=())
        self._new = Lowered(body, lowered.target)
        self._made: list[FusionGroup] = []
        self._roots: dict[tuple[int, int], tuple[int, int]] = {}  # (root, rank) -> (new root, offset in it)
        self._slots: dict[tuple[int, int], int] = {}
        self._literals: dict[int, int] = {}
        self._pending: dict[int, tuple[int, tuple[int, ...], Joint]] = {}
        self._looped: set[int] = set()  # slots that loops write, which can write anywhere
        self._shared: set[tuple[int, int]] = set()  # (root, rank) whose memory is a part of a shared tensor
        self._inputs: list[int] = []
        self._outside = {lowered.views[slot].root for slot in lowered.outputs if slot in lowered.views}

    def hosted(self, order: Sequence[Ordered]) -> Hosted:
        lowered, new = self._lowered, self._new
        inputs = self._inputs
        for slot, each in zip(lowered.body.inputs, self._given):
            inputs += [self._input(slot, rank) for rank in firsts(each.alike)]
        for slot, value in lowered.constants.items():
            made = self._own(slot, 0)
            new.constants[made] = value
            if slot in lowered.counted:
                new.counted.add(made)
            if slot in lowered.literals:
                new.literals[made] = lowered.literals[slot]
                self._literals[slot] = made
        self._compare()
        self._require_own_rows()
        between: list[FusionGroup] = []
        for step in order:
            if isinstance(step, FusionGroup) and _collective(step) is None:
                between.append(step)
                continue
            self._do(between)
            between = []
            if isinstance(step, FusionGroup):
                self._meet(step.equations[0])
            elif isinstance(step, Begin):
                self._begin(step.calls)
            else:
                self._end(step.calls)
        self._do(between)
        places, outputs = [], list[int]()
        for slot in lowered.outputs:
            numbers: dict[int, int] = {}
            for rank in range(self._count):
                made = self._slot(slot, rank)
                if made not in numbers:
                    numbers[made] = len(outputs)
                    outputs.append(made)
            places.append(tuple([numbers[self._slot(slot, rank)] for rank in range(self._count)]))
        new.outputs = outputs
        new.body = new.body.replace(
            inputs=inputs,
            equations=[e for group in self._made for e in group.equations],
            outputs=outputs,
            types=new.types,
        )
        return Hosted(new, self._made, tuple(places))

    def _require_own_rows(self) -> None:
        """Raise MeshError if the program reads other rows of an input than the rank's own."""
        read = list(self._outside)
        for group in self._groups:
            e = group.equations[0]
            shares = e.primitive is SHARD and e.inputs[0] in self._rows
            if not (shares and e.static["axis"] == self._rows[e.inputs[0]] and e.static["dim"] in (0, -self._rank(e))):
                read += roots_read(self._lowered, group.equations)
        for slot in read:
            if slot in self._rows:
                raise in_parts(self._lowered.types[slot], self._rows[slot])

    def _rank(self, e: Equation) -> int:
        return len(self._lowered.types[e.inputs[0]].shape)

    # Which ranks have the same values ---------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Find, for all roots, the ranks with equal values: those with equal operands and, for a part, with an equal
        whole."""
        parts = self._lowered.parts
        changed = True
        while changed:
            changed = False
            for group in self._groups:
                outs = [slot for e in group.equations for slot in e.outputs]
                wholes = [parts[slot].whole for slot in outs if slot in parts]
                found = self._compare_group(group)
                if wholes:
                    found = _both([found, *[self._equal_ranks(whole) for whole in wholes]])
                for slot in (*outs, *wholes):
                    both = _both([self._equal_ranks(slot), found])
                    if both != self._equal_ranks(slot):
                        self._alike[slot] = both
                        changed = True

    def _equal_ranks(self, root: int) -> Alike:
        return self._alike.get(root, self._same)

    def _compare_group(self, group: FusionGroup) -> Alike:
        e = _collective(group)
        operands = [self._equal_ranks(root) for root in roots_read(self._lowered, group.equations)]
        if e is None:
            return _both([self._same, *operands])
        axis = e.static["axis"]
        if e.primitive in (SHARD, AXIS_INDEX):
            return _both([self._mesh.along(axis), *operands])
        if e.primitive in (ALL_REDUCE, ALL_MAX, ALL_GATHER):
            return _both([self._mesh.groups(axis)])
        return tuple(range(self._count))

    # Slots ------------------------------------------------------------------------------------------------------------

    def _fresh(self, slot: int) -> int:
        self._new.types.append(self._lowered.types[slot])
        return len(self._new.types) - 1

    def _input(self, slot: int, rank: int) -> int:
        """Return the slot of an input or, for an input in parts, of the rank's own rows."""
        axis = self._rows.get(slot)
        if axis is None:
            return self._own(slot, rank)
        rows, *rest = self._lowered.shape(slot)
        made = self._new.fresh((rows // self._mesh.mesh.size(axis), *rest), self._lowered.types[slot])
        self._roots[slot, rank] = made, 0
        return made

    def _own(self, root: int, rank: int) -> int:
        """Return the slot of a rank's root; ranks with equal values share the slot of the first."""
        known = self._roots.get((root, rank))
        if known is not None:
            return known[0]
        made = self._fresh(root)
        self._roots[root, rank] = made, 0
        self._new.views[made] = self._lowered.views[root]._replace(root=made)
        part = self._lowered.parts.get(root)
        if part is not None:
            self._new.parts[made] = Part(self._own(part.whole, rank), part.offset, part.strides)
        return made

    def _view(self, view: View, rank: int) -> View:
        root, start = self._roots[view.root, self._equal_ranks(view.root)[rank]]
        return view._replace(root=root, offset=start + view.offset)

    def _slot(self, slot: int, rank: int) -> int:
        """Return the slot of a value for a rank."""
        lowered, new = self._lowered, self._new
        if slot in lowered.literals:
            known = self._literals.get(slot)
            if known is None:
                known = self._literals[slot] = self._fresh(slot)
                new.literals[known] = lowered.literals[slot]
                new.views[known] = views.whole(known, lowered.shape(slot))
            return known
        view = lowered.views[slot]
        rank = self._equal_ranks(view.root)[rank]
        known = self._slots.get((slot, rank))
        if known is None:
            moved = self._view(view, rank)
            if view.root == slot and (slot, rank) not in self._shared:
                known = moved.root
            else:
                known = self._fresh(slot)
                new.views[known] = moved
            self._slots[slot, rank] = known
        return known

    # Groups -----------------------------------------------------------------------------------------------------------

    def _do(self, groups: Sequence[FusionGroup]) -> None:
        """Run the groups between two collectives, one rank after another."""
        for rank in range(self._count):
            for group in groups:
                if self._equal_ranks(group.equations[-1].outputs[0])[rank] == rank:
                    self._made.append(self._instance(group, rank))

    def _instance(self, group: FusionGroup, rank: int) -> FusionGroup:
        for e in group.equations:
            for slot in e.outputs:
                self._own(slot, rank)
        equations = [
            e._replace(
                inputs=tuple([self._slot(slot, rank) for slot in e.inputs]),
                outputs=tuple([self._own(slot, rank) for slot in e.outputs]),
            )
            for e in group.equations
        ]
        made = FusionGroup(equations[0], len(self._made), self._cluster(group.cluster, rank))
        made.equations = equations
        self._new.equations += equations
        if made.cluster is not None or equations[0].primitive in PRODUCTS:
            self._looped.update(slot for e in equations for slot in e.outputs)
        return made

    def _cluster(self, cluster: Cluster | None, rank: int) -> Cluster | None:
        if cluster is None:
            return None
        made = Cluster(self._new, cluster.size)
        made.extent, made.columns, made.cuts = cluster.extent, cluster.columns, cluster.cuts
        made.levels = {self._own(slot, rank): level for slot, level in cluster.levels.items()}
        made.operands = {(self._view(view, rank), level): None for view, level in cluster.operands}
        made.targets = {(self._view(view, rank), level): None for view, level in cluster.targets}
        return made

    # Collectives ------------------------------------------------------------------------------------------------------

    def _meet(self, e: Equation) -> None:
        (out,) = e.outputs
        alike = self._equal_ranks(out)
        if e.primitive is AXIS_INDEX:
            for rank, index in zip(firsts(alike), dict.fromkeys(self._mesh.along(e.static["axis"]))):
                self._number(e, rank, index)
        elif e.primitive is SHARD:
            for rank in firsts(alike):
                self._share(e, rank)
        else:
            inputs = tuple([self._slot(e.inputs[0], rank) for rank in range(self._count)])
            outputs = tuple([self._own(out, rank) for rank in firsts(alike)])
            static = meeting(self._ranks, e.primitive, e.static, firsts(alike))
            self._add(e._replace(primitive=MEET, static=static, inputs=inputs, outputs=outputs), None)

    def _number(self, e: Equation, rank: int, index: int) -> None:
        """Make the index of a rank as a constant, or as a copy of one if it is an output."""
        (out,) = e.outputs
        made = self._own(out, rank)
        if out not in self._outside:
            self._new.constants[made] = np.array(index, np.int64)
            return
        source = self._new.fresh((), self._lowered.types[out])
        self._new.constants[source] = np.array(index, np.int64)
        self._copy(e, source, made)

    def _copy(self, e: Equation, source: int, out: int) -> None:
        copied = e._replace(primitive=CONTIGUOUS, static={}, inputs=(source,), outputs=(out,))
        cluster = Cluster(self._new, self._new.views[out].size)
        self._add(copied, cluster if cluster.admit(copied) else None)

    def _begin(self, calls: Calls) -> None:
        (*_, last), lowered = calls, self._lowered
        if self._joins(calls):
            operands, joint_call = self._concatenate(calls)
        else:
            operands = tuple([self._slot(e.inputs[0], rank) for e in calls for rank in range(self._count)])
            types = [lowered.types[e.inputs[0]] for e in calls]
            joint_call = joint(
                [(e.primitive, e.static, t, firsts(self._equal_ranks(*e.outputs))) for e, t in zip(calls, types)]
            )
        pending = self._new.fresh((), TensorType((), INT64))
        self._pending[last.outputs[0]] = pending, operands, joint_call
        static = {"ranks": get_handle(self._ranks), "calls": joint_call}
        self._add(last._replace(primitive=MEET_BEGIN, static=static, inputs=operands, outputs=(pending,)), None)

    def _end(self, calls: Calls) -> None:
        (*_, last) = calls
        pending, operands, joint_call = self._pending.pop(last.outputs[0])
        copies: list[tuple[Equation, int, int]] = []
        if self._joins(calls):
            outputs = self._cut(calls, copies)
        else:
            outputs = tuple(
                [self._own(out, rank) for e in calls for out in e.outputs for rank in firsts(self._equal_ranks(out))]
            )
        made = last._replace(
            primitive=MEET_END, static={"calls": joint_call}, inputs=(pending, *operands), outputs=outputs
        )
        self._add(made, None)
        for copy in copies:
            self._copy(*copy)

    def _joins(self, calls: Calls) -> bool:
        """Return whether sums can be joined into one sum of a vector, with operands and results in place in that
        vector."""
        sizes = [self._lowered.views[e.outputs[0]].size for e in calls]
        return self._lowered.target.anywhere and calls[0].primitive is ALL_REDUCE and min(sizes) > 0

    def _concatenate(self, calls: Calls) -> tuple[tuple[int, ...], Joint]:
        """Return each rank's vector of addends, and the sum of these vectors as a call."""
        made: dict[tuple[int, ...], int] = {}
        vectors = []
        for rank in range(self._count):
            parts = tuple([self._slot(e.inputs[0], rank) for e in calls])
            if parts not in made:
                made[parts] = self._vector(calls, parts)
            vectors.append(made[parts])
        (first, *_) = calls
        gives = firsts(self._equal_ranks(*first.outputs))
        return tuple(vectors), joint([(first.primitive, first.static, self._new.types[vectors[0]], gives)])

    def _vector(self, calls: Calls, slots: Sequence[int]) -> int:
        """Make a vector that concatenates these tensors."""
        new = self._new
        vector = new.fresh((sum(math.prod(new.shape(slot)) for slot in slots),), new.types[slots[0]])
        start, parts = 0, list[int]()
        for e, slot in zip(calls, slots):
            part = new.views[slot].root if self._movable(e, slot) else self._copied(e, slot)
            new.parts[part] = Part(vector, start, views.packed(new.shape(part)))
            parts.append(part)
            start += math.prod(new.shape(part))
        self._add(calls[-1]._replace(primitive=ASSEMBLE, static={}, inputs=tuple(parts), outputs=(vector,)), None)
        return vector

    def _movable(self, e: Equation, slot: int) -> bool:
        """Return whether a tensor is a complete result of a loop, in memory that can be placed anywhere."""
        new = self._new
        if slot in new.literals or self._lowered.views[e.inputs[0]].root in self._outside:
            return False
        view = new.views[slot]
        whole = view.contiguous and view.offset == 0 and view.size == new.views[view.root].size
        return whole and view.root in self._looped and view.root not in new.parts

    def _copied(self, e: Equation, slot: int) -> int:
        """Copy a tensor to memory that can be placed anywhere."""
        new = self._new
        copy = new.fresh(new.shape(slot), new.types[slot])
        self._copy(e, slot, copy)
        return copy

    def _cut(self, calls: Calls, copies: list[tuple[Equation, int, int]]) -> tuple[int, ...]:
        """Make, for each rank with a distinct value, the vector of sums; the results become parts of it.

        Outputs of the program have memory of their own: they are added to `copies`, as arguments of `_copy`.
        """
        lowered = self._lowered
        sizes = [math.prod(lowered.shape(e.outputs[0])) for e in calls]
        outputs = []
        for rank in firsts(self._equal_ranks(*calls[0].outputs)):
            vector = self._new.fresh((sum(sizes),), lowered.types[calls[0].outputs[0]])
            outputs.append(vector)
            for start, e in zip(accumulate(sizes, initial=0), calls):
                (out,) = e.outputs
                if out in self._outside:
                    source = self._fresh(out)
                    self._new.views[source] = views.whole(vector, lowered.shape(out))._replace(offset=start)
                    copies.append((e, source, self._own(out, rank)))
                else:
                    self._roots[out, rank] = vector, start
                    self._shared.add((out, rank))
        return tuple(outputs)

    def _share(self, e: Equation, rank: int) -> None:
        """Make a rank's part of a shared tensor: in place if it is contiguous and may be aliased, else as a copy."""
        (x,), (out,) = e.inputs, e.outputs
        shape = self._lowered.shape(out)
        if not self._lowered.views[out].size:
            self._own(out, rank)
            return
        dim = e.static["dim"] % len(shape)
        start = self._mesh.along(e.static["axis"])[rank] * shape[dim]
        if x in self._rows:
            start, view = 0, self._new.views[self._roots[x, self._equal_ranks(x)[rank]][0]]
        elif x not in self._lowered.literals:
            view = self._view(self._lowered.views[x], rank)
        if x in self._lowered.literals:
            source = self._fresh(out)
            self._new.literals[source] = self._lowered.literals[x]
            self._new.views[source] = views.whole(source, shape)
        else:
            first = start * math.prod(shape[1:])
            there = dim == 0 and view.contiguous and (first == 0 or self._lowered.target.anywhere)
            if there and view.root not in self._new.parts and out not in self._outside:
                self._roots[out, rank] = view.root, view.offset + first
                self._shared.add((out, rank))
                return
            source = self._fresh(out)
            self._new.views[source] = views.cut(view, dim, start, shape[dim], 1)
        self._copy(e, source, self._own(out, rank))

    def _add(self, e: Equation, cluster: Cluster | None) -> None:
        self._made.append(FusionGroup(e, len(self._made), cluster))
        self._new.equations.append(e)


def _collective(group: FusionGroup) -> Equation | None:
    """Return the collective of a group, or None."""
    e = group.equations[0]
    return e if e.primitive.kind is Kind.COLLECTIVE else None


def firsts(alike: Alike) -> list[int]:
    """Return the ranks that are first to have their value."""
    return [rank for rank, first in enumerate(alike) if first == rank]


def _both(every: Sequence[Any]) -> Alike:
    """Combine: ranks are alike if they are alike in every entry."""
    first: dict[Any, int] = {}
    return tuple([first.setdefault(key, rank) for rank, key in enumerate(zip(*every))])
