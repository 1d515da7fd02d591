"""Expansion: composites written out by their decomposition, but for those that the executor has a kernel for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeAlias, final

from typing_extensions import override

from ....ops.closed import Body, Trace
from ....ops.errors import ProgramError
from ....ops.lists import no_ref
from ....ops.primitive import Primitive, Static
from ....ops.types import FLOAT64, DType, Shape, TensorType, as_dtype
from ...host import as_array
from ...interpreter import BaseInterpreter
from ...structural import SCAN
from .keys import static_key
from .rewrite import Rewrite

Keep: TypeAlias = Callable[[Primitive, tuple[TensorType, ...], Static], bool]
"""(primitive, types of the operands, static parameters) -> whether a composite stays as it is."""


def expand(body: Body, keep: Keep, *, loops: bool = False) -> Body:
    """The body without composites, except those that `keep` says stay; decompositions are expanded in turn.

    The parts stand in the region, and at the ordinal, of the op that they serve. Loops stay loops; with `loops` each
    turn of them is written out.
    """
    rewrite = Rewrite(body)
    types = rewrite.types
    written: dict[Hashable, Body] = {}  # a decomposition is run once for operands of the same types
    for equation in body.equations:
        primitive, static = equation.primitive, equation.static
        inputs = rewrite.inputs(equation)
        if primitive.decomposition is None:
            rewrite.keep(equation, inputs)
            continue
        operands = tuple([types[slot] for slot in inputs])
        if _stays(keep, primitive, operands, static, loops):
            rewrite.keep(equation, inputs)
            continue
        key = (primitive, operands, static_key(static))
        parts = written.get(key)
        if parts is None:
            parts = written[key] = _Expander(keep, loops).parts(primitive, operands, static)
        rewrite.replace(equation.outputs, rewrite.inline(parts, inputs, equation))
    return rewrite.close()


def _stays(keep: Keep, primitive: Primitive, operands: tuple[TensorType, ...], static: Static, loops: bool) -> bool:
    if primitive is SCAN:
        return not loops
    return primitive.decomposition is None or keep(primitive, operands, static)


@final
class _Operand:
    """What a decomposition computes with."""

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
    """Writes down what a decomposition does."""

    __slots__ = ("trace", "keep", "loops")

    def __init__(self, keep: Keep, loops: bool):
        super().__init__(FLOAT64, 0)  # decompositions take dtypes and seeds from their operands and statics
        self.trace = Trace()
        self.keep = keep
        self.loops = loops

    def parts(self, primitive: Primitive, operands: tuple[TensorType, ...], static: Static) -> Body:
        """A composite as a body of its own, from operands to outputs and residuals."""
        refs = tuple([_Operand(self.trace.slot(type_), type_) for type_ in operands])
        results = self.decompose(primitive, refs, static)
        return self.trace.close([ref.slot for ref in refs], [ref.slot for ref in results], {})

    @override
    def bind(self, primitive: Primitive, refs: tuple[_Operand, ...], static: Static, /) -> tuple[_Operand, ...]:
        operands = tuple([ref.type for ref in refs])
        if not _stays(self.keep, primitive, operands, static, self.loops):
            return self.decompose(primitive, refs, static)
        types = primitive.infer(operands, static)
        slots = self.trace.equation(primitive, tuple([ref.slot for ref in refs]), static, types, self.cursor)
        return tuple([_Operand(slot, type_) for slot, type_ in zip(slots, types)])

    @override
    def adopt(self, ref: Any, /) -> _Operand:
        if type(ref) is _Operand:
            return ref
        raise no_ref(ref)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> _Operand:
        array = as_array(value, self.dtype if dtype is None else as_dtype(dtype), force=dtype is not None)
        type_ = TensorType(array.shape, array.dtype)
        return _Operand(self.trace.constant(array, type_), type_)

    @override
    def put(self, value: Any, /) -> _Operand:
        return self.const(value)

    @override
    def get(self, ref: _Operand, /) -> Any:
        raise ProgramError("a decomposition has no values, so it cannot depend on them")
