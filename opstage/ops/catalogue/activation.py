"""Activation functions, and the fused derivative of each as a composite op of its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError, nearest
from ..kinds import Kind
from ..primitive import Primitive, R
from ..rules import ones_like, same_type, zeros_like
from ..types import TensorType, require_float
from .elementwise import pointwise

if TYPE_CHECKING:
    from ..protocol import Ops

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715
_GELU_FORMS = ("tanh", "none")


def _grad_shape(x: TensorType, g: TensorType, **static: Any) -> tuple[TensorType, ...]:
    require_float(x, "x")
    return (same_type(x, g, "x", "g"),)


def _fused(name: str, first: str, decomposition: Any) -> Primitive:
    """g · f' as one op: a kernel may do it in one pass; its own derivatives come from its decomposition."""
    return Primitive(name, operands=(first, "g"), shape=_grad_shape, decomposition=decomposition, kind=Kind.POINTWISE)


def _relu_decomposition(ops: Ops[R], x: R, /) -> tuple[R, ...]:
    zero = zeros_like(ops, x)
    return (ops.select(ops.less_equal(x, zero), zero, x),)  # this way round nan stays nan


RELU = pointwise(
    "relu",
    reads="out",
    derivative=lambda ops, y, g: ops.relu_grad(y, g),
    decomposition=_relu_decomposition,
)


def _relu_grad_decomposition(ops: Ops[R], y: R, g: R, /) -> tuple[R, ...]:
    zero = zeros_like(ops, y)
    return (ops.select(ops.less_equal(y, zero), zeros_like(ops, g), g),)


RELU_GRAD = _fused("relu_grad", "y", _relu_grad_decomposition)


def _tanh_grad_decomposition(ops: Ops[R], y: R, g: R, /) -> tuple[R, ...]:
    return (ops.mul(g, ops.sub(ones_like(ops, y), ops.mul(y, y))),)


TANH_GRAD = _fused("tanh_grad", "y", _tanh_grad_decomposition)


def _sigmoid_grad_decomposition(ops: Ops[R], y: R, g: R, /) -> tuple[R, ...]:
    return (ops.mul(g, ops.mul(y, ops.sub(ones_like(ops, y), y))),)


SIGMOID_GRAD = _fused("sigmoid_grad", "y", _sigmoid_grad_decomposition)


def _silu_decomposition(ops: Ops[R], x: R, /) -> tuple[R, ...]:
    return (ops.mul(x, ops.sigmoid(x)),)


SILU = pointwise(
    "silu",
    reads="x",
    derivative=lambda ops, x, g: ops.silu_grad(x, g),
    decomposition=_silu_decomposition,
)


def _silu_grad_decomposition(ops: Ops[R], x: R, g: R, /) -> tuple[R, ...]:
    s = ops.sigmoid(x)
    slope = ops.mul(s, ops.add(ones_like(ops, x), ops.mul(x, ops.sub(ones_like(ops, x), s))))
    return (ops.mul(g, slope),)


SILU_GRAD = _fused("silu_grad", "x", _silu_grad_decomposition)


def _require_gelu_form(approximate: str) -> None:
    if approximate not in _GELU_FORMS:
        raise ShapeError(
            f"approximate must be one of {_GELU_FORMS} but is {approximate!r}{nearest(approximate, _GELU_FORMS)}"
        )


def _gelu_decomposition(ops: Ops[R], x: R, /, *, approximate: str) -> tuple[R, ...]:
    if approximate == "none":
        inner = ops.erf(ops.scale(x, c=1 / math.sqrt(2)))
    else:
        inner = ops.tanh(_gelu_inner(ops, x))
    return (ops.mul(ops.scale(x, c=0.5), ops.add(ones_like(ops, x), inner)),)


def _gelu_inner(ops: Ops[R], x: R) -> R:
    cube = ops.mul(x, ops.mul(x, x))
    return ops.scale(ops.add(x, ops.scale(cube, c=_GELU_CUBIC)), c=_SQRT_2_OVER_PI)


GELU = pointwise(
    "gelu",
    reads="x",
    derivative=lambda ops, x, g, approximate: ops.gelu_grad(x, g, approximate=approximate),
    decomposition=_gelu_decomposition,
    require=_require_gelu_form,
)


def _gelu_grad_decomposition(ops: Ops[R], x: R, g: R, /, *, approximate: str) -> tuple[R, ...]:
    one = ones_like(ops, x)
    if approximate == "none":
        distribution = ops.scale(ops.add(one, ops.erf(ops.scale(x, c=1 / math.sqrt(2)))), c=0.5)
        density = ops.scale(ops.exp(ops.scale(ops.mul(x, x), c=-0.5)), c=1 / math.sqrt(2 * math.pi))
        slope = ops.add(distribution, ops.mul(x, density))
    else:
        t = ops.tanh(_gelu_inner(ops, x))
        inner_slope = ops.scale(ops.add(one, ops.scale(ops.mul(x, x), c=3 * _GELU_CUBIC)), c=_SQRT_2_OVER_PI)
        rise = ops.mul(ops.scale(x, c=0.5), ops.mul(ops.sub(one, ops.mul(t, t)), inner_slope))
        slope = ops.add(ops.scale(ops.add(one, t), c=0.5), rise)
    return (ops.mul(g, slope),)


GELU_GRAD = _fused("gelu_grad", "x", _gelu_grad_decomposition)
