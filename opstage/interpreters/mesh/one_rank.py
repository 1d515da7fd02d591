"""`OneRank`: runs a program as if there were a single rank, on top of a mesh."""

from __future__ import annotations

from typing import Any, final

from typing_extensions import override

from ...ops.mesh import ALONE, Mesh
from ...ops.primitive import Primitive, Static
from ..interpreter import Holding, Interpreter, Wrapper


@final
class Lone(Holding):
    """A ref with the same value on all ranks."""

    __slots__ = ("value", "ops")

    def __init__(self, value: Any, ops: OneRank):
        self.value = value
        self.ops = ops


@final
class OneRank(Wrapper[Lone, Any]):
    """Hides the mesh: every collective returns its operand, as is right for programs on whole batches, such as
    prediction."""

    __slots__ = ()
    ref_type = Lone

    def __init__(self, inner: Interpreter[Any]):
        super().__init__(inner, differentiates=False)

    @property
    @override
    def mesh(self) -> Mesh:
        return ALONE

    @override
    def wrap(self, value: Any, /) -> Lone:
        return Lone(value, self)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Lone, ...], static: Static, /) -> tuple[Lone, ...]:
        values = tuple([self.adopt(ref).value for ref in refs])
        return tuple([Lone(out, self) for out in self.inner.bind(primitive, values, static)])
