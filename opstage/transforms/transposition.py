"""The transpose of a linear function: a jvp from a declared vjp, a vjp from a declared jvp.

A vjp is linear in the cotangents, and so is a jvp in the tangents: each is the other's transpose, and the pullback of a
linear function is its transpose. A rule that is not linear (one that clips, or adds a term of its own) has none, so the
ops of which the rule is made are looked through first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ..ops.body import Body, Equation
from ..ops.dispatch import Quietly
from ..ops.elementwise import ADD, DIV, MUL, NEG, SCALE, SUB
from ..ops.errors import ProgramError
from ..ops.logic import CAST, FULL, SELECT
from ..ops.primitive import Context, Jvp, Linearity, Primitive, Vjp
from ..ops.rule_helpers import type_of
from ..ops.types import TensorType, is_float
from .tracer import Tracer, constants, evaluate

_JOINT = frozenset({ADD, SUB, NEG, SCALE, CAST, SELECT})
"""Linear in all float operands together, in addition to catalogue ops that declare it by `Linearity`."""


class _Degree(Enum):
    """How a tensor depends on the values in which a rule must be linear."""

    ZERO = "zero"
    CONSTANT = "constant"
    LINEAR = "linear"
    OTHER = "other"


_LINEAR = (_Degree.LINEAR, _Degree.ZERO)


class NotLinearError(Exception):
    """A function without a transpose; the message says why."""


def transpose(
    ops: Any, f: Callable[..., Sequence[Any]], types: Sequence[TensorType], cotangents: Sequence[Any]
) -> tuple[Any, ...]:
    """Return Fᵀ c for `f(ops', *refs)` = F x, a linear function of tensors of `types` that gives a tensor or None for
    each of the cotangents. Raises NotLinearError.
    """
    tracer = Tracer(ops)
    inputs = [tracer.input(type_) for type_ in types]
    with Quietly(ops.cursor):
        given = [
            (tracer.adopt(value), cotangent)
            for value, cotangent in zip(f(tracer, *inputs), cotangents, strict=True)
            if value is not None and cotangent is not None
        ]
    if tracer.iteration is not None:
        raise NotLinearError("it reads the iteration of a loop")
    captured = tracer.captured
    body = tracer.finish([*inputs, *[traced for traced, _ in captured]], [value for value, _ in given], prune=True)
    forms = [*[_Degree.LINEAR] * len(types), *[_Degree.CONSTANT] * len(captured)]
    _require_linear(ops, body, forms)
    if not given:
        return tuple([ops.full(shape=t.shape, value=0.0, dtype=t.dtype) for t in types])

    def linear(inner: Any, *refs: Any) -> list[Any]:
        outside = [inner.wrap(ref) for _, ref in captured]
        return list(evaluate(inner, body, (*refs, *outside), constants(inner, body)))

    zeros = [ops.full(shape=t.shape, value=0.0, dtype=t.dtype) for t in types]
    _, pullback = ops.vjp_of(linear, *zeros)
    found: tuple[Any, ...] = pullback([cotangent for _, cotangent in given])
    return found


def is_linear(ops: Any, body: Body, moving: Sequence[bool]) -> bool:
    """Return whether all outputs of a body are linear in the inputs for which `moving` is True."""
    given = [_Degree.LINEAR if each else _Degree.CONSTANT for each in moving]
    return all(form in _LINEAR for form in _forms(ops, body, given))


def _require_linear(ops: Any, body: Body, given: Sequence[_Degree]) -> None:
    names: dict[int, str] = {}
    for slot, form in zip(body.outputs, _forms(ops, body, given, names)):
        if form is _Degree.OTHER:
            raise NotLinearError(f"{names.get(slot, 'an op')} makes it nonlinear")
        if form is _Degree.CONSTANT and is_float(body.types[slot].dtype):
            raise NotLinearError("a constant term makes it nonlinear")


def _forms(ops: Any, body: Body, given: Sequence[_Degree], names: dict[int, str] | None = None) -> list[_Degree]:
    """Return the degree of each output of a body; `names` receives the op at which a tensor became nonlinear."""
    names = {} if names is None else names
    forms = dict(zip(body.inputs, given))
    forms.update((constant.slot, _Degree.CONSTANT) for constant in body.constants)
    for equation in body.equations:
        read = [forms[slot] for slot in equation.inputs]
        made = _op_degree(ops, body, equation, read)
        if made is _Degree.OTHER:
            origin = next((names[slot] for slot in equation.inputs if slot in names), equation.primitive.name)
            names.update(dict.fromkeys(equation.outputs, origin))
        forms.update(dict.fromkeys(equation.outputs, made))
    return [forms[slot] for slot in body.outputs]


def _op_degree(ops: Any, body: Body, equation: Equation, read: Sequence[_Degree]) -> _Degree:
    """Return the degree of an op's results."""
    primitive, moving = equation.primitive, read.count(_Degree.LINEAR)
    if _Degree.OTHER in read:
        return _Degree.OTHER
    floats = [form for form, slot in zip(read, equation.inputs) if is_float(body.types[slot].dtype)]
    joint = primitive in _JOINT or primitive.linearity is Linearity.JOINT
    if not moving:
        still = joint and bool(floats) and all(form is _Degree.ZERO for form in floats)
        return _Degree.ZERO if still or (primitive is FULL and equation.static["value"] == 0) else _Degree.CONSTANT
    if not all(is_float(body.types[slot].dtype) for slot in equation.outputs[: len(primitive.outputs)]):
        return _Degree.OTHER
    if joint:
        return _Degree.LINEAR if _Degree.CONSTANT not in floats else _Degree.OTHER
    if primitive is DIV:
        return _Degree.LINEAR if moving == 1 and read[0] is _Degree.LINEAR else _Degree.OTHER
    if primitive is MUL or primitive.linearity is Linearity.EACH:
        return _Degree.LINEAR if moving == 1 else _Degree.OTHER
    if primitive.decomposition is not None and primitive.expandable:
        return _decomposed(ops, body, equation, primitive, read)
    return _Degree.OTHER


def _decomposed(ops: Any, body: Body, equation: Equation, primitive: Primitive, read: Sequence[_Degree]) -> _Degree:
    """Return the degree of a composite's results, all of which must be linear."""
    assert primitive.decomposition is not None
    tracer = Tracer(ops)
    inputs = [tracer.input(body.types[slot]) for slot in equation.inputs]
    with Quietly(ops.cursor):
        outputs = primitive.decomposition(tracer, *inputs, **equation.static)[: len(primitive.outputs)]
    captured = tracer.captured
    part = tracer.finish([*inputs, *[traced for traced, _ in captured]], outputs, prune=True)
    forms = _forms(ops, part, [*read, *[_Degree.CONSTANT] * len(captured)])
    return _Degree.LINEAR if all(form in _LINEAR for form in forms) else _Degree.OTHER


# A rule that is not declared ------------------------------------------------------------------------------------------


class Forward(NamedTuple):
    """A forward call as seen by a vjp rule."""

    needs: tuple[bool, ...]
    saved: tuple[Any, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


def jvp_from_vjp(name: str, back: Vjp, operands: Sequence[str], results: Sequence[str], saves: Sequence[str]) -> Jvp:
    """Return the jvp that is the transpose of a declared vjp."""

    def jvp(ops: Any, primals: Any, outputs: Any, tangents: Any, /, **static: Any) -> tuple[Any, ...]:
        needs = tuple([tangent is not None for tangent in tangents])
        held = dict(zip((*operands, *results), (*primals, *outputs)))
        inputs, types = tuple(map(type_of, primals)), tuple(map(type_of, outputs))

        def pulled(inner: Any, *cotangents: Any) -> list[Any]:
            context = Forward(needs, tuple([inner.wrap(held[name]) for name in saves]), inputs, types)
            given = iter(cotangents)
            every = [next(given) if is_float(t.dtype) else _zeros(inner, t) for t in types]
            return list(back(inner, context, tuple(every), **static))

        moved = iter(_transposed(ops, name, "jvp", "vjp", "cotangents", pulled, types, tangents))
        return tuple([next(moved) if is_float(t.dtype) else None for t in types])

    return jvp


def vjp_from_jvp(name: str, forward: Jvp, count: int) -> Vjp:
    """Return the vjp that is the transpose of a declared jvp."""

    def vjp(ops: Any, ctx: Context[Any], cotangents: Any, /, **static: Any) -> tuple[Any, ...]:
        primals, outputs = ctx.saved[:count], ctx.saved[count:]
        types = [type_ for type_, needed in zip(ctx.inputs, ctx.needs) if needed]

        def pushed(inner: Any, *tangents: Any) -> list[Any]:
            given = iter(tangents)
            every = tuple([next(given) if needed else None for needed in ctx.needs])
            x, y = tuple(map(inner.wrap, primals)), tuple(map(inner.wrap, outputs))
            return list(forward(inner, x, y, every, **static))

        pulled = iter(_transposed(ops, name, "vjp", "jvp", "tangents", pushed, types, cotangents))
        return tuple([next(pulled) if needed else None for needed in ctx.needs])

    return vjp


def _zeros(ops: Any, type_: TensorType) -> Any:
    return ops.full(shape=type_.shape, value=0, dtype=type_.dtype)


def _transposed(
    ops: Any, name: str, missing: str, rule: str, of: str, f: Callable[..., Any], types: Any, given: Any
) -> tuple[Any, ...]:
    given = [ref if ref is None or is_float(ref.dtype) else None for ref in given]
    try:
        return transpose(ops, f, [type_ for type_ in types if is_float(type_.dtype)], given)
    except NotLinearError as error:
        raise ProgramError(
            f"{name} lacks a {missing}, which this derivative needs, and it does "
            f"not follow from its {rule}: {error} in the "
            f"{of}; give it one, {missing}= of custom_op or def{missing} of custom_vjp"
        ) from None
