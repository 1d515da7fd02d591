"""`ShapeOps`: an interpreter whose tensors have shapes and dtypes but no values.

It runs the same shape rules as every other interpreter, on dims that may be symbolic. Where a program is wrong it
notes the error, goes on with dims that nobody knows, and so finds the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, final

import numpy as np
from typing_extensions import override

from ...ops.closed import Body
from ...ops.dims import UNKNOWN, DimExpr, DimScope
from ...ops.errors import (
    DtypeError,
    LocatedError,
    Place,
    ProgramError,
    RangeError,
    ShapeError,
    SourceLine,
    UnsupportedError,
    user_calls,
    user_place,
)
from ...ops.infix import Infix
from ...ops.lists import no_ref
from ...ops.places import show_tied
from ...ops.primitive import Cost, Primitive, Static
from ...ops.spec import Spec, as_specs
from ...ops.types import DType, TensorType, as_dtype, show_shape
from ...options import Options
from ..interpreter import BaseInterpreter, Holding, Typed
from .finding import Finding
from .fixes import FailedCall, suggest_fix
from .history import Entry, History, Named
from .report import Assumption


class _Inferred:
    """The results and cost of a call, and the number of equal calls: formulas are summed once, at the end."""

    __slots__ = ("outputs", "cost", "calls")

    def __init__(self, outputs: tuple[TensorType, ...], cost: Cost):
        self.outputs = outputs
        self.cost = cost
        self.calls = 0


_RULES: dict[type[LocatedError], str] = {
    ShapeError: "shape",
    DtypeError: "dtype",
    UnsupportedError: "unsupported",
    RangeError: "index-range",
}


@final
class ShapeRef(Typed):
    """A tensor without values; `number` is its own in the history, `origin` the path of an input, `doubtful` marks what
    follows an error."""

    __slots__ = ("type", "ops", "number", "origin", "doubtful")

    def __init__(self, type: TensorType, ops: ShapeOps, origin: str = "", doubtful: bool = False):
        self.type = type
        self.ops = ops
        self.number = ops.made = ops.made + 1
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
        "bound_ops",
        "history",
        "made",
        "_memo",
        "_noted",
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
        self.bound_ops = 0
        self.history = History(self.scope)
        self.made = 0  # how many tensors there have been
        self._memo: dict[Any, _Inferred] = {}
        self._noted = 0  # how many of the scope's conditions are among the assumptions

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
                where = f"{origin}: {spec}" if origin else str(spec)
                self.bound_at.setdefault(str(dim), f"{where}, written at {spec.source}" if spec.source else where)
        ref = ShapeRef(type_, self, origin)
        self.history.inputs.append(Named(ref.number, origin, type_))
        return ref

    @override
    def get(self, ref: ShapeRef, /) -> TensorType:
        return ref.type

    def trace(self, program: Callable[..., Any], refs: Sequence[ShapeRef]) -> Any:
        """`program(self, *refs)`; the lines that lead to an op are told from here on."""
        return program(self, *refs)

    # The seam -------------------------------------------------------------------------------------------------------

    @override
    def adopt(self, ref: Any, /) -> ShapeRef:
        if type(ref) is ShapeRef and ref.ops is self:
            return ref
        if isinstance(ref, Infix):
            raise ProgramError("refs of two interpreters were mixed: this one belongs to another run")
        raise no_ref(ref)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> ShapeRef:
        type_ = as_specs(np.asarray(value)).bind(self.scope, self.dtype)
        ref = ShapeRef(type_ if dtype is None else TensorType(type_.shape, as_dtype(dtype)), self)
        self.history.constants[ref.number] = value
        return ref

    @override
    def bind(self, primitive: Primitive, refs: tuple[ShapeRef, ...], static: Static, /) -> tuple[ShapeRef, ...]:
        refs = tuple([self.adopt(ref) for ref in refs])
        types = tuple([ref.type for ref in refs])
        doubtful = any(ref.doubtful for ref in refs)
        place = self._stand()
        key = (primitive, types, *static.values())
        inferred = self._memo.get(key)
        if inferred is None:
            try:
                outputs = primitive.infer(types, static, self.cursor.region.name)
                inferred = _Inferred(outputs, primitive.cost(types, outputs, static))
            except LocatedError as error:
                if not self.collect:
                    raise
                if not doubtful:
                    self._note_error(error, primitive, refs, static)
                inferred = _Inferred(_guess(primitive, types), Cost(0, UNKNOWN))
            else:
                self._require_kernel(primitive, refs, static)
                self._memo[key] = inferred
                self._note_conditions(primitive)
        outputs, cost = inferred.outputs, inferred.cost
        doubtful = doubtful or cost.bytes is UNKNOWN  # an error just now, or one in the body of a loop
        if not doubtful:
            inferred.calls += 1
        outs = tuple([ShapeRef(t, self, doubtful=doubtful) for t in outputs])
        cursor = self.cursor
        self.history.entries.append(
            Entry(
                primitive,
                static,
                tuple([ref.number for ref in refs]),
                types,
                tuple([out.number for out in outs]),
                outputs,
                cost,
                cursor.region.path,
                cursor.ordinal,
                cursor.quiet,
                cursor.backward,
                place,
                doubtful,
            )
        )
        return outs

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
                self._note_error(error, primitive, refs, static)
            return _guess(primitive, types)
        self._require_kernel(primitive, refs, static)
        self._note_conditions(primitive)
        return outputs

    @property
    def cost(self) -> Cost:
        """Of everything so far."""
        flops: Any = 0
        bytes_: Any = 0
        for inferred in self._memo.values():
            if inferred.calls:
                flops = flops + inferred.calls * inferred.cost.flops
                bytes_ = bytes_ + inferred.calls * inferred.cost.bytes
        return Cost(flops, bytes_)

    @override
    def foresee(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> None:
        if self.cursor.quiet:
            return
        if not self.collect:
            primitive.infer(tuple([TensorType(ref.shape, ref.dtype) for ref in refs]), static, self.cursor.region.name)
            return
        self.history.places[self.cursor.ordinal] = user_place()
        held = []
        for ref in refs:
            while isinstance(ref, Holding):
                ref = ref.value
            held.append(self.adopt(ref))
        if any(ref.doubtful for ref in held):
            return
        try:
            primitive.infer(tuple([ref.type for ref in held]), static, self.cursor.region.name)
        except LocatedError as error:
            self._note_error(error, primitive, tuple(held), static)

    def _stand(self) -> Place | None:
        """Count an op, and note its place: what its derivative rules do later, they do on its behalf."""
        self.bound_ops += 1
        if not self.collect or self.cursor.quiet:
            return None
        place = self.history.places[self.cursor.ordinal] = user_place()
        return place

    def _source(self) -> SourceLine | None:
        """The user's call of the op where the cursor stands."""
        place = self.history.places.get(self.cursor.ordinal)
        return None if place is None else place.source

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
            with self.scope.aside(), suppress(ShapeError):  # sizes are what the op's own rule says
                parts.decompose(primitive, tuple(ShapeRef(ref.type, parts) for ref in refs), static)
        except UnsupportedError as error:
            if not self.collect:
                raise
            if error.every_op and any(found.reason == error.reason for found in self.findings):
                return
            finding = self._finding(error, primitive, refs, static)
            if finding not in self.findings:  # the op's own backward pass often lacks the same kernel
                self.findings.append(finding)

    def _note_conditions(self, primitive: Primitive) -> None:
        if len(self.scope.conditions) == self._noted:
            return
        source = self._source()
        for condition in self.scope.conditions[self._noted :]:
            self.assumptions.append(
                Assumption(str(condition), primitive.name, source, condition.holds, condition.message)
            )
        self._noted = len(self.scope.conditions)

    def _note_error(
        self, error: LocatedError, primitive: Primitive, refs: tuple[ShapeRef, ...], static: Static
    ) -> None:
        """Add a finding, unless it follows from an earlier one or was made before, where a line runs again.

        Rules are right where the program is: an error in one is the consequence of another.
        """
        if self.cursor.quiet and self.findings:
            return
        finding = self._finding(error, primitive, refs, static)
        if finding not in self.findings:
            self.findings.append(finding)

    def line_of(self, ref: object) -> SourceLine | None:
        """The user's line that made a tensor."""
        while isinstance(ref, Holding):
            ref = ref.value
        maker = self._maker(ref) if isinstance(ref, ShapeRef) else None
        return None if maker is None else maker[2]

    def _maker(self, ref: ShapeRef) -> tuple[Primitive, Static, SourceLine | None] | None:
        """The op that made a tensor, and where the user called it."""
        for entry in reversed(self.history.entries):
            if ref.number in entry.outputs:
                return entry.primitive, entry.static, None if entry.place is None else entry.place.source
        return None

    def _finding(
        self, error: LocatedError, primitive: Primitive, refs: tuple[ShapeRef, ...], static: Static
    ) -> Finding:
        names = primitive.operand_names(static, len(refs))
        tied = {paths[0]: show_tied(paths) for paths in self.history.tied}
        operands = tuple(
            f"{name} is {tied.get(ref.origin, ref.origin)} {show_shape(ref.shape)}"
            for name, ref in zip(names, refs)
            if ref.origin
        )
        bound: dict[str, list[str]] = {}
        for dim in {str(d): None for ref in refs for d in ref.shape if isinstance(d, DimExpr)}:
            if dim in self.bound_at:
                bound.setdefault(self.bound_at[dim], []).append(dim)
        bindings = tuple(
            f"{' and '.join(dims)} {'was' if len(dims) == 1 else 'were'} bound at {where}"
            for where, dims in bound.items()
        )
        quiet = self.cursor.quiet
        source = self._source() if quiet else error.source
        makers = [self._maker(ref) for ref in refs]
        call = FailedCall(
            primitive,
            static,
            names,
            tuple([ref.type for ref in refs]),
            tuple([ref.origin for ref in refs]),
            source,
            self.dtype,
            makers,
            tuple([bool(r.origin or m or r.number in self.history.constants) for r, m in zip(refs, makers)]),
        )
        return Finding(
            error.op or primitive.name,
            error.reason,
            error.region,
            source,
            operands,
            bindings,
            rule=rule_of(error),
            fix=suggest_fix(call, error, self.scope),
            constraint=getattr(error, "constraint", None),
            calls=() if quiet else user_calls(ShapeOps.trace.__code__),
        )


def rule_of(error: LocatedError) -> str:
    """The kind of finding that an error at an op is."""
    return next((rule for kind, rule in _RULES.items() if isinstance(error, kind)), "program")


def _guess(primitive: Primitive, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Types to go on with after an error: the last operand's rank (x is last in linear and conv), unknown dims."""
    model = next((t for t in reversed(types) if t.dtype.kind in "fO"), types[-1] if types else None)
    if model is None:
        model = TensorType((), np.dtype(np.float32))
    guess = TensorType((UNKNOWN,) * len(model.shape), model.dtype)
    return (guess,) * (len(primitive.outputs) + len(primitive.residuals))
