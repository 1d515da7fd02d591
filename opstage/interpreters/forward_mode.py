"""Forward mode over any interpreter: each ref carries its tangent along."""

from __future__ import annotations

from typing import Generic, final

from typing_extensions import override

from ..ops.cursor import Quietly
from ..ops.errors import ProgramError
from ..ops.primitive import Primitive, R, Static
from .interpreter import Holding, Interpreter, Wrapper


@final
class Dual(Holding, Generic[R]):
    """A ref of forward mode: a value of the inner interpreter and its tangent, None when it is zero."""

    __slots__ = ("value", "ops", "tangent")

    def __init__(self, value: R, ops: ForwardMode[R], tangent: R | None = None):
        self.value = value
        self.ops = ops
        self.tangent = tangent


@final
class ForwardMode(Wrapper[Dual[R], R]):
    """Jacobian-vector products by each primitive's jvp rule."""

    __slots__ = ()
    ref_type = Dual

    def __init__(self, inner: Interpreter[R]):
        super().__init__(inner, differentiates=True)

    @override
    def wrap(self, value: R, /) -> Dual[R]:
        return Dual(value, self)

    def dual(self, value: R, tangent: R | None) -> Dual[R]:
        """A ref with a tangent that must have its shape and dtype."""
        return Dual(value, self, tangent if value.dtype.kind in "fO" else None)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Dual[R], ...], static: Static, /) -> tuple[Dual[R], ...]:
        if self.closed:
            raise ProgramError(self.closed)
        refs = tuple([r if type(r) is Dual and r.ops is self else self.adopt(r) for r in refs])
        values = tuple([r.value for r in refs])
        tangents = tuple([r.tangent for r in refs])
        moving = primitive.differentiable and any(t is not None for t in tangents)
        if not moving:
            return tuple([Dual(v, self) for v in self.inner.bind(primitive, values, static)])
        rule = primitive.jvp
        if primitive.expandable and (self.inner.differentiates or rule is None):
            return self.decompose(primitive, refs, static)
        if rule is None:
            raise primitive.without_rule("jvp")
        outs = self.inner.bind(primitive, values, static)
        if primitive.residuals and self.inner.differentiates:
            primitive.require_closed(outs[len(primitive.outputs) :])
        with Quietly(self.cursor):
            moved = rule(self.inner, values, outs, tangents, **static)
        rest = (None,) * (len(outs) - len(moved))
        return tuple([Dual(v, self, t) for v, t in zip(outs, (*moved, *rest))])
