"""The loop IR: what the kernel of a cluster does, whatever language it is printed in.

A loop goes through rows, and through the elements of each row in passes: as often as a sum or a maximum of the row must
be complete before it is used. A cluster without rows is one row, gone through once. Statements name values and places
in memory; how these are addressed, and how a sum is taken, is left to whoever prints them.
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
    """A value under a name: each element has one, or each row."""

    name: str
    dtype: DType
    level: Level


class Literal(NamedTuple):
    """A number that is known beforehand."""

    value: object
    dtype: DType


Value: TypeAlias = "Local | Literal"


class LoopOperand(NamedTuple):
    """Memory that a loop reads or writes: a view of a root, and its stride along each axis of the loop.

    counted     whether it holds 0, 1, 2, …, which a kernel counts for itself
    """

    local: Local
    view: View
    strides: tuple[int, ...]
    counted: bool

    @property
    def name(self) -> str:
        return self.local.name


class KeptRow(NamedTuple):
    """A row of values that one pass makes and later ones read: memory of a worker's own."""

    local: Local


Place: TypeAlias = "LoopOperand | KeptRow"


class Accumulator(NamedTuple):
    """A sum along a row, the greatest element of a row, or a sum over rows for each column, of the output `slot`.

    Its local has the value once the pass is over; a sum over rows is complete when the loop is.
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
    """local = the formula of an equation, of operands of types `ins`"""

    local: Local
    equation: Equation
    out: TensorType
    ins: tuple[TensorType, ...]
    args: tuple[Value, ...]


class Check(NamedTuple):
    """local = value, if 0 <= position < size; else an index is out of range"""

    local: Local
    position: Value
    value: Value
    size: int


class Accumulation(NamedTuple):
    """One element more for an accumulator."""

    accumulator: Accumulator
    value: Value


Statement: TypeAlias = "Load | Store | Assign | Check | Accumulation"


class Pass(NamedTuple):
    """One time through the elements of a row.

    before      what is done once, ahead of the elements; what earlier passes accumulate is complete there
    inside      what is done for each element
    row         accumulators of the row, which begin before the elements and are complete after them
    """

    before: list[Statement]
    inside: list[Statement]
    row: list[Accumulator]


class IterationSpace(NamedTuple):
    """The axes of a loop, outermost first, and its operands.

    outer   how many axes are those of rows; the others, usually one, are those of a row's elements
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
    """All that a kernel does.

    columns     sums over rows, which begin before all rows and are complete after them
    extent      elements of a row; None where single elements are gone through
    lanes       whether rows are gone through side by side
    run         elements of a row that are added in one running sum, those of runs in another one; None where all are
    """

    name: str
    space: IterationSpace
    passes: Sequence[Pass]
    columns: Sequence[Accumulator]
    extent: int | None
    lanes: bool
    run: int | None
