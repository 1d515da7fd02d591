"""`Regathering`: sharded parameters, gathered where an op reads them and dropped afterwards.

It sits between a tape and the inner interpreter, and its refs of such parameters hold no values. The tape keeps these
refs for the backward pass, and rules that read them there gather the parameter again: only the parameters that one op
reads are whole at a time (ZeRO 3, Rajbhandari et al. 2020; reshard_after_forward of PyTorch's FSDP2). Views of such
parameters, such as transposes, are recomputed too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from typing_extensions import override

from ..ops.dispatch import Quietly
from ..ops.primitive import Primitive, Static
from ..ops.types import TensorType
from ..transforms.interpreter import Holding, Interpreter, Typed, Wrapper


@final
class Regathered(Typed):
    """A ref that holds a value of the inner interpreter, or a function that makes it on every read."""

    __slots__ = ("type", "ops", "_value", "make")

    def __init__(self, ops: Regathering, type_: TensorType, value: Any, make: Callable[[], Any] | None = None):
        self.type = type_
        self.ops = ops
        self._value = value
        self.make = make

    def value(self) -> Any:
        """Return the value, which should not be kept longer than needed."""
        return self._value if self.make is None else self.ops.made(self.make)


@final
class Regathering(Wrapper[Regathered, Any]):
    """Runs ops on `inner`; see the module's docstring."""

    __slots__ = ()
    ref_type = Regathered

    def __init__(self, inner: Interpreter[Any]):
        super().__init__(inner, differentiates=False)

    @property
    @override
    def fuses(self) -> bool:
        return self.inner.fuses

    @override
    def has_fused(self, primitive: Primitive, types: tuple[TensorType, ...]) -> bool:
        return self.inner.has_fused(primitive, types)

    @override
    def before_decompose(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> None:
        own = [_beneath(ref) for ref in refs]  # of this interpreter, or of the body of a loop that is being traced
        if any(type(ref) is Regathered and ref.make is not None for ref in own):  # types suffice: nothing is gathered
            self.inner.infer(primitive, tuple([TensorType(ref.shape, ref.dtype) for ref in own]), static)
        else:
            values = [ref.value() if type(ref) is Regathered else ref for ref in own]
            self.inner.before_decompose(primitive, tuple(values), static)

    @override
    def wrap(self, value: Any, /) -> Regathered:
        return Regathered(self, TensorType(value.shape, value.dtype), value)

    def gathered(self, type_: TensorType, make: Callable[[], Any]) -> Regathered:
        """Return a tensor of this type that `make` computes on every read."""
        return Regathered(self, type_, None, make)

    def made(self, make: Callable[[], Any]) -> Any:
        """Return the value of `make`, whose ops count as forward ops wherever they run."""
        cursor = self.cursor
        backward, cursor.backward = cursor.backward, False
        try:
            with Quietly(cursor):
                return make()
        finally:
            cursor.backward = backward

    @override
    def bind(self, primitive: Primitive, refs: tuple[Regathered, ...], static: Static, /) -> tuple[Regathered, ...]:
        inner = self.inner
        refs = tuple([self.adopt(ref) for ref in refs])
        if primitive.view and len(refs) == 1 and refs[0].make is not None:
            (x,) = refs
            types = inner.infer(primitive, (x.type,), static)
            if len(types) == 1:
                return (self.gathered(types[0], lambda: inner.bind(primitive, (x.value(),), static)[0]),)
        outs = inner.bind(primitive, tuple([ref.value() for ref in refs]), static)
        return tuple([self.wrap(out) for out in outs])


def _beneath(ref: Any) -> Any:
    """Return the innermost ref beneath refs of outer interpreters."""
    while isinstance(ref, Holding):
        ref = ref.value
    return ref
