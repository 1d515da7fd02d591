"""Interpreters that compute nothing and record a program as one trace, which may be used for any purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from ..ops.body import Trace
from ..ops.errors import ProgramError
from ..ops.infix import Infix
from ..ops.lists import no_ref
from ..ops.primitive import Primitive, Static
from ..ops.types import DType, TensorType, as_dtype
from .host import as_array
from .interpreter import BaseInterpreter, Variable


class Writing(BaseInterpreter[Variable]):
    """Records a `Trace`. Symbolic sizes in the types of the inputs stay symbolic. A subclass supplies `bind`.

    closed      the message for a ref that is used when the trace is closed; None before
    """

    __slots__ = ("trace", "closed")
    no_values = "a program that is recorded has no values yet, so its structure cannot depend on them"
    """The message where a value is requested."""

    def __init__(self, dtype: DType, seed: int):
        super().__init__(dtype, seed)
        self.trace = Trace()
        self.closed: str | None = None

    def input(self, type: TensorType) -> Variable:
        """A new input."""
        return Variable(self.trace.slot(type), type, self)

    def write(
        self, primitive: Primitive, refs: Sequence[Variable], static: Static, types: Sequence[TensorType]
    ) -> tuple[Variable, ...]:
        """The outputs and residuals, of the given types, of an op that is bound at the cursor."""
        slots = self.trace.equation(primitive, tuple([ref.slot for ref in refs]), static, types, self.cursor)
        return tuple([Variable(slot, type_, self) for slot, type_ in zip(slots, types)])

    @override
    def put(self, value: Any, /) -> Variable:
        return self.const(value)

    @override
    def get(self, ref: Variable, /) -> Any:
        raise ProgramError(self.no_values)

    @override
    def adopt(self, ref: Any, /) -> Variable:
        if type(ref) is Variable and ref.ops is self:
            if self.closed is not None:
                raise ProgramError(self.closed)
            return ref
        if isinstance(ref, Infix):
            why = getattr(getattr(ref, "ops", None), "closed", None) or "this one belongs to another run"
            raise ProgramError(f"refs of two interpreters were mixed: {why}")
        raise no_ref(ref)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> Variable:
        array = as_array(value, self.dtype if dtype is None else as_dtype(dtype), force=dtype is not None)
        type_ = TensorType(array.shape, array.dtype)
        return Variable(self.trace.constant(array, type_), type_, self)
