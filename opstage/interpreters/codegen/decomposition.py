"""A composite as a body of the ops that it is made of: what loops are generated from."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, final

from typing_extensions import override

from ...ops.catalogue import primitives
from ...ops.closed import Body
from ...ops.primitive import Primitive, Static
from ...ops.types import FLOAT64, TensorType
from ..control import CONTROL
from ..interpreter import Variable
from ..structural import SCAN
from ..tracer import Composite, constants, evaluate
from ..writing import Writing

Keep: TypeAlias = Callable[[Primitive, tuple[TensorType, ...], Static], bool]
"""(primitive, types of the operands, static parameters) -> whether a composite stays as it is."""


def distinct(static: Static) -> tuple[Any, ...]:
    """The values of static parameters as keys of what is made for them, where -0.0 is another number than 0.0."""
    return tuple([value or repr(value) for value in static.values()])


@cache
def _catalogue() -> frozenset[Primitive]:
    return frozenset(primitives().values())


def is_fixed(primitive: Primitive) -> bool:
    """Whether an op is a composite that is decomposed alike in every call, so that what is made of it can be kept.

    Those of the catalogue are, and closed bodies. What Python state another package's decomposition reads is unknown.
    """
    return type(primitive) is Composite or (primitive.decomposition is not None and primitive in _catalogue())


def stays(keep: Keep, primitive: Primitive, operands: tuple[TensorType, ...], static: Static, loops: bool) -> bool:
    """Whether an op is written down as it is; branches are, and loops, unless they are to be unrolled or one iteration
    is all they have."""
    if primitive in CONTROL:
        return primitive is not SCAN or not (loops or static["length"] == 1)
    return primitive.decomposition is None or keep(primitive, operands, static)


@final
class Expander(Writing):
    """Writes down what a decomposition does."""

    __slots__ = ("keep", "loops")
    no_values = "a decomposition has no values, so it cannot depend on them"

    def __init__(self, keep: Keep, loops: bool):
        super().__init__(FLOAT64, 0)  # decompositions take dtypes and seeds from their operands and statics
        self.keep = keep
        self.loops = loops

    def parts(self, primitive: Primitive, operands: tuple[TensorType, ...], static: Static) -> Body:
        """A composite as a body of its own, from operands to outputs and residuals, decomposed even if it may stay."""
        return self._body(self.decompose, primitive, operands, static)

    def body(self, primitive: Primitive, operands: tuple[TensorType, ...], static: Static) -> Body:
        """An op as a body of its own: of its parts, or of that op alone if it stays as it is."""
        return self._body(self.bind, primitive, operands, static)

    def _body(
        self,
        write: Callable[[Primitive, tuple[Variable, ...], Static], tuple[Variable, ...]],
        primitive: Primitive,
        operands: tuple[TensorType, ...],
        static: Static,
    ) -> Body:
        refs = tuple([self.input(type_) for type_ in operands])
        results = write(primitive, refs, static)
        return self.trace.close([ref.slot for ref in refs], [ref.slot for ref in results], {})

    def written_out(self, body: Body) -> Body:
        """`body` without the composites that do not stay; the parts stand where the op stood that they serve."""
        refs = [self.input(type_) for type_ in body.input_types]
        results = evaluate(self, body, refs, constants(self, body))
        return self.trace.close([ref.slot for ref in refs], [ref.slot for ref in results], body.lines)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Variable, ...], static: Static, /) -> tuple[Variable, ...]:
        operands = tuple([ref.type for ref in refs])
        if not stays(self.keep, primitive, operands, static, self.loops):
            return self.decompose(primitive, refs, static)
        types = primitive.infer(operands, static)
        return self.write(primitive, refs, static, types)
