"""Arithmetic, elementwise functions, comparisons, masks, copies and casts; subgraphs; arithmetic on sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ....ops import dims as dims
from ....ops.derived import nan_to_num
from ....ops.dims import DimExpr, DimFloat
from ....ops.errors import UnsupportedError
from ....ops.statistics import norm
from ....ops.types import BOOL
from ... import exact as exact
from ...operators import divide
from ...values import TensorValue, is_bfloat16
from ..call import AtenCall, is_number, rule


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


@rule("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(call: AtenCall[Any], x: Any, y: Any, rounding_mode: Any) -> Any:
    a, b = call.together(x, y)
    if rounding_mode == "floor":
        return call.give(call.ops.floor_divide(a, b))
    quotient = divide(call.ops, a, b)
    return call.give(quotient if rounding_mode is None or a.dtype.kind != "f" else call.ops.trunc(quotient))


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


# Subgraphs ------------------------------------------------------------------------------------------------------------


@rule("higher_order.wrap_with_set_grad_enabled")
def _set_grad(call: AtenCall[Any], enabled: bool, module: Any, *inputs: Any) -> Any:
    outputs = call.around.subgraph(call.ops, module, inputs)
    return list(outputs) if enabled else [_detached(call, each) for each in outputs]


def _detached(call: AtenCall[Any], value: Any) -> Any:
    if isinstance(value, TensorValue) and value.dtype.kind == "f":
        return TensorValue(call.ops.detach(value.ref), value.dtype)
    return value


@rule("higher_order.wrap_with_autocast")
def _autocast(
    call: AtenCall[Any], device: str, dtype: Any, enabled: bool, cache: Any, module: Any, *inputs: Any
) -> Any:
    if enabled:
        raise UnsupportedError("autocast to a shorter float type would not round here; export the module without it")
    return list(call.around.subgraph(call.ops, module, inputs))


# Sizes and other numbers that are known before a run ------------------------------------------------------------------


def _size(x: Any, axis: int) -> Any:
    return x.shape[axis]


SIZES: dict[str, Callable[..., Any]] = {
    "aten.sym_size.int": _size,
    "aten.sym_numel.default": lambda x: dims.prod(x.shape),
    "operator.getitem": operator.getitem,
    "operator.add": operator.add,
    "operator.sub": operator.sub,
    "operator.mul": operator.mul,
    "operator.neg": operator.neg,
    "operator.floordiv": exact.floor_divide,
    "operator.mod": operator.mod,
    "operator.truediv": exact.ratio,
    "operator.pow": operator.pow,
    "operator.eq": operator.eq,
    "operator.ne": operator.ne,
    "operator.lt": operator.lt,
    "operator.le": operator.le,
    "operator.gt": operator.gt,
    "operator.ge": operator.ge,
    "operator.and_": lambda a, b: a and b,
    "operator.or_": lambda a, b: a or b,
    "math.floor": exact.floor,
    "math.ceil": exact.ceil,
    "math.trunc": exact.truncated,
    "torch.sym_max": exact.maximum,
    "torch.sym_min": exact.minimum,
    "torch.sym_not": operator.not_,
    "torch.sym_float": lambda x: x if isinstance(x, (DimExpr, DimFloat)) else float(x),
    "torch.sym_int": exact.truncated,
    "torch.sym_ite": lambda condition, a, b: a if condition else b,
    "torch._sym_sqrt": lambda x: x**0.5,
}
"""Maps functions to their meaning on numbers and dims; getitem selects one of several results."""
