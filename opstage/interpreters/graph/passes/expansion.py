"""Expansion: composites written out by their decomposition, but for those that the executor has a kernel for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeAlias, final

from typing_extensions import override

from ....ops.closed import Body, Equation
from ....ops.errors import ProgramError
from ....ops.primitive import Primitive, Static
from ....ops.types import FLOAT64, DType, Shape, TensorType, as_dtype
from ...eager_cpu.interpreter import as_array
from ...interpreter import BaseInterpreter
from ...structural import SCAN
from .keys import static_key
from .rewrite import Rewrite

Keep: TypeAlias = Callable[[Primitive, tuple[TensorType, ...], Static], bool]
"""(primitive, types of the operands, static parameters) -> whether a composite stays as it is."""


def keep_none(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> bool:
    """Down to core primitives."""
    return False


def expand(body: Body, keep: Keep = keep_none) -> Body:
    """The body without composites, except those that `keep` says stay; decompositions are expanded in turn.

    The parts stand in the region, and at the ordinal, of the op that they serve. Loops stay loops.
    """
    rewrite = Rewrite(body)
    expander: _Expander | None = None
    types = rewrite.types
    for equation in body.equations:
        primitive = equation.primitive
        inputs = rewrite.inputs(equation)
        if _stays(keep, primitive, inputs, equation.static, types):
            rewrite.keep(equation, inputs)
            continue
        if expander is None:
            expander = _Expander(rewrite, keep)
        rewrite.replace(equation.outputs, expander.expanded(equation, inputs))
    return rewrite.close()


def _stays(keep: Keep, primitive: Primitive, inputs: tuple[int, ...], static: Static, types: list[TensorType]) -> bool:
    return (
        primitive.decomposition is None
        or primitive is SCAN
        or keep(primitive, tuple([types[slot] for slot in inputs]), static)
    )


@final
class _Operand:
    """What a decomposition computes with: a slot of the new body."""

    __slots__ = ("slot", "type")

    def __init__(self, slot: int, type: TensorType):
        self.slot = slot
        self.type = type

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype


@final
class _Expander(BaseInterpreter[_Operand]):
    """Writes into a rewrite what a decomposition does, in the place of one equation after the other."""

    __slots__ = ("rewrite", "keep", "place", "_inferred")

    def __init__(self, rewrite: Rewrite, keep: Keep):
        super().__init__(FLOAT64, 0)  # decompositions take dtypes and seeds from their operands and statics
        self.rewrite = rewrite
        self.keep = keep
        self.place: Equation | None = None
        self._inferred: dict[Hashable, tuple[TensorType, ...]] = {}

    def expanded(self, equation: Equation, inputs: tuple[int, ...]) -> tuple[int, ...]:
        """The slots of outputs and residuals of `equation`, written out."""
        self.place = equation
        cursor, types = self.cursor, self.rewrite.types
        cursor.region, cursor.ordinal = equation.region, equation.ordinal
        refs = tuple([_Operand(slot, types[slot]) for slot in inputs])
        return tuple([ref.slot for ref in self.decompose(equation.primitive, refs, equation.static)])

    @override
    def bind(self, primitive: Primitive, refs: tuple[_Operand, ...], static: Static, /) -> tuple[_Operand, ...]:
        assert self.place is not None
        inputs = tuple([ref.slot for ref in refs])
        if not _stays(self.keep, primitive, inputs, static, self.rewrite.types):
            return self.decompose(primitive, refs, static)
        operands = tuple([ref.type for ref in refs])
        key = (primitive, operands, static_key(static))
        results = self._inferred.get(key)
        if results is None:
            results = self._inferred[key] = primitive.infer(operands, static, self.place.region.name)
        slots = self.rewrite.write(primitive, inputs, static, results, self.place)
        return tuple([_Operand(slot, type_) for slot, type_ in zip(slots, results)])

    @override
    def adopt(self, ref: Any, /) -> _Operand:
        if type(ref) is _Operand:
            return ref
        raise ProgramError(f"an op got a {type(ref).__name__} where it needs a ref; make one with ops.const(…)")

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> _Operand:
        array = as_array(value, self.dtype if dtype is None else as_dtype(dtype), force=dtype is not None)
        type_ = TensorType(array.shape, array.dtype)
        return _Operand(self.rewrite.constant(array, type_), type_)

    @override
    def put(self, value: Any, /) -> _Operand:
        return self.const(value)

    @override
    def get(self, ref: _Operand, /) -> Any:
        raise ProgramError("a decomposition has no values, so it cannot depend on them")
