"""Clusters: equations computed by one loop, so that values between them never go to memory.

A cluster iterates over `size` elements. With a reduction, these form rows of `extent` elements: some values then exist
once per row, and the loop passes over a row as many times as reductions must complete before their results are used.
Sums over rows, one per column, are accumulated along the way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import final

from ...ops.body import Equation
from . import views
from .formulas import COLUMN_SUM, REDUCTIONS, ROW_MAX, ROW_SUM
from .lowering import Lowered
from .views import Cuts, View

MOST_EQUATIONS = 48
_MOST_OPERANDS = 24


class Level(Enum):
    """The multiplicity of a value in a loop."""

    __hash__ = object.__hash__  # members are singletons, and Enum's own hash is Python code

    ELEMENT = "one per element"
    ROW = "one per row"
    COLUMN = "one per column, after the loop"


@final
class FusionGroup:
    """A fusion group: a cluster, or a single equation.

    ahead   whether it is computed before the rest of the program
    """

    __slots__ = ("equations", "number", "cluster", "ahead", "readers")

    def __init__(self, equation: Equation, number: int, cluster: Cluster | None = None, *, ahead: bool = False):
        self.equations = [equation]
        self.number = number
        self.cluster = cluster
        self.ahead = ahead
        self.readers: set[int] = set()  # the numbers of the groups that read it


@final
class Cluster:
    """A cluster under construction.

    columns     whether the loop iterates down the columns of rows
    levels      of every value that it computes
    operands    views that are read from outside, with their levels; `cuts` are the common axis boundaries of all views
    targets     views of the parts of concatenations that are written, with their levels
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
        """Add an equation if the loop can compute it; return whether it was added. A refusal changes nothing."""
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
        """Add equations in order; return whether all were added."""
        return all(map(self.admit, equations))

    def copied(self) -> Cluster:
        """Return a copy, to which further equations can be added."""
        copy = Cluster(self.lowered, self.size)
        copy.extent, copy.columns, copy.cuts = self.extent, self.columns, self.cuts
        copy.levels, copy.operands, copy.targets = self.levels.copy(), self.operands.copy(), self.targets.copy()
        return copy

    def _state(self) -> tuple[Cuts, int, int]:
        return self.cuts, len(self.operands), len(self.targets)

    def _restore(self, state: tuple[Cuts, int, int]) -> None:
        """Restore a state by removing later additions, which come last."""
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
        """Split into rows of `extent` elements, iterated down columns if `columns`; return whether that is possible."""
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
        """Return whether the loop can write a value to its memory."""
        part = self.lowered.parts.get(slot)
        if part is None:
            return True
        target = View(part.whole, part.offset, self.lowered.views[slot].shape, part.strides)
        return self._add(self.targets, target, level)

    def _add(self, to: dict[tuple[View, Level], None], view: View, level: Level) -> bool:
        """Add a view to the operands or targets, and its boundaries to the cuts; return whether all views fit."""
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
        """Return whether a value can be read at this level; a value from outside becomes an operand."""
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
        """Return whether element i of the view is row i // extent."""
        assert self.extent is not None
        axes = views.merged(view.shape, view.strides)
        expected = ((self.rows, 1), (self.extent, 0)) if self.rows > 1 else ((self.extent, 0),)
        return view.offset == 0 and axes == expected

    def _fits(self, view: View, level: Level) -> bool:
        """Return whether the loop can iterate along a row of an operand: it has one stride, or the target allows
        several."""
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
        """Return the strides of an operand for the axes between the cuts, outermost first."""
        scale = (self.extent or 1) if level is Level.ROW else 1
        cuts = [c // scale for c in self.cuts if c >= scale]
        return views.split(views.merged(view.shape, view.strides), cuts[:-1])


def staged(cluster: Cluster, equations: Sequence[Equation]) -> dict[int, int]:
    """Return the pass over a row that computes each value; row values are computed before the pass with that number."""
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
    """Return the slots of a cluster to store: those read by other groups, parts of concatenations, and `results`."""
    made = group.cluster.levels if group.cluster is not None else ()
    return {slot for slot in made if slot in results or slot in lowered.parts or read.get(slot, set()) - {place}}


def roots_read(lowered: Lowered, equations: Iterable[Equation]) -> set[int]:
    seen, literals = lowered.views, lowered.literals
    return {seen[slot].root for e in equations for slot in e.inputs if slot not in literals}


def memory_read(lowered: Lowered, equations: Iterable[Equation]) -> set[int]:
    """Return the roots that equations read, and the wholes that contain them."""
    roots = roots_read(lowered, equations)
    if not lowered.parts:
        return roots
    return roots | {lowered.parts[root].whole for root in roots if root in lowered.parts}


def read_by(lowered: Lowered, groups: Sequence[FusionGroup]) -> dict[int, set[int]]:
    """Return, for each root, the positions in `groups` of its readers; readers of a part also read its whole."""
    read: dict[int, set[int]] = {}
    for place, group in enumerate(groups):
        for root in memory_read(lowered, group.equations):
            if root in read:
                read[root].add(place)
            else:
                read[root] = {place}
    return read
