"""`ShapeOps`: an interpreter whose tensors have shapes and dtypes but no values.

It runs the same shape rules as every other interpreter, on dims that may be symbolic. Where a program is wrong it
notes the error, goes on with dims that nobody knows, and so finds the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from typing_extensions import override

from ...ops.closed import Body
from ...ops.dims import UNKNOWN, DimExpr, DimScope
from ...ops.errors import LocatedError, ProgramError, SourceLine, UnsupportedError, user_frame
from ...ops.infix import Infix
from ...ops.primitive import Cost, Primitive, Static
from ...ops.spec import Spec, as_specs
from ...ops.types import DType, TensorType, as_dtype, show_shape
from ...options import Options
from ..interpreter import BaseInterpreter, Typed
from .report import Assumption, Finding

_Inferred = tuple[tuple[TensorType, ...], Cost]


@final
class ShapeRef(Typed):
    """A tensor without values; `origin` is the path of an input, `doubtful` marks what follows an error."""

    __slots__ = ("type", "ops", "origin", "doubtful")

    def __init__(self, type: TensorType, ops: ShapeOps, origin: str = "", doubtful: bool = False):
        self.type = type
        self.ops = ops
        self.origin = origin
        self.doubtful = doubtful


@final
class ShapeOps(BaseInterpreter[ShapeRef]):
    """With `collect` errors become findings and the program goes on; without, the first one is raised."""

    __slots__ = (
        "options",
        "runs_on",
        "scope",
        "collect",
        "findings",
        "assumptions",
        "bound_at",
        "flops",
        "bytes",
        "bound_ops",
        "_memo",
        "_noted",
        "_lines",
    )

    def __init__(self, options: Options, *, collect: bool = False, runs_on: BaseInterpreter[Any] | None = None):
        """`runs_on` is the interpreter for which the program is checked: an op that it cannot compute is an error."""
        super().__init__(as_dtype(options.dtype), options.seed)
        self.options = options
        self.runs_on = runs_on
        self.scope = DimScope()
        self.collect = collect
        self.findings: list[Finding] = []
        self.assumptions: list[Assumption] = []
        self.bound_at: dict[str, str] = {}
        self.flops: Any = 0
        self.bytes: Any = 0
        self.bound_ops = 0
        self._memo: dict[Any, _Inferred] = {}
        self._noted = 0  # how many of the scope's conditions are among the assumptions
        self._lines: dict[int, SourceLine | None] = {}  # the user's line of each op, for what its backward pass needs

    # The host's side ------------------------------------------------------------------------------------------------

    @property
    @override
    def executes(self) -> bool:
        return False

    @override
    def put(self, value: Any, /) -> ShapeRef:
        return self.declare([value if isinstance(value, Spec) else as_specs(value)], [""])[0]

    def declare(self, specs: Sequence[Spec], origins: Sequence[str]) -> list[ShapeRef]:
        """Inputs of the program, called `origins` in messages."""
        refs = [self._bound(spec, origin) for spec, origin in zip(specs, origins)]
        for spec in specs:
            spec.declare(self.scope)
        return refs

    def _bound(self, spec: Spec, origin: str) -> ShapeRef:
        type_ = spec.bind(self.scope, self.dtype)
        for dim in type_.shape:
            if isinstance(dim, DimExpr):
                self.bound_at.setdefault(str(dim), f"{origin}: {spec}" if origin else str(spec))
        return ShapeRef(type_, self, origin)

    @override
    def get(self, ref: ShapeRef, /) -> TensorType:
        return ref.type

    # The seam -------------------------------------------------------------------------------------------------------

    @override
    def adopt(self, ref: Any, /) -> ShapeRef:
        if type(ref) is ShapeRef and ref.ops is self:
            return ref
        if isinstance(ref, Infix):
            raise ProgramError("refs of two interpreters were mixed: this one belongs to another run")
        raise ProgramError(f"an op got a {type(ref).__name__} where it needs a ref; make one with ops.const(…)")

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> ShapeRef:
        type_ = as_specs(np.asarray(value)).bind(self.scope, self.dtype)
        return ShapeRef(type_ if dtype is None else TensorType(type_.shape, as_dtype(dtype)), self)

    @override
    def bind(self, primitive: Primitive, refs: tuple[ShapeRef, ...], static: Static, /) -> tuple[ShapeRef, ...]:
        refs = tuple([self.adopt(ref) for ref in refs])
        types = tuple([ref.type for ref in refs])
        doubtful = any(ref.doubtful for ref in refs)
        self._stand()
        key = (primitive, types, *static.values())
        inferred = self._memo.get(key)
        if inferred is None:
            try:
                outputs = primitive.infer(types, static, self.cursor.region.name)
                inferred = outputs, primitive.cost(types, outputs, static)
            except LocatedError as error:
                if not self.collect:
                    raise
                if not doubtful:
                    self.findings.append(self._finding(error, primitive, refs, static))
                return tuple([ShapeRef(t, self, doubtful=True) for t in _guess(primitive, types)])
            self._require_kernel(primitive, refs, static)
            self._memo[key] = inferred
            self._note_conditions(primitive)
        outputs, cost = inferred
        doubtful = doubtful or cost.bytes is UNKNOWN  # an error in the body of a loop, which was found already
        if not doubtful:
            self.flops = self.flops + cost.flops
            self.bytes = self.bytes + cost.bytes
        return tuple([ShapeRef(t, self, doubtful=doubtful) for t in outputs])

    @override
    def infer(self, primitive: Primitive, types: tuple[TensorType, ...], static: Static, /) -> tuple[TensorType, ...]:
        self._stand()
        refs = tuple([ShapeRef(type_, self) for type_ in types])
        try:
            outputs = primitive.infer(types, static, self.cursor.region.name)
        except LocatedError as error:
            if not self.collect:
                raise
            if not any(dim is UNKNOWN for type_ in types for dim in type_.shape):
                self.findings.append(self._finding(error, primitive, refs, static))
            return _guess(primitive, types)
        self._require_kernel(primitive, refs, static)
        self._note_conditions(primitive)
        return outputs

    def _stand(self) -> None:
        """Count an op, and remember its line: what its derivative rules do later, they do on its behalf."""
        self.bound_ops += 1
        if self.collect and not self.cursor.quiet:
            self._lines[self.cursor.ordinal] = user_frame()

    def _require_kernel(self, primitive: Primitive, refs: tuple[ShapeRef, ...], static: Static) -> None:
        """The interpreter that is to run the program must have a kernel, or one for each part of a composite."""
        if self.runs_on is None or self.runs_on.has_kernel(primitive):
            return
        if any(isinstance(value, Body) for value in static.values()):
            return  # kernels for the body were asked for when it was traced
        try:
            if primitive.decomposition is None:
                raise self.runs_on.unsupported(primitive)
            parts = ShapeOps(self.options, runs_on=self.runs_on)
            parts.decompose(primitive, tuple(ShapeRef(ref.type, parts) for ref in refs), static)
        except UnsupportedError as error:
            if not self.collect:
                raise
            finding = self._finding(error, primitive, refs, static)
            if finding not in self.findings:  # the op's own backward pass often lacks the same kernel
                self.findings.append(finding)

    def _note_conditions(self, primitive: Primitive) -> None:
        source = self._lines.get(self.cursor.ordinal)
        for condition in self.scope.conditions[self._noted :]:
            self.assumptions.append(Assumption(str(condition), primitive.name, source, condition.holds))
        self._noted = len(self.scope.conditions)

    def _finding(
        self, error: LocatedError, primitive: Primitive, refs: tuple[ShapeRef, ...], static: Static
    ) -> Finding:
        names = primitive.operand_names(static, len(refs))
        operands = tuple(
            f"{name} is {ref.origin} {show_shape(ref.shape)}" for name, ref in zip(names, refs) if ref.origin
        )
        dims = {str(d): None for ref in refs for d in ref.shape if isinstance(d, DimExpr)}
        bindings = tuple(f"{dim} was bound at {self.bound_at[dim]}" for dim in dims if dim in self.bound_at)
        source = self._lines.get(self.cursor.ordinal) if self.cursor.quiet else error.source
        return Finding(error.op or primitive.name, error.reason, error.region, source, operands, bindings)


def _guess(primitive: Primitive, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Types to go on with after an error: the last operand's rank (x is last in linear and conv), unknown dims."""
    model = next((t for t in reversed(types) if t.dtype.kind in "fO"), types[-1] if types else None)
    if model is None:
        model = TensorType((), np.dtype(np.float32))
    guess = TensorType((UNKNOWN,) * len(model.shape), model.dtype)
    return (guess,) * (len(primitive.outputs) + len(primitive.residuals))
