"""Clusters: equations that one loop can do, so that what passes between them never goes to memory.

A cluster runs over `size` elements. Where it has a reduction these are rows of `extent` elements: some of its values
then are one per row, and the loop goes over a row as often as a reduction must be complete before its result is used.
Sums over the rows, one per column, are added up on the way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import final

from ...ops.closed import Equation
from . import views
from .lowered import Lowered
from .primitives import COLUMN_SUM, REDUCTIONS, ROW_MAX, ROW_SUM
from .views import Cuts, View

MOST_EQUATIONS = 48
_MOST_OPERANDS = 24


class Level(Enum):
    """How many of a value there are."""

    __hash__ = object.__hash__  # there is one of each, and Enum's own hash is Python

    ELEMENT = "one for each element"
    ROW = "one for each row"
    COLUMN = "one for each column, when the loop is over"


@final
class FusionGroup:
    """A fusion group: a cluster, or a single equation outside of any."""

    __slots__ = ("equations", "number", "cluster", "readers")

    def __init__(self, equation: Equation, number: int, cluster: Cluster | None = None):
        self.equations = [equation]
        self.number = number
        self.cluster = cluster
        self.readers: set[int] = set()  # the numbers of the groups that read it


@final
class Cluster:
    """A cluster in the making.

    columns     whether it goes down the columns of its rows
    levels      of every value that is made here
    operands    views of what is read from outside, each with its level; `cuts` are the borders of axes of them all
    targets     views of the parts of concatenations that are written, likewise
    """

    __slots__ = ("lowered", "size", "extent", "columns", "levels", "operands", "targets", "cuts")

    def __init__(self, lowered: Lowered, size: int):
        self.lowered = lowered
        self.size = size
        self.extent: int | None = None
        self.columns = False
        self.levels: dict[int, Level] = {}
        self.operands: dict[tuple[View, Level], None] = {}
        self.targets: dict[tuple[View, Level], None] = {}
        self.cuts: Cuts = (1, size) if size > 1 else (1,)

    @property
    def rows(self) -> int:
        return self.size // (self.extent or 1)

    def admit(self, e: Equation) -> bool:
        """Take in an equation if the loop can do it too; whether it could. A refusal changes nothing."""
        if len(self.levels) >= MOST_EQUATIONS:
            return False
        extent, state = self.extent, self._state()
        level = self._level(e)
        if level is None or len(self.operands) > _MOST_OPERANDS or not self._writes(e.outputs[0], level):
            self.extent = extent
            self._restore(state)
            return False
        self.levels[e.outputs[0]] = level
        return True

    def admit_all(self, equations: Iterable[Equation]) -> bool:
        """Take in equations in their order; whether all could be."""
        return all(map(self.admit, equations))

    def copied(self) -> Cluster:
        """A cluster of the same equations, which others may join."""
        copy = Cluster(self.lowered, self.size)
        copy.extent, copy.columns, copy.cuts = self.extent, self.columns, self.cuts
        copy.levels, copy.operands, copy.targets = self.levels.copy(), self.operands.copy(), self.targets.copy()
        return copy

    def _state(self) -> tuple[Cuts, int, int]:
        return self.cuts, len(self.operands), len(self.targets)

    def _restore(self, state: tuple[Cuts, int, int]) -> None:
        """Go back to a state: what came after it stands last."""
        self.cuts, operands, targets = state
        while len(self.operands) > operands:
            self.operands.popitem()
        while len(self.targets) > targets:
            self.targets.popitem()

    def _level(self, e: Equation) -> Level | None:
        lowered = self.lowered
        if e.primitive in REDUCTIONS:
            view = lowered.views[e.inputs[0]]
            if view.size != self.size or not self.set_extent(e.static["extent"], columns=e.primitive is COLUMN_SUM):
                return None
            level, other = Level.ROW, Level.COLUMN
            if e.primitive is COLUMN_SUM:
                level, other = other, level
            if other in self.levels.values() and not lowered.target.both_sums:
                return None
            return level if self._read(e.inputs[0], Level.ELEMENT) else None
        size = math.prod(lowered.views[e.outputs[0]].shape)
        by_row = self.extent is not None and (lowered.target.both_sums or Level.COLUMN not in self.levels.values())
        for level, count in ((Level.ELEMENT, self.size), (Level.ROW, self.rows if by_row else -1)):
            if size == count:
                state = self._state()
                for slot in e.inputs:
                    if not self._read(slot, level):
                        break
                else:
                    return level
                self._restore(state)
        return None

    def set_extent(self, extent: int, columns: bool = False) -> bool:
        """Have rows of so many elements, which are gone down by `columns` or not; whether it can."""
        if self.extent is not None:
            return self.extent == extent and (self.columns is columns or self.lowered.target.both_sums)
        cuts = None if extent <= 1 else views.chain(self.cuts, (1, extent))
        if cuts is None:
            return False
        self.cuts, self.extent, self.columns = cuts, extent, columns
        return self._all_fit()

    def _all_fit(self) -> bool:
        return self.extent is None or all(self._fits(*operand) for operand in (*self.operands, *self.targets))

    def _writes(self, slot: int, level: Level) -> bool:
        """Whether the place of a value in memory suits the loop."""
        part = self.lowered.parts.get(slot)
        if part is None:
            return True
        target = View(part.whole, part.offset, self.lowered.views[slot].shape, part.strides)
        return self._add(self.targets, target, level)

    def _add(self, to: dict[tuple[View, Level], None], view: View, level: Level) -> bool:
        """Have a view among the operands, or targets, with its borders among the cuts; whether all of them fit."""
        if (view, level) in to:
            return True
        before, scale = self.cuts, (self.extent or 1) if level is Level.ROW else 1
        cuts = views.chain(before, views.borders(view.shape, view.strides, scale))
        if cuts is None:
            return False
        self.cuts = cuts
        to[view, level] = None
        return self._fits(view, level) if cuts == before else self._all_fit()

    def _read(self, slot: int, level: Level) -> bool:
        """Whether a value can be read at this level; one from outside becomes an operand."""
        lowered = self.lowered
        if slot in lowered.literals:
            return True
        view = lowered.views[slot]
        made = self.levels.get(view.root)
        if made is not None:
            if made is level:
                return view.offset == 0 and view.contiguous and view.size == math.prod(lowered.views[view.root].shape)
            return made is Level.ROW and level is Level.ELEMENT and self._spreads_rows(view)
        return self._add(self.operands, view, level)

    def _spreads_rows(self, view: View) -> bool:
        """Whether element i of the view is row i // extent."""
        assert self.extent is not None
        axes = views.merged(view.shape, view.strides)
        expected = ((self.rows, 1), (self.extent, 0)) if self.rows > 1 else ((self.extent, 0),)
        return view.offset == 0 and axes == expected

    def _fits(self, view: View, level: Level) -> bool:
        """Whether a loop can go along a row of an operand: if that has one stride, or may have several."""
        if level is Level.ROW or self.extent is None:
            return True
        strides = self.strides(view, level)
        if strides is None:
            return False
        if self.lowered.target.broken_rows and not self.columns:
            return True
        inner = [c for c in self.cuts if c < self.extent]
        sizes = [b // a for a, b in zip(inner, [*inner[1:], self.extent])]
        return len(views.merged(tuple(reversed(sizes)), tuple(strides[len(strides) - len(inner) :]))) <= 1

    def strides(self, view: View, level: Level) -> list[int] | None:
        """The strides of an operand for the axes between the cuts, outermost first."""
        scale = (self.extent or 1) if level is Level.ROW else 1
        cuts = [c // scale for c in self.cuts if c >= scale]
        return views.split(views.merged(view.shape, view.strides), cuts[:-1])


def staged(cluster: Cluster, equations: Sequence[Equation]) -> dict[int, int]:
    """In which pass over a row each value is made (one that a row has once, before the pass of that number)."""
    if cluster.extent is None:
        return {slot: 0 for e in equations for slot in e.outputs}
    views_, literals = cluster.lowered.views, cluster.lowered.literals
    stage: dict[int, int] = {}
    for e in equations:
        roots = [views_[slot].root for slot in e.inputs if slot not in literals]
        at = max([stage[root] for root in roots if root in stage], default=0)
        stage[e.outputs[0]] = at + 1 if e.primitive in (ROW_SUM, ROW_MAX) else at
    return stage


def left_in_memory(
    lowered: Lowered, group: FusionGroup, place: int, read: Mapping[int, set[int]], results: Collection[int]
) -> set[int]:
    """The slots of a cluster that must be stored: read by other groups, part of a concatenation, or `results`."""
    made = group.cluster.levels if group.cluster is not None else ()
    return {slot for slot in made if slot in results or slot in lowered.parts or read.get(slot, set()) - {place}}


def roots_read(lowered: Lowered, equations: Iterable[Equation]) -> set[int]:
    seen, literals = lowered.views, lowered.literals
    return {seen[slot].root for e in equations for slot in e.inputs if slot not in literals}


def memory_read(lowered: Lowered, equations: Iterable[Equation]) -> set[int]:
    """The roots that equations read, and the wholes that these are parts of."""
    roots = roots_read(lowered, equations)
    if not lowered.parts:
        return roots
    return roots | {lowered.parts[root].whole for root in roots if root in lowered.parts}


def read_by(lowered: Lowered, groups: Sequence[FusionGroup]) -> dict[int, set[int]]:
    """The places in `groups` of those that read each root; a whole is read by whoever reads a part of it."""
    read: dict[int, set[int]] = {}
    for place, group in enumerate(groups):
        for root in memory_read(lowered, group.equations):
            if root in read:
                read[root].add(place)
            else:
                read[root] = {place}
    return read
