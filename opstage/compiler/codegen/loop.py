"""The loop IR: the contents of a cluster's kernel, independent of its target language.

A loop iterates over rows, and over the elements of each row in passes: as many as sums or maxima of a row must complete
before they are used. A cluster without rows is a single row with one pass. Statements refer to values and memory; the
printer decides how these are addressed and how sums are computed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from ...ops.body import Equation
from ...ops.primitive import Primitive
from ...ops.types import DType, TensorType
from . import views
from .clusters import Cluster, Level
from .views import View

# The loop IR ----------------------------------------------------------------------------------------------------------


class Local(NamedTuple):
    """A named value: one per element, or one per row."""

    name: str
    dtype: DType
    level: Level


class Literal(NamedTuple):
    """A constant."""

    value: object
    dtype: DType


Value: TypeAlias = "Local | Literal"


class LoopOperand(NamedTuple):
    """Memory that a loop reads or writes: a view of a root, with its stride along each axis of the loop.

    counted     whether it holds 0, 1, 2, …, which kernels compute instead of reading
    """

    local: Local
    view: View
    strides: tuple[int, ...]
    counted: bool

    @property
    def name(self) -> str:
        return self.local.name


class KeptRow(NamedTuple):
    """A row of values that one pass stores for later passes, in a worker's scratch memory."""

    local: Local


Place: TypeAlias = "LoopOperand | KeptRow"


class Accumulator(NamedTuple):
    """A sum along a row, the maximum of a row, or a sum over rows for each column; its output is `slot`.

    Its local has the value after the pass; a sum over rows is complete after the loop.
    """

    local: Local
    slot: int
    primitive: Primitive


class Load(NamedTuple):
    """local = the element of `place`"""

    local: Local
    place: Place


class Store(NamedTuple):
    """the element of `place` = local"""

    place: Place
    local: Local


class Assign(NamedTuple):
    """local = the formula of an equation, with operands of types `ins`"""

    local: Local
    equation: Equation
    out: TensorType
    ins: tuple[TensorType, ...]
    args: tuple[Value, ...]


class Check(NamedTuple):
    """local = value, if 0 <= position < size; otherwise an index is out of range"""

    local: Local
    position: Value
    value: Value
    size: int


class Accumulation(NamedTuple):
    """Add an element to an accumulator."""

    accumulator: Accumulator
    value: Value


Statement: TypeAlias = "Load | Store | Assign | Check | Accumulation"


class Pass(NamedTuple):
    """A pass over the elements of a row.

    before      statements that run once before the elements; accumulators of earlier passes are complete
    inside      statements that run for each element
    row         accumulators of the row, initialised before the elements and complete after them
    """

    before: list[Statement]
    inside: list[Statement]
    row: list[Accumulator]


class IterationSpace(NamedTuple):
    """The axes of a loop, outermost first, and its operands.

    outer   the number of axes over rows; the others, usually one, are over a row's elements
    reads   by view and level
    writes  by slot
    """

    sizes: tuple[int, ...]
    outer: int
    reads: dict[tuple[View, Level], LoopOperand]
    writes: dict[int, LoopOperand]

    @property
    def operands(self) -> list[LoopOperand]:
        return [*self.reads.values(), *self.writes.values()]


class LoopNest(NamedTuple):
    """A complete loop.

    columns     sums over rows, initialised before all rows and complete after them
    extent      elements per row; None for a loop over single elements
    lanes       whether adjacent rows are processed side by side
    run         elements of a row per running sum, whose sums are added separately; None for one running sum
    """

    name: str
    space: IterationSpace
    passes: Sequence[Pass]
    columns: Sequence[Accumulator]
    extent: int | None
    lanes: bool
    run: int | None


# Iteration axes -------------------------------------------------------------------------------------------------------

_Axis = tuple[int, tuple[int, ...]]
"""A size, and the stride of each operand."""


def space_of(cluster: Cluster, stored: Collection[int]) -> IterationSpace:
    """Return the axes and operands of a cluster that stores the values of the slots `stored`."""
    lowered, extent = cluster.lowered, cluster.extent
    written = [slot for slot, level in cluster.levels.items() if slot in stored and level is not Level.COLUMN]
    targets = [(lowered.in_memory(lowered.views[slot]), cluster.levels[slot]) for slot in written]
    for view, level in targets:
        scale = (extent or 1) if level is Level.ROW else 1
        every = views.chain(cluster.cuts, views.borders(view.shape, view.strides, scale))
        assert every is not None, "a part of a concatenation is packed along its own axes"
        cluster.cuts = every
    inner = sum(1 for c in cluster.cuts[:-1] if extent is not None and c < extent)
    steps = []
    for view, level in (*cluster.operands, *targets):
        strides = cluster.strides(view, level)
        assert strides is not None
        steps.append([*strides, *([0] * inner if level is Level.ROW else [])])
    sizes = [b // a for a, b in pairwise(cluster.cuts)][::-1]
    axes = [(n, tuple([s[axis] for s in steps])) for axis, n in enumerate(sizes)]
    border = len(axes) - inner
    outer, within = _merged(axes[:border]), _merged(axes[border:])
    if extent is None:  # the last axis is the inner one
        outer, within = outer[:-1], outer[-1:]
    assert len(within) <= 1 or lowered.target.broken_rows
    axes = [*outer, *(within or [(1, tuple([0] * len(steps)))])]

    def operand(name: str, view: View, level: Level, place: int) -> LoopOperand:
        local = Local(name, lowered.types[view.root].dtype, level)
        return LoopOperand(local, view, tuple([s[place] for _, s in axes]), view.root in lowered.counted)

    reads = {
        (view, level): operand(f"x{i}", lowered.in_memory(view), level, i)
        for i, (view, level) in enumerate(cluster.operands)
    }
    writes = {
        slot: operand(f"y{i}", view, level, len(reads) + i)
        for i, (slot, (view, level)) in enumerate(zip(written, targets))
    }
    return IterationSpace(tuple([n for n, _ in axes]), len(outer), reads, writes)


def _merged(axes: Sequence[_Axis]) -> list[_Axis]:
    """Merge adjacent axes where possible."""
    found: list[_Axis] = []
    for n, strides in axes:
        if found and all(before == s * n for before, s in zip(found[-1][1], strides)):
            found[-1] = (found[-1][0] * n, strides)
        else:
            found.append((n, strides))
    return found


def as_written(space: IterationSpace) -> IterationSpace:
    """Order the axes by the memory order of the first stored result, for a loop that may iterate in any order."""
    if not space.writes:
        return space
    first = next(iter(space.writes.values()))
    order = sorted(range(len(space.sizes)), key=lambda axis: -first.strides[axis])
    operands = space.operands
    axes = _merged([(space.sizes[axis], tuple([o.strides[axis] for o in operands])) for axis in order])
    moved = iter([o._replace(strides=tuple([s[i] for _, s in axes])) for i, o in enumerate(operands)])
    return space._replace(
        sizes=tuple([n for n, _ in axes]),
        reads={key: next(moved) for key in space.reads},
        writes={slot: next(moved) for slot in space.writes},
    )
