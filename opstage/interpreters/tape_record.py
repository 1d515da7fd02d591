"""`Record`: what a tape stores of one op."""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, final

from ..ops.cursor import Region
from ..ops.errors import ProgramError
from ..ops.primitive import Primitive, R, Static
from ..ops.types import DType, Shape, TensorType


@final
class Record(Generic[R]):
    """One op on the tape, or a leaf (primitive None). It is the context passed to the op's vjp rule."""

    __slots__ = (
        "serial",
        "primitive",
        "static",
        "sources",
        "slots",
        "needs",
        "saved",
        "constants",
        "shape",
        "dtype",
        "further",
        "region",
        "ordinal",
        "arrived",
        "mark",
    )
    # Every object that a record holds, and that can hold others, is one more for the garbage collector to walk. So the
    # types of operands are read from the records that made them, and tuples that many records need are shared.

    serial: int
    primitive: Primitive | None
    static: Static
    sources: Record[R] | Sources[R]  # what made the operands; the record itself where there is one operand
    slots: tuple[int, ...]  # which output of that record the operand is
    needs: tuple[bool, ...]
    saved: tuple[Any, ...]  # aligned with the primitive's saves; None for what no wanted cotangent reads
    constants: tuple[Any, ...]  # shape, dtype, shape, dtype, … of the operands that no record made
    shape: Shape  # of the first output
    dtype: DType
    further: tuple[Any, ...]  # shape, dtype, … of the other outputs and residuals
    region: Region
    ordinal: int
    arrived: list[R | None] | None  # during a backward pass: the cotangents of the outputs so far
    mark: object  # the backward pass that reached it last

    @property
    def parents(self) -> Sources[R]:
        """The record that made each operand; None where no gradient is wanted."""
        sources = self.sources
        return (sources,) if isinstance(sources, Record) else sources

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """The types of all operands present."""
        sources = self.sources
        if isinstance(sources, Record):
            return (sources.output(self.slots[0]),)
        constants = iter(_types(self.constants))
        return tuple([next(constants) if p is None else p.output(slot) for p, slot in zip(sources, self.slots)])

    def forget(self) -> None:
        """Drop the values saved for the backward pass, after which none can go through this op."""
        self.saved = self.sources = ()
        self.primitive = CONSUMED

    def output(self, slot: int) -> TensorType:
        """The type of one output or residual."""
        if not slot:
            return TensorType(self.shape, self.dtype)
        return TensorType(self.further[2 * slot - 2], self.further[2 * slot - 1])

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """The types of all outputs and residuals."""
        return (TensorType(self.shape, self.dtype), *_types(self.further))


Sources: TypeAlias = tuple[Record[R] | None, ...]


def _types(flat: tuple[Any, ...]) -> list[TensorType]:
    return [TensorType(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


def _consumed(*_: Any, **__: Any) -> Any:
    raise ProgramError("this part of the tape was consumed by an earlier backward pass; run the program again")


CONSUMED = Primitive("consumed", operands=(), shape=_consumed, vjp=_consumed)
"""The op of a record whose residuals are gone."""
