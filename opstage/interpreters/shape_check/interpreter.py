"""`ShapeOps`: an interpreter whose tensors have shapes and dtypes but no values.

It runs the same shape rules as every other interpreter, on dims that may be symbolic. After an error it records a
finding and continues with unknown dims, to find the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from typing_extensions import override

from ...ops.body import Body
from ...ops.dims import UNKNOWN, DimExpr, DimScope
from ...ops.errors import (
    DtypeError,
    LocatedError,
    MeshError,
    Place,
    RangeError,
    ShapeError,
    SourceLine,
    UnsupportedError,
    user_calls,
    user_place,
)
from ...ops.infix import written
from ...ops.mesh import ALONE, Mesh
from ...ops.primitive import Cost, Kind, Primitive, Static
from ...ops.spec import Spec, as_specs
from ...ops.static_arguments import InvalidStatic
from ...ops.tied_parameters import show_tied
from ...ops.types import FLOAT32, DType, TensorType, as_dtype, show_shape
from ...options import Options
from ...transforms.control_flow import get_bodies
from ...transforms.interpreter import BaseInterpreter, Holding, Variable
from ...transforms.tracer import Writing
from .finding import ONE_BY_ONE, Finding
from .fixes import FailedCall, suggest_fix
from .program import CheckedProgram
from .report import Assumption


@dataclass
class _Inferred:
    """The results and cost of a call, and the number of equal calls: formulas are summed only once, at the end."""

    outputs: tuple[TensorType, ...]
    cost: Cost
    calls: int = 0


_RULES: dict[type[LocatedError], str] = {
    ShapeError: "shape",
    DtypeError: "dtype",
    UnsupportedError: "unsupported",
    RangeError: "index-range",
    MeshError: "mesh",
}


@final
class ShapeOps(Writing):
    """Collects errors as findings and continues if `collect`; else raises the first one."""

    def __init__(
        self,
        options: Options,
        *,
        collect: bool = False,
        runs_on: BaseInterpreter[Any] | None = None,
        mesh: Mesh = ALONE,
    ):
        """`runs_on` is the interpreter for which the program is checked: an op that it cannot compute is an error.

        The program runs on a rank of `mesh`; names of its sizes become dims of at least 2.
        """
        super().__init__(as_dtype(options.dtype), options.seed)
        self.options = options
        self.runs_on = runs_on
        self.scope = DimScope()
        self.collect = collect
        self.findings: list[Finding] = []
        self.notes: list[Finding] = []
        self.assumptions: list[Assumption] = []
        self.bound_at: dict[str, str] = {}
        self.bound_ops = 0
        self.origins: dict[int, str] = {}  # the path of each input, in order
        self.tied: tuple[tuple[str, ...], ...] = ()
        self.places: dict[int, Place | None] = {}
        self.rules: set[int] = set()
        self.doubtful: set[int] = set()
        self._memo: dict[Any, _Inferred] = {}
        self._noted = 0  # how many of the scope's conditions are among the assumptions
        self._mesh = mesh.bound(self.scope.dim)
        for name in mesh.open:
            self.scope.declare(f"{name} >= 2")

    @property
    @override
    def mesh(self) -> Mesh:
        return self._mesh

    # Host interface -------------------------------------------------------------------------------------------------

    @property
    @override
    def executes(self) -> bool:
        return False

    @override
    def put(self, value: Any, /) -> Variable:
        return self.declare([value if isinstance(value, Spec) else as_specs(value)], [""])[0]

    def declare(self, specs: Sequence[Spec], origins: Sequence[str]) -> list[Variable]:
        """Add inputs of the program, called `origins` in messages."""
        refs = [self._bound(spec, origin) for spec, origin in zip(specs, origins)]
        for spec in specs:
            spec.declare(self.scope)
        return refs

    def _bound(self, spec: Spec, origin: str) -> Variable:
        type_ = spec.bind(self.scope, self.dtype)
        for dim in type_.shape:
            if isinstance(dim, DimExpr):
                where = f"{origin}: {spec}" if origin else str(spec)
                self.bound_at.setdefault(str(dim), f"{where}, written at {spec.source}" if spec.source else where)
        ref = self.input(type_)
        self.origins[ref.slot] = origin
        return ref

    @override
    def get(self, ref: Variable, /) -> TensorType:
        return ref.type

    def follow(self, program: Callable[..., Any], refs: Sequence[Variable]) -> Any:
        """Return `program(self, *refs)`; call chains in findings start here."""
        return program(self, *refs)

    # Interpreter methods --------------------------------------------------------------------------------------------

    @override
    def bind(self, primitive: Primitive, refs: tuple[Variable, ...], static: Static, /) -> tuple[Variable, ...]:
        for ref in refs:
            if type(ref) is not Variable or ref.ops is not self:
                self.adopt(ref)
        types = tuple([ref.type for ref in refs])
        doubtful = self._is_doubtful(refs)
        self._stand()
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
                inferred = _Inferred(guess_types(primitive, types, static), Cost(0, UNKNOWN))
            else:
                self._require_kernel(primitive, refs, static)
                self._memo[key] = inferred
                self._note_conditions(primitive)
        outs = self.write(primitive, refs, static, inferred.outputs)
        if doubtful or inferred.cost.bytes is UNKNOWN:  # an error just now, or one in the body of a loop
            self.doubtful.update([out.slot for out in outs])
        else:
            inferred.calls += 1
        if self.cursor.quiet and outs:
            self.rules.add(outs[0].slot)
        return outs

    @override
    def infer(self, primitive: Primitive, types: tuple[TensorType, ...], static: Static, /) -> tuple[TensorType, ...]:
        self._stand()
        refs = tuple([Variable(-1, type_, self) for type_ in types])  # of another trace
        try:
            outputs = primitive.infer(types, static, self.cursor.region.name)
        except LocatedError as error:
            if not self.collect:
                raise
            if not any(dim is UNKNOWN for type_ in types for dim in type_.shape):
                self._note_error(error, primitive, refs, static)
            return guess_types(primitive, types, static)
        self._require_kernel(primitive, refs, static)
        self._note_conditions(primitive)
        return outputs

    def program(
        self, outputs: Sequence[Variable] = (), parameters: int = 0, output_names: Callable[[], list[str]] = list
    ) -> CheckedProgram:
        """Return the trace so far; its first inputs are the parameters."""
        trace = self.trace
        body = Body(
            tuple(self.origins),
            tuple(trace.constants),
            tuple(trace.equations),
            tuple([ref.slot for ref in outputs]),
            tuple(trace.types),
            {},
        )
        return CheckedProgram(
            body,
            tuple(self.origins.values()),
            output_names,
            parameters,
            self.tied,
            self.scope,
            self.places,
            self.rules,
            self.doubtful,
            self.dtype,
            self.seed,
        )

    @property
    def cost(self) -> Cost:
        """Return the cost of everything so far."""
        flops: Any = 0
        bytes_: Any = 0
        for inferred in self._memo.values():
            if inferred.calls:
                flops = flops + inferred.calls * inferred.cost.flops
                bytes_ = bytes_ + inferred.calls * inferred.cost.bytes
        return Cost(flops, bytes_)

    @override
    def before_decompose(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> None:
        if self.cursor.quiet:
            return
        beneath = []
        for ref in refs:
            while isinstance(ref, Holding):
                ref = ref.value
            beneath.append(ref)
        if not self.collect or any(ref.ops is not self for ref in beneath):  # those of a body are of who traces it
            primitive.infer(tuple([TensorType(ref.shape, ref.dtype) for ref in refs]), static, self.cursor.region.name)
            return
        self.places[self.cursor.ordinal] = user_place()
        held = [self.adopt(ref) for ref in beneath]
        if self._is_doubtful(held):
            return
        try:
            primitive.infer(tuple([ref.type for ref in held]), static, self.cursor.region.name)
        except LocatedError as error:
            self._note_error(error, primitive, tuple(held), static)

    @override
    def note_one_by_one(self, primitive: Primitive) -> None:
        reason = "vmap runs this op on one example after the other, in a loop"
        place = user_place()
        source = None if place is None else place.source
        region = self.cursor.region.name
        self.notes.append(Finding(primitive.name, reason, region, source, rule=ONE_BY_ONE, severity="note"))

    def _is_doubtful(self, refs: Sequence[Variable]) -> bool:
        return bool(self.doubtful) and any(ref.slot in self.doubtful for ref in refs)

    def _stand(self) -> None:
        """Count an op and record its place, which its derivative rules later share."""
        self.bound_ops += 1
        if self.collect and not self.cursor.quiet:
            self.places[self.cursor.ordinal] = user_place()

    def _source(self) -> SourceLine | None:
        """Return the user's call of the op at the cursor."""
        place = self.places.get(self.cursor.ordinal)
        return None if place is None else place.source

    def _require_kernel(self, primitive: Primitive, refs: tuple[Variable, ...], static: Static) -> None:
        """Require that the target interpreter has a kernel, or one for each part of a composite."""
        if self.runs_on is None or primitive.kind is Kind.COLLECTIVE:
            return
        try:
            with self.scope.aside():
                require_kernel(self.runs_on, self.options, primitive, tuple([ref.type for ref in refs]), static)
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
        self, error: LocatedError, primitive: Primitive, refs: tuple[Variable, ...], static: Static
    ) -> None:
        """Add a finding, unless it follows from an earlier one or repeats one, as for a line that runs again.

        Derivative rules are correct for correct programs: an error in one is a consequence of another error.
        """
        if self.cursor.quiet and self.findings:
            return
        finding = self._finding(error, primitive, refs, static)
        if finding not in self.findings:
            self.findings.append(finding)

    def _as_written(self, error: LocatedError) -> list[tuple[str, Variable]]:
        """Return the operands of the operator that an error is about; none if it is about the op."""
        operator = written()
        found = []
        for name, operand in (("x", operator.x), ("y", operator.y)) if operator and error.op == operator.symbol else ():
            while isinstance(operand, Holding):
                operand = operand.value
            if isinstance(operand, Variable) and operand.ops is self:
                found.append((name, operand))
        return found

    def line_of(self, ref: object) -> SourceLine | None:
        """Return the user's line that computed a tensor."""
        while isinstance(ref, Holding):
            ref = ref.value
        maker = self._maker(ref) if isinstance(ref, Variable) else None
        return None if maker is None else maker[2]

    def _maker(self, ref: Variable) -> tuple[Primitive, Static, SourceLine | None] | None:
        """Return the op that computed a tensor, and the user's call."""
        for equation in reversed(self.trace.equations):
            if ref.slot in equation.outputs:
                place = None if not self.rules.isdisjoint(equation.outputs) else self.places.get(equation.ordinal)
                return equation.primitive, equation.static, place and place.source
        return None

    def _finding(
        self, error: LocatedError, primitive: Primitive, refs: tuple[Variable, ...], static: Static
    ) -> Finding:
        names = primitive.operand_names(static, len(refs))
        tied = {paths[0]: show_tied(paths) for paths in self.tied}
        origins = [self.origins.get(ref.slot, "") for ref in refs]
        shown = self._as_written(error) or list(zip(names, refs))
        operands = tuple(
            f"{name} is {tied.get(origin, origin)} {show_shape(ref.shape)}"
            for name, ref in shown
            if (origin := self.origins.get(ref.slot, ""))
        )
        bound: dict[str, list[str]] = {}
        for dim in {str(d): None for _, ref in shown for d in ref.shape if isinstance(d, DimExpr)}:
            if dim in self.bound_at:
                bound.setdefault(self.bound_at[dim], []).append(dim)
        bindings = tuple(
            f"{' and '.join(dims)} {'was' if len(dims) == 1 else 'were'} bound at {where}"
            for where, dims in bound.items()
        )
        quiet = self.cursor.quiet
        source = self._source() if quiet else error.source
        makers = [self._maker(ref) for ref in refs]
        constants = {constant.slot for constant in self.trace.constants}
        call = FailedCall(
            primitive,
            static,
            names,
            tuple([ref.type for ref in refs]),
            tuple(origins),
            source,
            self.dtype,
            makers,
            tuple([bool(o or m or r.slot in constants) for o, m, r in zip(origins, makers, refs)]),
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
            calls=() if quiet else user_calls(ShapeOps.follow.__code__),
        )


def require_kernel(
    target: BaseInterpreter[Any], options: Options, primitive: Primitive, types: tuple[TensorType, ...], static: Static
) -> None:
    """Raise UnsupportedError for an op that `target` cannot compute, directly or by its decomposition.

    The ops in the body of a loop are ops of their own.
    """
    if target.has_kernel(primitive) or any(get_bodies(static)):
        return
    if primitive.decomposition is None:
        raise target.unsupported(primitive)
    parts = ShapeOps(options, runs_on=target)
    with suppress(ShapeError):  # sizes are checked by the op's own rule
        parts.decompose(primitive, tuple([parts.input(type_) for type_ in types]), static)


def rule_of(error: LocatedError) -> str:
    """Return the kind of finding for an error at an op."""
    return next((rule for kind, rule in _RULES.items() if isinstance(error, kind)), "program")


# Guessed types of a rejected call, so that a check can continue to the next error -------------------------------------


def guess_types(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> tuple[TensorType, ...]:
    """Return result types of unknown dims for a failed call.

    They are the results of the op's rule for operands of unknown dims, if needed with another dtype and with axis 0 for
    an invalid axis; else the last operand's type (x is last in linear and conv).
    """
    model = next((t for t in reversed(types) if t.dtype.kind in "fO"), types[-1] if types else None)
    if model is None:
        model = TensorType((), np.dtype(np.float32))
    guess = _unknown(model)
    valid = {name: _valid(value) for name, value in static.items()}
    for operands in (tuple(map(_unknown, types)), (guess,) * len(types), (_unknown(model, FLOAT32),) * len(types)):
        with suppress(Exception):  # the rule was not written for invalid operands
            return tuple(map(_unknown, primitive.infer(operands, valid)))
    return (guess,) * (len(primitive.outputs) + len(primitive.residuals))


def _unknown(type_: TensorType, dtype: DType | None = None) -> TensorType:
    return TensorType((UNKNOWN,) * len(type_.shape), type_.dtype if dtype is None else dtype)


def _valid(value: Any) -> Any:
    """Return a static argument, with the first axis instead of an invalid one."""
    if isinstance(value, InvalidStatic):
        return 0
    return (0,) if isinstance(value, tuple) and any(isinstance(v, InvalidStatic) for v in value) else value
