"""Masks, selection, casts, detach, and constant tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..kinds import Kind
from ..primitive import Context, Primitive, R, no_flops
from ..rules import same_shape, same_type, zeros_like
from ..types import BOOL, Shape, TensorType, as_dtype, is_float, require_bool, require_number, require_value

if TYPE_CHECKING:
    from ..protocol import Ops

# Comparisons --------------------------------------------------------------------------------------------------------


def _ordered_shape(x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
    require_number(x, "x")
    return (TensorType(same_type(x, y).shape, BOOL),)


def _equal_shape(x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
    return (TensorType(same_type(x, y).shape, BOOL),)


LESS = Primitive(
    "less",
    operands=("x", "y"),
    kind=Kind.POINTWISE,
    shape=_ordered_shape,
    differentiable=False,
)
LESS_EQUAL = Primitive(
    "less_equal",
    operands=("x", "y"),
    kind=Kind.POINTWISE,
    shape=_ordered_shape,
    differentiable=False,
)
EQUAL = Primitive(
    "equal",
    operands=("x", "y"),
    kind=Kind.POINTWISE,
    shape=_equal_shape,
    differentiable=False,
)


def _logical_shape(x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
    require_bool(x, "x")
    return (same_type(x, y),)


def _logical_not_shape(x: TensorType) -> tuple[TensorType, ...]:
    require_bool(x, "x")
    return (x,)


LOGICAL_AND = Primitive(
    "logical_and",
    operands=("x", "y"),
    kind=Kind.POINTWISE,
    shape=_logical_shape,
    differentiable=False,
)
LOGICAL_NOT = Primitive(
    "logical_not",
    operands=("x",),
    kind=Kind.POINTWISE,
    shape=_logical_not_shape,
    differentiable=False,
)


def _logical_or_decomposition(ops: Ops[R], x: R, y: R, /) -> tuple[R, ...]:
    return (ops.logical_not(ops.logical_and(ops.logical_not(x), ops.logical_not(y))),)


LOGICAL_OR = Primitive(
    "logical_or",
    operands=("x", "y"),
    kind=Kind.POINTWISE,
    shape=_logical_shape,
    decomposition=_logical_or_decomposition,
    differentiable=False,
)


def _logical_xor_decomposition(ops: Ops[R], x: R, y: R, /) -> tuple[R, ...]:
    return (ops.logical_not(ops.equal(x, y)),)


LOGICAL_XOR = Primitive(
    "logical_xor",
    operands=("x", "y"),
    kind=Kind.POINTWISE,
    shape=_logical_shape,
    decomposition=_logical_xor_decomposition,
    differentiable=False,
)


def _of_numbers(name: str, decomposition: Any) -> Primitive:
    """Make a mask that classifies numbers."""

    def shape(x: TensorType) -> tuple[TensorType, ...]:
        require_number(x, "x")
        return (TensorType(x.shape, BOOL),)

    return Primitive(
        name,
        operands=("x",),
        kind=Kind.POINTWISE,
        shape=shape,
        decomposition=decomposition,
        differentiable=False,
    )


def _size_against_infinity(ops: Ops[R], x: R, compare: Any, otherwise: bool) -> tuple[R, ...]:
    """Return `compare(|x|, inf)` for floats, and `otherwise` for integers and fractions, which are finite."""
    if x.dtype.kind != "f":
        return (ops.full(shape=x.shape, value=otherwise, dtype="bool"),)
    return (compare(ops.abs(x), ops.full(shape=x.shape, value=math.inf, dtype=x.dtype)),)


ISNAN = _of_numbers("isnan", lambda ops, x, /: (ops.logical_not(ops.equal(x, x)),))
ISINF = _of_numbers("isinf", lambda ops, x, /: _size_against_infinity(ops, x, ops.equal, False))
ISFINITE = _of_numbers("isfinite", lambda ops, x, /: _size_against_infinity(ops, x, ops.less, True))

# Selection and conversion -------------------------------------------------------------------------------------------


def _select_shape(mask: TensorType, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
    require_bool(mask, "mask")
    same_shape(mask.shape, x.shape, "mask", "x")
    return (same_type(x, y),)


def _select_vjp(ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /) -> tuple[R | None, ...]:
    (g,), (mask,) = cotangents, ctx.saved
    zero = zeros_like(ops, g)
    return (
        None,
        ops.select(mask, g, zero) if ctx.needs[1] else None,
        ops.select(mask, zero, g) if ctx.needs[2] else None,
    )


def _select_jvp(
    ops: Ops[R], primals: tuple[R, ...], outputs: tuple[R, ...], tangents: tuple[R | None, ...], /
) -> tuple[R | None]:
    mask, (_, tx, ty) = primals[0], tangents
    if tx is None and ty is None:
        return (None,)
    return (
        ops.select(
            mask,
            tx if tx is not None else zeros_like(ops, outputs[0]),
            ty if ty is not None else zeros_like(ops, outputs[0]),
        ),
    )


SELECT = Primitive(
    "select",
    operands=("mask", "x", "y"),
    kind=Kind.POINTWISE,
    shape=_select_shape,
    vjp=_select_vjp,
    jvp=_select_jvp,
    saves={"mask": ("x", "y")},
)


def _cast_shape(x: TensorType, *, dtype: str) -> tuple[TensorType, ...]:
    return (TensorType(x.shape, as_dtype(dtype)),)


def _cast_vjp(ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, dtype: str) -> tuple[R | None, ...]:
    return (ops.cast(cotangents[0], dtype=ctx.inputs[0].dtype),)


def _cast_jvp(
    ops: Ops[R], primals: tuple[R, ...], outputs: tuple[R, ...], tangents: tuple[R, ...], /, *, dtype: str
) -> tuple[R | None]:
    return (ops.cast(tangents[0], dtype=dtype) if is_float(as_dtype(dtype)) else None,)


CAST = Primitive(
    "cast",
    operands=("x",),
    kind=Kind.POINTWISE,
    shape=_cast_shape,
    vjp=_cast_vjp,
    jvp=_cast_jvp,
    flops=no_flops,
)


def _detach_shape(x: TensorType) -> tuple[TensorType, ...]:
    return (x,)


DETACH = Primitive(
    "detach",
    operands=("x",),
    shape=_detach_shape,
    differentiable=False,
    kind=Kind.LAYOUT,
    view=True,
)

# Creation -----------------------------------------------------------------------------------------------------------


def _full_shape(*, shape: Shape, value: Any, dtype: str) -> tuple[TensorType, ...]:
    require_value(value, as_dtype(dtype))
    return (TensorType(shape, as_dtype(dtype)),)


FULL = Primitive(
    "full",
    operands=(),
    shape=_full_shape,
    differentiable=False,
    flops=no_flops,
)


def _iota_shape(*, shape: Shape, axis: int, dtype: str) -> tuple[TensorType, ...]:
    out = TensorType(shape, as_dtype(dtype))
    require_number(out, "the result")
    return (out,)


IOTA = Primitive(
    "iota",
    operands=(),
    shape=_iota_shape,
    differentiable=False,
    flops=no_flops,
)
