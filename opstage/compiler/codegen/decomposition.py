"""Decompositions of composites as bodies, from which loops are generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

from typing_extensions import override

from ...ops.body import Body
from ...ops.catalogue import own
from ...ops.primitive import Primitive, Static
from ...ops.types import FLOAT64, TensorType
from ...transforms.control import CONTROL
from ...transforms.interpreter import Variable
from ...transforms.scan import SCAN
from ...transforms.tracer import Composite, Writing, constants, evaluate

Keep: TypeAlias = Callable[[Primitive, tuple[TensorType, ...], Static], bool]
"""(primitive, types of the operands, static parameters) -> whether a composite is kept."""


def is_fixed(primitive: Primitive) -> bool:
    """Return whether an op is a composite whose decomposition is the same in every call, so that results can be cached.

    Composites of the catalogue and closed bodies are. A decomposition of another package may read unknown Python state.
    """
    return type(primitive) is Composite or (primitive.decomposition is not None and primitive in own())


def stays(keep: Keep, primitive: Primitive, operands: tuple[TensorType, ...], static: Static, loops: bool) -> bool:
    """Return whether an op is not expanded; branches are not, nor are loops, unless loops are unrolled or have one
    iteration."""
    if primitive in CONTROL:
        return primitive is not SCAN or not (loops or static["length"] == 1)
    return primitive.decomposition is None or keep(primitive, operands, static)


@final
class Expander(Writing):
    """Records decompositions."""

    __slots__ = ("keep", "loops")
    no_values = "a decomposition has no values, so it cannot depend on them"

    def __init__(self, keep: Keep, loops: bool):
        super().__init__(FLOAT64, 0)  # decompositions get dtypes and seeds from their operands and static parameters
        self.keep = keep
        self.loops = loops

    def parts(self, primitive: Primitive, operands: tuple[TensorType, ...], static: Static) -> Body:
        """Return a composite's decomposition as a body, from operands to outputs and residuals, even if it may be
        kept."""
        return self._body(self.decompose, primitive, operands, static)

    def body(self, primitive: Primitive, operands: tuple[TensorType, ...], static: Static) -> Body:
        """Return an op as a body: its parts, or the op alone if it is kept."""
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
        """Expand the composites of `body` that are not kept; parts have the region and ordinal of the composite.

        A body without any is returned as it is.
        """
        if all(
            stays(self.keep, e.primitive, tuple([body.types[slot] for slot in e.inputs]), e.static, self.loops)
            for e in body.equations
        ):
            return body
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
