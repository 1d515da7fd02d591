"""Arithmetic, elementwise functions, comparisons and masks, copies and casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...imported.values import TensorValue
from ...ops.derived import nan_to_num
from ...ops.dims import DimExpr, DimFloat
from ...ops.errors import UnsupportedError
from ...ops.functions.statistics import norm
from ...ops.types import BOOL
from ..call import AtenCall, is_number, pointwise, rule
from ..library import is_bfloat16

pointwise(
    {
        "abs": lambda ops, x: ops.abs(x),
        "acos": lambda ops, x: ops.acos(x),
        "acosh": lambda ops, x: ops.acosh(x),
        "asin": lambda ops, x: ops.asin(x),
        "asinh": lambda ops, x: ops.asinh(x),
        "atan": lambda ops, x: ops.atan(x),
        "atanh": lambda ops, x: ops.atanh(x),
        "ceil": lambda ops, x: ops.ceil(x),
        "cos": lambda ops, x: ops.cos(x),
        "cosh": lambda ops, x: ops.cosh(x),
        "erf": lambda ops, x: ops.erf(x),
        "exp": lambda ops, x: ops.exp(x),
        "exp2": lambda ops, x: ops.exp2(x),
        "expm1": lambda ops, x: ops.expm1(x),
        "floor": lambda ops, x: ops.floor(x),
        "log": lambda ops, x: ops.log(x),
        "log10": lambda ops, x: ops.log10(x),
        "log1p": lambda ops, x: ops.log1p(x),
        "log2": lambda ops, x: ops.log2(x),
        "_neg_view": lambda ops, x: ops.neg(x),
        "neg": lambda ops, x: ops.neg(x),
        "reciprocal": lambda ops, x: ops.inv(x),
        "round": lambda ops, x: ops.round(x),
        "rsqrt": lambda ops, x: ops.rsqrt(x),
        "sigmoid": lambda ops, x: ops.sigmoid(x),
        "sign": lambda ops, x: ops.sign(x),
        "sin": lambda ops, x: ops.sin(x),
        "sinh": lambda ops, x: ops.sinh(x),
        "sqrt": lambda ops, x: ops.sqrt(x),
        "square": lambda ops, x: ops.square(x),
        "tan": lambda ops, x: ops.tan(x),
        "tanh": lambda ops, x: ops.tanh(x),
        "trunc": lambda ops, x: ops.trunc(x),
    }
)


@rule("clone.default", "alias.default", "lift_fresh_copy.default", "lift_fresh.default", "contiguous.default")
def _itself(call: AtenCall[Any], x: Any) -> Any:
    return x


@rule("detach.default", "detach_copy.default")
def _detach(call: AtenCall[Any], x: Any) -> Any:
    return TensorValue(call.ops.detach(x.ref), x.dtype) if x.dtype.kind == "f" else x


@rule("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "type_as.default")
def _to(call: AtenCall[Any], x: Any, *_: Any) -> Any:
    target = call.dtype()
    same = target == x.dtype and is_bfloat16(target) == is_bfloat16(x.dtype)  # equality ignores the mark
    if target.kind == "f" and x.dtype.kind == "f" and not same:
        narrow = "bfloat16" if is_bfloat16(target) else "float16" if target == np.float16 else ""
        if narrow:
            raise UnsupportedError(
                f"a cast to {narrow} would not round here, where all floats are of the program's dtype; export the "
                "module in float32"
            )
    return call.give(x.ref)


@rule("copy.default")
def _copy(call: AtenCall[Any], target: Any, x: Any, *_: Any) -> Any:
    return call.give(call.stretched(call.tensor(x), target.shape))


def _scaled(call: AtenCall[Any], y: Any, alpha: Any) -> Any:
    """Return alpha · y in the type of the result; y is a tensor or a number."""
    if isinstance(alpha, (int, float)) and alpha == 1:
        return y
    if is_number(y):
        return y * alpha
    dtype = call.dtype()
    x = call.tensor(y, dtype)
    product = call.ops.scale(x, c=alpha) if x.dtype.kind == "f" else call.ops.mul(x, int(alpha))
    return TensorValue(product, dtype)


@rule("add.Tensor", "add.Scalar")
def _add(call: AtenCall[Any], x: Any, y: Any, alpha: Any) -> Any:
    x, y = call.together(x, _scaled(call, y, alpha))
    return call.give(call.ops.logical_or(x, y) if x.dtype == BOOL else call.ops.add(x, y))


@rule("sub.Tensor", "sub.Scalar")
def _sub(call: AtenCall[Any], x: Any, y: Any, alpha: Any) -> Any:
    return call.give(call.ops.sub(*call.together(x, _scaled(call, y, alpha))))


@rule("rsub.Tensor", "rsub.Scalar")
def _rsub(call: AtenCall[Any], x: Any, y: Any, alpha: Any) -> Any:
    return call.give(call.ops.sub(*call.together(y, _scaled(call, x, alpha))))


@rule("mul.Tensor", "mul.Scalar")
def _mul(call: AtenCall[Any], x: Any, y: Any) -> Any:
    if is_number(y) and call.dtype().kind == "f" and not isinstance(y, (DimExpr, DimFloat)):
        return call.give(call.ops.scale(call.tensor(x, call.dtype()), c=y))
    x, y = call.together(x, y)
    return call.give(call.ops.logical_and(x, y) if x.dtype == BOOL else call.ops.mul(x, y))


@rule("div.Tensor", "div.Scalar", "true_divide.Tensor")
def _div(call: AtenCall[Any], x: Any, y: Any) -> Any:
    return call.give(call.ops.div(*call.together(x, y)))


@rule("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(call: AtenCall[Any], x: Any, y: Any, rounding_mode: Any) -> Any:
    ops = call.ops
    if rounding_mode == "floor":
        return _floor_divide(call, x, y)
    a, b = call.together(x, y)
    if a.dtype.kind == "f":
        quotient = ops.div(a, b)
        return call.give(quotient if rounding_mode is None else ops.trunc(quotient))
    # integers towards zero: one up if rounding down went below the quotient
    down = ops.floor_divide(a, b)
    inexact = ops.logical_not(ops.equal(ops.mul(down, b), a))
    apart = ops.logical_xor(ops.less(a, 0), ops.less(b, 0))
    return call.give(ops.add(down, ops.cast(ops.logical_and(apart, inexact), dtype=a.dtype)))


@rule("floor_divide.default", "floor_divide.Scalar")
def _floor_divide(call: AtenCall[Any], x: Any, y: Any) -> Any:
    a, b = call.together(x, y)
    return call.give(call.ops.floor_divide(a, b))


@rule("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(call: AtenCall[Any], x: Any, y: Any) -> Any:
    return call.give(call.ops.mod(*call.together(x, y)))


@rule("fmod.Tensor", "fmod.Scalar")
def _fmod(call: AtenCall[Any], x: Any, y: Any) -> Any:
    return call.give(call.ops.fmod(*call.together(x, y)))


@rule("pow.Tensor_Scalar")
def _pow(call: AtenCall[Any], x: Any, exponent: Any) -> Any:
    ops, base = call.ops, call.tensor(x, call.dtype())
    if base.dtype.kind == "f":
        e = int(exponent) if isinstance(exponent, float) and exponent.is_integer() else exponent
        return call.give(ops.pow(base, exponent=e))
    if not isinstance(exponent, int) or exponent < 0:
        raise UnsupportedError(f"integers to the power of {exponent} are not known")
    result = ops.full(shape=base.shape, value=1, dtype=base.dtype)
    for _ in range(exponent):
        result = ops.mul(result, base)
    return call.give(result)


@rule("pow.Tensor_Tensor", "pow.Scalar")
def _power(call: AtenCall[Any], x: Any, y: Any) -> Any:
    if call.dtype().kind != "f":
        raise UnsupportedError("integers to the power of integers that are computed are not known")
    return call.give(call.ops.power(*call.together(x, y)))


def _binary(name: str, function: Callable[[Any, Any, Any], Any]) -> None:
    @rule(f"{name}.default", f"{name}.Tensor", f"{name}.other")
    def apply(call: AtenCall[Any], x: Any, y: Any) -> Any:
        return call.give(function(call.ops, *call.together(x, y)))


_binary("maximum", lambda ops, x, y: ops.maximum(x, y))
_binary("minimum", lambda ops, x, y: ops.minimum(x, y))
_binary("atan2", lambda ops, x, y: ops.atan2(x, y))


def _numbers_first(op: str) -> Callable[[Any, Any, Any], Any]:
    """Return maximum or minimum, with the other operand if one is nan."""

    def apply(ops: Any, x: Any, y: Any) -> Any:
        found = getattr(ops, op)(x, y)
        if x.dtype.kind != "f":
            return found
        return ops.select(ops.isnan(x), y, ops.select(ops.isnan(y), x, found))

    return apply


_binary("fmax", _numbers_first("maximum"))
_binary("fmin", _numbers_first("minimum"))


def _hypot(ops: Any, x: Any, y: Any) -> Any:
    """Compute √(x² + y²), infinite if either is, even if the other is nan."""
    length = norm(ops, ops.stack([x, y], axis=0), axis=0)
    infinite = ops.logical_or(ops.isinf(x), ops.isinf(y))
    return ops.select(infinite, ops.full(shape=x.shape, value=math.inf, dtype=x.dtype), length)


def _copysign(ops: Any, x: Any, y: Any) -> Any:
    """Return |x| with the sign of y, including the sign of -0."""
    zero_below = ops.logical_and(ops.equal(y, 0), ops.less(ops.inv(y), 0))
    size = ops.abs(x)
    return ops.select(ops.logical_or(ops.less(y, 0), zero_below), ops.neg(size), size)


_binary("hypot", _hypot)
_binary("copysign", _copysign)
rule("copysign.Scalar")(lambda call, x, y: call.give(_copysign(call.ops, *call.together(x, y))))


def _bitwise(name: str, of_masks: str | None, of_integers: str) -> None:
    infix = {"left_shift": "__lshift__", "right_shift": "__rshift__"}.get(of_integers, f"__{of_integers[8:]}__")

    @rule(*[f"{op}.{kind}" for op in (name, infix) for kind in ("Tensor", "Scalar", "Tensor_Scalar")])
    def apply(call: AtenCall[Any], x: Any, y: Any) -> Any:
        x, y = call.together(x, y)
        return call.give(getattr(call.ops, of_masks if x.dtype == BOOL and of_masks else of_integers)(x, y))


_bitwise("bitwise_and", "logical_and", "bitwise_and")
_bitwise("bitwise_or", "logical_or", "bitwise_or")
_bitwise("bitwise_xor", "logical_xor", "bitwise_xor")
_bitwise("bitwise_left_shift", None, "left_shift")
_bitwise("bitwise_right_shift", None, "right_shift")


@rule("bitwise_not.default")
def _bitwise_not(call: AtenCall[Any], x: Any) -> Any:
    return call.give(call.ops.logical_not(x.ref) if x.dtype == BOOL else call.ops.bitwise_xor(x.ref, -1))


def _compared(name: str, function: Callable[[Any, Any, Any], Any]) -> None:
    @rule(f"{name}.Tensor", f"{name}.Scalar")
    def apply(call: AtenCall[Any], x: Any, y: Any) -> Any:
        x, y = call.compared(x, y)
        if x.dtype == BOOL and name not in ("eq", "ne"):
            x, y = (call.ops.cast(each, dtype="int64") for each in (x, y))
        return call.give(function(call.ops, x, y))


_compared("eq", lambda ops, x, y: ops.equal(x, y))
_compared("ne", lambda ops, x, y: ops.logical_not(ops.equal(x, y)))
_compared("lt", lambda ops, x, y: ops.less(x, y))
_compared("le", lambda ops, x, y: ops.less_equal(x, y))
_compared("gt", lambda ops, x, y: ops.less(y, x))
_compared("ge", lambda ops, x, y: ops.less_equal(y, x))


def _mask(call: AtenCall[Any], x: Any) -> Any:
    """Return whether elements are not zero."""
    ref = call.tensor(x)
    return ref if ref.dtype == BOOL else call.ops.logical_not(call.ops.equal(ref, 0))


def _logical(name: str, function: Callable[..., Any]) -> None:
    @rule(f"logical_{name}.default")
    def apply(call: AtenCall[Any], *values: Any) -> Any:
        masks = [TensorValue(_mask(call, value), BOOL) for value in values]
        return call.give(function(call.ops, *call.together(*masks, dtype=BOOL)))


_logical("and", lambda ops, x, y: ops.logical_and(x, y))
_logical("or", lambda ops, x, y: ops.logical_or(x, y))
_logical("xor", lambda ops, x, y: ops.logical_xor(x, y))
_logical("not", lambda ops, x: ops.logical_not(x))


def _tested(name: str) -> None:
    @rule(f"{name}.default")
    def apply(call: AtenCall[Any], x: Any) -> Any:
        if x.dtype.kind != "f":
            return call.full(x.shape, name == "isfinite")
        return call.give(getattr(call.ops, name)(x.ref))


for _name in ("isnan", "isinf", "isfinite"):
    _tested(_name)


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(call: AtenCall[Any], mask: Any, x: Any, y: Any) -> Any:
    a, b = call.together(x, y)
    shape = call.together(mask, TensorValue(a, call.dtype()), dtype=BOOL)[0].shape
    return call.give(
        call.ops.select(call.stretched(mask.ref, shape), *(call.stretched(each, shape) for each in (a, b)))
    )


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(call: AtenCall[Any], x: Any, mask: Any, value: Any) -> Any:
    return _where(call, mask, value, x)


@rule("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default", "clip.default")
def _clamp(call: AtenCall[Any], x: Any, low: Any = None, high: Any = None) -> Any:
    ops, ref = call.ops, call.tensor(x, call.dtype())
    if "clamp_max" in call.name:
        low, high = None, low
    plain = all(isinstance(each, (int, float)) for each in (low, high))
    if plain and ref.dtype.kind == "f" and low <= high:
        return call.give(ops.clamp(ref, lo=low, hi=high))
    return call.give(_limited(call, _limited(call, ref, low, ops.maximum, math.inf), high, ops.minimum, -math.inf))


def _limited(call: AtenCall[Any], ref: Any, bound: Any, op: Callable[..., Any], other: float) -> Any:
    """Clamp the ref at a bound; floats use clamp, with gradient 1 at the bound as in PyTorch."""
    if bound is None:
        return ref
    if isinstance(bound, (int, float)) and ref.dtype.kind == "f":
        return call.ops.clamp(ref, lo=min(bound, other), hi=max(bound, other))
    return op(*call.together(TensorValue(ref, call.dtype()), bound))


@rule("round.decimals")
def _round(call: AtenCall[Any], x: Any, decimals: int) -> Any:
    ops = call.ops
    scaled = ops.scale(call.tensor(x, call.dtype()), c=10**decimals) if decimals > 0 else x.ref
    if decimals < 0:
        scaled = ops.div(x.ref, float(10**-decimals))
        return call.give(ops.scale(ops.round(scaled), c=10**-decimals))
    return call.give(ops.div(ops.round(scaled), float(10**decimals)))


@rule("nan_to_num.default")
def _nan_to_num(call: AtenCall[Any], x: Any, nan: Any, posinf: Any, neginf: Any) -> Any:
    if x.dtype.kind != "f":
        return x
    largest = float(np.finfo(x.dtype).max)
    bounds = {"posinf": largest if posinf is None else posinf, "neginf": -largest if neginf is None else neginf}
    result = nan_to_num(call.ops, x.ref, nan=0.0 if nan is None else nan, **bounds)
    return call.give(result)
