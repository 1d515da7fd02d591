"""The loop IR: the contents of a cluster's kernel, independent of its target language.

A loop iterates over rows, and over the elements of each row in passes: as many as sums or maxima of a row must complete
before they are used. A cluster without rows is a single row with one pass. Statements refer to values and memory; the
printer decides how these are addressed and how sums are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ...ops.closed import Equation
from ...ops.primitive import Primitive
from ...ops.types import DType, TensorType
from .clusters import Level
from .views import View


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
