"""Ops declared outside of Opstage: `custom_op`, `custom_vjp`.

The definition of such an op by other ops is traced in every call and bound with it as a closed body. So a compiled
program notices changes in the Python state that the definition reads, just as for the program itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, cast, final
from weakref import WeakKeyDictionary

import numpy as np

from ..ops.catalogue import register
from ..ops.dispatch import Quietly
from ..ops.errors import DtypeError, LocatedError, ProgramError, ShapeError, UsageError, a_type
from ..ops.primitive import Context, Effect, Jvp, Primitive, Static, Vjp
from ..ops.protocol import Ops, Ref
from ..ops.rule_helpers import require_same_type, type_of
from ..ops.tracebacks import called_by_users
from ..ops.types import TensorType, dtype_name, show_shape
from .control_flow import every_primitive
from .interpreter import Interpreter, on_refs
from .tracer import DEFINITION, Tracer, constants, evaluate
from .transposition import Forward, jvp_from_vjp, vjp_from_jvp


def _own(static: Static) -> dict[str, Any]:
    """Return the static parameters that the user gave."""
    return {name: value for name, value in static.items() if name != DEFINITION}


def _tuple(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


@final
class CustomOp:
    """An op declared by `custom_op`, called as `op(ops, *refs, **static)`. `primitive` is what interpreters see."""

    def __init__(self, primitive: Primitive, definition: Callable[..., Any] | None):
        self.primitive = primitive
        self._definition = definition
        self.__name__ = primitive.name

    def __repr__(self) -> str:
        return f"<custom op {self.primitive.name}>"

    def __call__(self, ops: Ops[Any], /, *refs: Ref, **static: Any) -> Any:
        return _call(ops, self.primitive, self._definition, refs, static)


@called_by_users
def custom_op(
    name: str,
    *,
    operands: Sequence[str],
    shape: Callable[..., Any],
    outputs: Sequence[str] = ("out",),
    decomposition: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    saves: Sequence[str] | None = None,
    differentiable: bool = True,
    kernels: Mapping[str, Callable[..., Any]] | None = None,
    pure: bool = False,
) -> CustomOp:
    """Declare an op: `op(ops, *refs, **static)` then works on every interpreter that has a kernel or can decompose it.

    operands, outputs   the names of its tensors
    shape               (*types, **static) -> the type of its output, a `TensorType`, or a tuple of types
    decomposition       (ops, *refs, **static) -> its output or outputs, by other ops, where there is no kernel
    vjp                 (ops, ctx, cotangents, **static) -> the cotangent of each operand, None where it has none;
                        `ctx.saved` holds the tensors named by `saves`, all operands and outputs by default. It defines
                        the derivative, even if that of the decomposition differs
    jvp                 (ops, primals, outputs, tangents, **static) -> the tangent of each output, None where zero.
                        Either vjp or jvp may be omitted: it is then the transpose of the other
    differentiable      False: cotangents and tangents stop at this op
    kernels             "cpu": (*arrays, **static) -> its array or arrays, which are checked, and copied if anything
                        else may refer to them; the operands are read-only. "cuda": as in docs/adding-a-kernel.md
    pure                its kernels are functions of their operands only, so a call without inputs may be computed in
                        advance, and two identical calls may be computed once

    Raises UsageError for a name that is taken and for kernels of an unknown kind, ProgramError for inconsistent rules.

    Raises:
        UsageError: a name that is none or taken; an op that nothing computes; rules that do not fit.
    """
    given = dict(kernels or {})
    unknown = [kind for kind in given if kind not in ("cpu", "cuda")]
    if unknown:
        raise UsageError(f"op {name!r}: kernels has {unknown[0]!r}; kernels are for 'cpu' and for 'cuda'")
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"an op's name is an identifier, such as 'soft_clip', not {name!r}")
    if isinstance(operands, str) or not operands or not all(part.isidentifier() for part in operands):
        raise UsageError(f"op {name!r}: operands are one or more names, such as ('x', 'y'), not {operands!r}")
    if decomposition is None and not given:
        raise UsageError(
            f"op {name!r} has neither kernels nor a decomposition, so nothing computes it: give it a "
            "decomposition=, or kernels={'cpu': …}"
        )
    if differentiable and decomposition is None and vjp is None and jvp is None:
        raise UsageError(
            f"op {name!r} lacks a derivative: give it a vjp=, a jvp= or a decomposition=, or say differentiable=False"
        )
    primitive = _primitive(
        name, tuple(operands), tuple(outputs), shape, decomposition is not None, vjp, jvp, saves, differentiable,
        effects=() if pure or not given else (Effect.DRAWS,),
    )  # fmt: skip
    made = {kind: kernel for kind, kernel in given.items() if kind != "cpu"}
    if "cpu" in given:
        made["cpu"] = _HostKernel(primitive, given["cpu"])
    if "cuda" in given:
        made["cuda"] = _without_definition(given["cuda"])
    register(name, primitive, made, every_primitive())
    return CustomOp(primitive, decomposition)


_MADE: WeakKeyDictionary[CustomVjp, dict[Any, Primitive]] = WeakKeyDictionary()
"""The primitives of each, by numbers of tensors and rules; not stored in the object, whose state programs read."""


@final
class CustomVjp:
    """A function over Ops with a declared derivative, see `custom_vjp`."""

    def __init__(self, f: Callable[..., Any]):
        self._f = f
        self._vjp: Callable[..., Any] | None = None
        self._jvp: Callable[..., Any] | None = None
        self.__name__ = getattr(f, "__name__", type(f).__name__)
        self.__doc__ = f.__doc__
        self.__wrapped__ = f

    def __repr__(self) -> str:
        return f"<custom_vjp {self.__name__}>"

    def defvjp(self, vjp: Callable[..., Any]) -> Callable[..., Any]:
        """Declare `vjp(ops, inputs, outputs, cotangents, **static)`: the cotangent of each input, None where zero.

        All three are tuples, and what it returns is one, or the one cotangent of a function of one tensor.
        """
        self._vjp = vjp
        return vjp

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Declare `jvp(ops, inputs, outputs, tangents, **static)`: the tangent of each output, None where zero."""
        self._jvp = jvp
        return jvp

    def __call__(self, ops: Ops[Any], /, *refs: Ref, **static: Any) -> Any:
        if self._vjp is None:
            raise ProgramError(
                f"{self.__name__} is a custom_vjp without a vjp: declare one with {self.__name__}.defvjp"
            )
        return _call(ops, self._find_primitive, self._f, refs, static)

    def _find_primitive(self, inputs: int, outputs: int) -> Primitive:
        made = _MADE.setdefault(self, {})
        key = (inputs, outputs, self._vjp, self._jvp)
        found = made.get(key)
        if found is None:
            names, results = tuple(f"x{i}" for i in range(inputs)), tuple(f"y{i}" for i in range(outputs))
            rule = cast(Callable[..., Any], self._vjp)

            def vjp(ops: Any, ctx: Context[Any], cotangents: Any, /, **static: Any) -> Any:
                return rule(ops, ctx.saved[:inputs], ctx.saved[inputs:], cotangents, **static)

            found = _primitive(self.__name__, names, results, None, True, vjp, self._jvp, None, True)
            found = made.setdefault(key, found)
        return found


def custom_vjp(f: Callable[..., Any]) -> CustomVjp:
    """Decorate a function `f(ops, *refs, **static)` whose derivative is declared, not that of its ops.

        @opstage.custom_vjp
        def reverse(ops, x):
            return ops.mul(x, 1.0)

        @reverse.defvjp
        def _(ops, inputs, outputs, cotangents):
            return -cotangents[0]

    f takes tensors and static parameters by name, and returns a tensor or a tuple of them. Its derivative is used
    wherever one is taken: forward mode, and with it hvp, uses a `defjvp`, or the transpose of the vjp. A vjp that is
    not linear in the cotangents has none, and says so. f reads no tensor but its arguments.

    Raises:
        ProgramError: a call without defvjp.
    """
    return CustomVjp(f)


# How it is called ---------------------------------------------------------------------------------------------------


def _call(
    ops: Ops[Any],
    primitive: Primitive | Callable[[int, int], Primitive],
    definition: Callable[..., Any] | None,
    refs: tuple[Any, ...],
    static: dict[str, Any],
) -> Any:
    name = primitive.name if isinstance(primitive, Primitive) else definition.__name__ if definition else ""
    if not isinstance(ops, Ops):
        raise ProgramError(f"{name} takes ops first, as in {name}(ops, x), not {a_type(ops)}")
    if isinstance(primitive, Primitive) and len(refs) != len(primitive.operands):
        names = ", ".join(primitive.operands)
        raise ShapeError(f"{name} takes {len(primitive.operands)} tensors ({names}) but got {len(refs)}", op=name)
    for key, value in static.items():
        if not isinstance(value, Hashable):
            raise UsageError(f"{name}: the static parameter {key} is {a_type(value)}; pass numbers, texts or tuples")
    interpreter: Any = ops
    cursor = interpreter.cursor
    refs = tuple([interpreter.adopt(ref) for ref in refs])
    if definition is not None:
        static, count = _defined(interpreter, name, definition, refs, static)
        primitive = primitive if isinstance(primitive, Primitive) else primitive(len(refs), count)
    assert isinstance(primitive, Primitive)
    if not cursor.quiet:
        cursor.ordinal += 1
    results = interpreter.bind(primitive, refs, static)[: len(primitive.outputs)]
    return results[0] if len(results) == 1 else tuple(results)


def _defined(
    ops: Interpreter[Any], name: str, definition: Callable[..., Any], refs: tuple[Any, ...], static: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    """Return the static parameters with the definition, traced, among them, and how many outputs that has."""
    tracer = Tracer(ops)
    inputs = [tracer.input(type_of(ref)) for ref in refs]
    try:
        with Quietly(ops.cursor):
            outputs = [tracer.adopt(ref) for ref in _tuple(definition(tracer, *inputs, **static))]
    except LocatedError as error:
        error.place(name, ops.cursor.region.name)
        raise
    if tracer.captured:
        outer = tracer.captured[0][0]
        raise ProgramError(
            f"{name} reads a tensor {outer.type} that is none of its arguments, through which no derivative would "
            "pass; pass it as an argument"
        )
    body = tracer.finish(inputs, outputs)
    return {**static, DEFINITION: body}, len(outputs)


# Its rules, with what they give checked -----------------------------------------------------------------------------


def _primitive(
    name: str,
    operands: tuple[str, ...],
    outputs: tuple[str, ...],
    shape: Callable[..., Any] | None,
    defined: bool,
    vjp: Callable[..., Any] | None,
    jvp: Callable[..., Any] | None,
    saves: Sequence[str] | None,
    differentiable: bool,
    effects: tuple[Effect, ...] = (),
) -> Primitive:
    def shape_rule(*types: TensorType, **static: Any) -> tuple[TensorType, ...]:
        body = static.get(DEFINITION)
        if shape is None:
            assert body is not None  # what has no rule has a definition
            return cast("tuple[TensorType, ...]", body.output_types)
        given = shape(*types, **_own(static))  # a TensorType is a tuple too
        found = (given,) if isinstance(given, TensorType) else _tuple(given)
        if len(found) != len(outputs) or not all(isinstance(type_, TensorType) for type_ in found):
            raise ShapeError(f"its shape rule must give {len(outputs)} TensorType, one for each output, not {found!r}")
        if body is not None:
            _require_types("its decomposition gives", body.output_types, "its shape rule", tuple(found))
        return tuple(found)

    def decompose(ops: Any, /, *refs: Any, **static: Any) -> tuple[Any, ...]:
        body = static[DEFINITION]
        return evaluate(ops, body, refs, constants(ops, body))

    if saves is None:
        saves = (*operands, *outputs) if vjp is not None else ()
    if vjp is None and jvp is not None:
        saves = (*operands, *outputs)
    back = None if vjp is None else _checked_vjp(name, vjp)
    forward = None if jvp is None else _checked_jvp(name, jvp)
    return Primitive(
        name,
        operands=operands,
        outputs=outputs,
        shape=shape_rule,
        vjp=back if forward is None or back is not None else vjp_from_jvp(name, forward, len(operands)),
        jvp=forward
        if back is None or forward is not None
        else jvp_from_vjp(name, back, operands, outputs, tuple(saves)),
        saves=tuple(saves),
        decomposition=decompose if defined else None,
        differentiable=differentiable,
        declared=True,
        effects=effects,
    )


def _checked_vjp(name: str, rule: Callable[..., Any]) -> Vjp:
    def vjp(ops: Any, ctx: Context[Any], cotangents: Any, /, **static: Any) -> tuple[Any, ...]:
        def on(ops: Any, saved: Any, cotangents: Any) -> Any:
            return rule(ops, Forward(ctx.needs, saved, ctx.inputs, ctx.outputs), cotangents, **_own(static))

        found = _tuple(on_refs(ops, on, ctx.saved, tuple(cotangents)))
        _require_count(name, "vjp", found, len(ctx.inputs), "operand")
        result: list[Any] = []
        for i, (cotangent, type_, needed) in enumerate(zip(found, ctx.inputs, ctx.needs)):
            if not needed:
                result.append(None)
            elif cotangent is None:
                result.append(ops.full(shape=type_.shape, value=0.0, dtype=type_.dtype))
            else:
                result.append(_of_type(name, ops, f"the vjp's cotangent of operand {i}", cotangent, type_))
        return tuple(result)

    return vjp


def _checked_jvp(name: str, rule: Callable[..., Any]) -> Jvp:
    def jvp(ops: Any, primals: Any, outputs: Any, tangents: Any, /, **static: Any) -> tuple[Any, ...]:
        found = _tuple(on_refs(ops, partial(rule, **_own(static)), primals, outputs, tangents))
        _require_count(name, "jvp", found, len(outputs), "output")
        return tuple(
            None if tangent is None else _of_type(name, ops, f"the jvp's tangent of output {i}", tangent, type_of(out))
            for i, (tangent, out) in enumerate(zip(found, outputs))
        )

    return jvp


def _require_count(name: str, rule: str, found: tuple[Any, ...], count: int, of: str) -> None:
    if len(found) != count:
        raise ShapeError(f"the {rule} of {name} gives {len(found)} tensors, not {count}, one for each {of}", op=name)


def _of_type(name: str, ops: Any, what: str, ref: Any, type_: TensorType) -> Any:
    ref = ops.adopt(ref)
    try:
        _require_types(what, (type_of(ref),), "it has to be of", (type_,))
    except LocatedError as error:
        error.place(name, ops.cursor.region.name)
        raise
    return ref


def _require_types(what: str, found: tuple[TensorType, ...], other: str, expected: tuple[TensorType, ...]) -> None:
    if len(found) != len(expected):
        raise ShapeError(f"{what} {len(found)} tensors but {other} {len(expected)}")
    for a, b in zip(found, expected):
        message = f"{what} {a} but {other} {b}"
        if a.dtype != b.dtype:
            raise DtypeError(message)
        require_same_type(a, b, message)


# Its kernels ----------------------------------------------------------------------------------------------------------


def _without_definition(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **static: Any) -> tuple[Any, ...]:
        return _tuple(kernel(*args, **_own(static)))

    return called


@final
class _HostKernel:
    """A kernel on arrays: it gets them read-only, and what it gives is held to the shape rule and owned by nobody."""

    def __init__(self, primitive: Primitive, kernel: Callable[..., Any]):
        self._primitive = primitive
        self._kernel = kernel

    def __call__(self, *arrays: Any, **static: Any) -> tuple[Any, ...]:
        types = self._primitive.infer(tuple([TensorType(x.shape, x.dtype) for x in arrays]), static)
        if any(not isinstance(x, np.ndarray) for x in arrays):  # memory is being predicted: arrays without elements
            return tuple([type(arrays[0]).new(type_.shape, type_.dtype) for type_ in types])
        views = [x.view() for x in arrays]
        for view in views:
            view.flags.writeable = False
        results = self._kernel(*views, **_own(static))
        results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
        if len(results) != len(types):
            raise self._wrong(f"gave {len(results)} arrays where the op has {len(types)} outputs")
        return tuple([self._owned(result, type_) for result, type_ in zip(results, types)])

    def _owned(self, result: Any, type_: TensorType) -> Any:
        if not isinstance(result, (np.ndarray, np.generic)):
            raise self._wrong(f"gave {a_type(result)}, not an array")
        if result.shape != type_.shape or result.dtype != type_.dtype:
            raise self._wrong(
                f"gave an array {show_shape(result.shape)} {dtype_name(result.dtype)} but its shape rule says {type_}"
            )
        # who may hold it besides us: the tuple of results, our two names, and the argument of getrefcount
        if isinstance(result, np.generic) or result.base is not None or sys.getrefcount(result) > 5:
            return np.array(result)
        return result

    def _wrong(self, what: str) -> ShapeError:
        name = self._primitive.name
        return ShapeError(f"the kernel of {name} for 'cpu' {what}", op=name)
