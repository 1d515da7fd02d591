"""One table of the operators that ONNX, PyTorch and Opstage have in common, read by both importers and the exporter.

A row names an op of Ops, ONNX's operator and ATen's ops. Its kind says how operands and results are typed. Operators
of one library alone, and those that the libraries define differently, have rules of their own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, Generic, NamedTuple

import numpy as np

from ..ops.adaptive_pooling import instance_norm
from ..ops.arrangement import diagonal, moveaxis, tril, triu
from ..ops.derived import glu, logsumexp
from ..ops.dims import DimExpr, rsqrt
from ..ops.errors import UnsupportedError
from ..ops.linalg import inverse
from ..ops.protocol import Ops, R
from ..ops.types import BOOL, INT64, DType, Shape
from ..ops.windows import pixel_shuffle, pixel_unshuffle
from .values import KnownValue, TensorValue, broadcast, common_shape, held, ref_of, stretched, wrapped

# Calls ----------------------------------------------------------------------------------------------------------------


class OperatorCall(ABC, Generic[R]):
    """A node with its inputs.

    ops     the interpreter
    """

    ops: Ops[R]

    @abstractmethod
    def dtype(self, i: int = 0) -> DType:
        """Return the element type of the result, or of result i of several."""

    def compared(self, *values: Any) -> tuple[R, ...]:
        """Convert operands to the type in which they are compared, and broadcast them."""
        return self.together(*values)

    @abstractmethod
    def static(self, given: tuple[Any, ...], names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the static parameters of an operator of the table."""

    @abstractmethod
    def reduction(self, x: Any, given: tuple[Any, ...]) -> tuple[tuple[int, ...], bool]:
        """Return the axes of a reduction, counted from the front, and whether they are kept."""

    # Operands -------------------------------------------------------------------------------------------------------

    def tensor(self, value: Any, dtype: DType | None = None, shape: Shape = ()) -> R:
        """Convert a tensor or number to a tensor in the dtype that holds `dtype`, by default its own."""
        if isinstance(value, (KnownValue, TensorValue)):
            ref: R = ref_of(self.ops, value)
            return ref if dtype is None else self.as_dtype(ref, held(dtype, self.ops))
        if dtype is None:
            kinds = {bool: BOOL, int: INT64}
            dtype = INT64 if isinstance(value, DimExpr) else kinds.get(type(value), self.ops.dtype)
        target = held(dtype, self.ops)
        if target.kind == "f" and isinstance(value, (int, bool)):
            value = float(value)
        return self.ops.full(shape=shape, value=value, dtype=target)

    def together(self, *values: Any, dtype: DType | None = None) -> tuple[R, ...]:
        """Convert tensors and numbers to one type, by default that of the result, and broadcast them."""
        dtype = self.dtype() if dtype is None else dtype
        tensors = (KnownValue, TensorValue)
        shape = common_shape([value.shape for value in values if isinstance(value, tensors)])
        return broadcast(self.ops, *[self.tensor(v, dtype, () if isinstance(v, tensors) else shape) for v in values])

    def masks(self, *values: Any) -> tuple[R, ...]:
        """Convert operands to masks of their elements that are not zero, and broadcast them."""
        refs = [self.tensor(value) for value in values]
        return broadcast(
            self.ops, *[x if x.dtype == BOOL else self.ops.logical_not(self.ops.equal(x, 0)) for x in refs]
        )

    def floats(self, value: Any) -> R:
        """Convert a tensor to floats of the program's dtype."""
        return self.as_dtype(self.tensor(value), self.ops.dtype)

    def as_dtype(self, ref: R, target: DType) -> R:
        """Cast a ref to a dtype unless it is of it."""
        return ref if ref.dtype == target else self.ops.cast(ref, dtype=target)

    def stretched(self, ref: R, shape: Shape) -> R:
        """Return the ref broadcast to a shape."""
        return stretched(self.ops, ref, shape)

    def counted(self, given: Any, rank: int, *, empty_is_all: bool = True) -> tuple[int, ...]:
        """Return axes counted from the front; all if none are given."""
        if given is None or (empty_is_all and isinstance(given, (list, tuple)) and not given):
            return tuple(range(rank))
        listed = given if isinstance(given, (list, tuple)) else [given]
        return tuple(int(axis) % rank if rank else 0 for axis in listed)

    def positive(self, value: Any, size: Any) -> R:
        """Return indices counted from the front: negative ones count from the end of an axis of `size`."""
        ops = self.ops
        if isinstance(value, KnownValue) and not value.is_symbolic:
            if value.array.size and value.array.min() >= 0:
                return ops.const(value.array.astype(np.int64))
            if isinstance(size, int):
                return ops.const(np.where(value.array < 0, value.array + size, value.array).astype(np.int64))
        index = ops.cast(self.tensor(value), dtype="int64")
        behind = ops.add(index, ops.full(shape=index.shape, value=size, dtype="int64"))
        return ops.select(ops.less(index, 0), behind, index)

    # Results --------------------------------------------------------------------------------------------------------

    def give(self, ref: R, of: DType | int | None = None) -> TensorValue[R]:
        """Return a result with the element type of result i, or with another one."""
        dtype = self.dtype(of or 0) if of is None or isinstance(of, int) else of
        return TensorValue(self.as_dtype(ref, held(dtype, self.ops)), dtype)

    def wrap(self, ref: R, of: DType | int | None = None) -> TensorValue[R]:
        """Do the same as `give` for a result of arithmetic that may overflow short integers, which wrap around."""
        given, dtype = self.give(ref, of)
        return TensorValue(wrapped(self.ops, given, dtype), dtype)

    def mask(self, ref: R) -> TensorValue[R]:
        """Return a result of bools."""
        return self.give(ref, BOOL)

    def index(self, ref: R) -> TensorValue[R]:
        """Return a result of int64."""
        return self.give(ref, INT64)

    def full(self, shape: Shape, value: Any) -> TensorValue[R]:
        """Return a result filled with one number."""
        dtype = self.dtype()
        return TensorValue(self.tensor(value, dtype, tuple(shape)), dtype)


NAN = "ONNX leaves the result for nan undefined"


# Kinds ----------------------------------------------------------------------------------------------------------------


def pointwise(
    call: OperatorCall[Any], function: Callable[..., Any], x: Any, *given: Any, names: Mapping[str, Any]
) -> Any:
    """Apply to one tensor, in the type of the result."""
    return call.wrap(function(call.ops, call.tensor(x, call.dtype()), **call.static(given, names)))


def direct(call: OperatorCall[Any], function: Callable[..., Any], *args: Any, names: Mapping[str, Any]) -> Any:
    """Apply to tensors as they are, absent ones among them, and to static parameters."""
    is_operand = [each is None or isinstance(each, (KnownValue, TensorValue)) for each in args]
    refs = [each and call.tensor(each) for each, operand in zip(args, is_operand) if operand]
    given = tuple(each for each, operand in zip(args, is_operand) if not operand)
    return call.give(function(call.ops, *refs, **call.static(given, names)))


def together(call: OperatorCall[Any], function: Callable[..., Any], *xs: Any, names: Mapping[str, Any]) -> Any:
    """Apply to tensors and numbers of one type, from left to right."""
    function = partial(function, call.ops, **call.static((), names))
    return call.wrap(reduce(function, call.together(*xs)))


def compared(call: OperatorCall[Any], function: Callable[..., Any], *xs: Any, names: Mapping[str, Any]) -> Any:
    """Compare two tensors or numbers."""
    return call.mask(function(call.ops, *call.compared(*xs)))


def masked(call: OperatorCall[Any], function: Callable[..., Any], *xs: Any, names: Mapping[str, Any]) -> Any:
    """Apply to masks."""
    return call.mask(function(call.ops, *call.masks(*xs)))


def tested(call: OperatorCall[Any], function: Callable[..., Any], x: Any, names: Mapping[str, Any]) -> Any:
    """Test floats; other numbers are finite."""
    ref, finite = call.tensor(x), names["finite"]
    is_float = ref.dtype.kind == "f"
    return call.mask(function(call.ops, ref) if is_float else call.ops.full(shape=ref.shape, value=finite, dtype=BOOL))


def reduced(
    call: OperatorCall[Any], function: Callable[..., Any], x: Any, *given: Any, names: Mapping[str, Any]
) -> Any:
    """Reduce over axes, in the type of the result."""
    ref, (axes, keep) = call.tensor(x, call.dtype()), call.reduction(x, given)
    if (empty := names.get("empty")) is not None and any(type(x.shape[a]) is int and x.shape[a] == 0 for a in axes):
        shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes)
        return call.give(call.ops.full(shape=shape, value=_limit(empty, call.dtype()), dtype=ref.dtype))
    return call.wrap(function(call.ops, ref, axis=axes, keepdims=keep))


def _limit(value: float, dtype: Any) -> Any:
    """Return ±inf in a dtype, its least or greatest number if it has none."""
    if dtype.kind not in "iu":
        return value if dtype.kind == "f" else value > 0
    return int(np.iinfo(dtype).max if value > 0 else np.iinfo(dtype).min)


# Meanings that are not one op -----------------------------------------------------------------------------------------


def divide(ops: Any, x: Any, y: Any) -> Any:
    """Divide; integers towards zero, as in C."""
    return ops.div(x, y) if x.dtype.kind == "f" else divide_toward_zero(ops, x, y)


def divide_toward_zero(ops: Any, x: Any, y: Any) -> Any:
    """Divide integers towards zero: one up if rounding down went below the quotient."""
    zero = ops.full(shape=x.shape, value=0, dtype=x.dtype)
    apart = ops.logical_xor(ops.less(x, zero), ops.less(y, zero))
    inexact = ops.logical_not(ops.equal(ops.mod(x, y), zero))
    return ops.add(ops.floor_divide(x, y), ops.cast(ops.logical_and(apart, inexact), dtype=x.dtype))


def _relu(ops: Any, x: Any) -> Any:
    return ops.relu(x) if x.dtype.kind == "f" else ops.maximum(x, ops.sub(x, x))


def _mod(ops: Any, x: Any, y: Any, *, fmod: int) -> Any:
    return ops.fmod(x, y) if fmod else ops.mod(x, y)


def _bits(op: str) -> Callable[..., Any]:
    return lambda ops, x, y: getattr(ops, f"{'logical' if x.dtype == BOOL else 'bitwise'}_{op}")(x, y)


def _not(ops: Any, x: Any) -> Any:
    return ops.logical_not(x) if x.dtype == BOOL else ops.bitwise_xor(x, -1)


def _ordered(op: str, *, turned: bool = False) -> Callable[..., Any]:
    """Return a comparison in which False is less than True."""

    def apply(ops: Any, x: Any, y: Any) -> Any:
        x, y = (ops.cast(each, dtype="int64") if each.dtype == BOOL else each for each in (x, y))
        return getattr(ops, op)(*((y, x) if turned else (x, y)))

    return apply


def _extremum(of_masks: str, of_numbers: str) -> Callable[..., Any]:
    return lambda ops, x, **over: getattr(ops, f"reduce_{of_masks if x.dtype == BOOL else of_numbers}")(x, **over)


def _floats(ops: Any, x: Any) -> Any:
    return x if x.dtype.kind == "f" else ops.cast(x, dtype=ops.dtype)


def _mean(ops: Any, x: Any, **over: Any) -> Any:
    if x.dtype.kind != "f":
        raise UnsupportedError("a mean of integers is not rounded in one way by all runtimes")
    return ops.reduce_mean(x, **over)


def _logsumexp(ops: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
    x = _floats(ops, x)
    return logsumexp(ops, x, axis=axis, keepdims=keepdims) if axis else x


def repeated_heads(ops: Any, x: Any, times: Any) -> Any:
    """Repeat each head of (…, heads, T, d) for the queries that share it."""
    if isinstance(times, int) and times == 1:
        return x
    *lead, heads, t, d = x.shape
    wide = ops.broadcast_to(ops.unsqueeze(x, axis=len(lead) + 1), shape=(*lead, heads, times, t, d))
    return ops.reshape(wide, shape=(*lead, heads * times, t, d))


def attention_scores(
    ops: Any, q: Any, k: Any, mask: Any, bias: Any, *, scale: Any, causal: bool = False, cap: float = 0.0
) -> tuple[Any, Any]:
    """Return scale·q·kᵀ, capped at cap·tanh(·/cap), without and with the bias and the masks; where those mask, -inf."""
    swapped = (*range(len(k.shape) - 2), len(k.shape) - 1, len(k.shape) - 2)
    raw = ops.bmm(ops.scale(q, c=rsqrt(q.shape[-1]) if scale is None else scale), ops.permute(k, axes=swapped))
    raw = ops.scale(ops.tanh(ops.scale(raw, c=1 / cap)), c=cap) if cap else raw
    scores = raw if bias is None else ops.add(raw, stretched(ops, bias, raw.shape))
    if causal:
        rows, columns = (ops.iota(shape=scores.shape, axis=axis) for axis in (-2, -1))
        scores = ops.select(ops.less_equal(columns, rows), scores, -math.inf)
    if mask is not None:
        scores = ops.select(stretched(ops, mask, scores.shape), scores, -math.inf)
    return raw, scores


def attention_weights(ops: Any, scores: Any) -> Any:
    """Return the softmax, with zeros for a query whose positions are all masked."""
    peak = ops.reduce_max(scores, axis=-1, keepdims=True)
    dead = ops.broadcast_to(ops.equal(peak, -math.inf), shape=scores.shape)
    return ops.select(dead, 0.0, ops.softmax(ops.select(dead, 0.0, scores), axis=-1))


def likelihood(ops: Any, logs: Any, labels: Any, weight: Any, ignored: Any) -> tuple[Any, Any]:
    """Return -w·log p of the label on axis 1, or 0 of a vector, and its class weight w; zeros for ignored labels."""
    shape = logs.shape
    axis = min(1, len(shape) - 1)
    own = ops.equal(stretched(ops, ops.unsqueeze(labels, axis=axis), shape), ops.iota(shape=shape, axis=axis))
    parts = [ops.select(own, ops.neg(logs), 0.0), ops.cast(own, dtype=ops.dtype)]
    if weight is not None:
        wide = ops.reshape(weight, shape=tuple(d if a == axis else 1 for a, d in enumerate(shape)))
        parts = [ops.mul(part, stretched(ops, wide, shape)) for part in parts]
    terms, weights = (ops.reduce_sum(part, axis=axis) for part in parts)
    if ignored is None:
        return terms, weights
    kept = ops.logical_not(ops.equal(labels, ignored))
    return ops.select(kept, terms, 0.0), ops.select(kept, weights, 0.0)


# The table ------------------------------------------------------------------------------------------------------------


class Operator(NamedTuple):
    """One operator.

    op        the op of Ops; "" if the meaning is `function` alone
    onnx      its name in ONNX; "" if there is none of this meaning
    aten      its names in ATen, without `.default`
    static    for each static parameter, ONNX's attribute and its default; PyTorch's arguments follow in this order
    exports   whether the op is exported as this operator
    note      what ONNX leaves undefined and Opstage defines
    """

    kind: Callable[..., Any]
    op: str
    onnx: str = ""
    aten: str = ""
    function: Callable[..., Any] | None = None
    static: Mapping[str, Any] = {}
    exports: bool = True
    note: str = ""

    def rule(self, call: OperatorCall[Any], *args: Any) -> Any:
        """Return the results of a call of the operator."""
        function = self.function or (lambda ops, *refs, **static: getattr(ops, self.op)(*refs, **static))
        return self.kind(call, function, *args, names=self.static)


def _overloads(*names: str) -> str:
    return " ".join(f"{name}.{kind}" for name in names for kind in ("Tensor", "Scalar", "Tensor_Scalar"))


_P, _T, _C, _M, _R = pointwise, together, compared, masked, reduced
_AXIS = {"axis": ""}
_ALPHA = {"alpha": ("alpha", 1.0)}
_THRESHOLD = {"threshold": ("alpha", 1.0), "value": ("", 0.0)}
_LEAST, _MOST = {"empty": -math.inf}, {"empty": math.inf}

_SAME = "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp floor log round sigmoid sin sinh sqrt tan tanh"
_ATEN = "exp2 expm1 log10 log1p log2 rsqrt square trunc relu6 silu selu hardsigmoid log_sigmoid"

OPERATORS: tuple[Operator, ...] = (
    *[Operator(_P, op, op.capitalize(), op) for op in _SAME.split()],
    *[Operator(_P, op, "", op) for op in _ATEN.split()],
    Operator(_P, "inv", "Reciprocal", "reciprocal"),
    Operator(_P, "neg", "Neg", "neg _neg_view"),
    Operator(_P, "sign", "Sign", "sign", note=NAN),
    Operator(_P, "softplus", "Softplus"),
    Operator(_P, "softsign", "Softsign", exports=False),
    Operator(_P, "relu", "Relu", "relu", _relu, note=NAN),
    Operator(_P, "mish", "Mish", "mish", exports=False),
    Operator(_P, "hardswish", "HardSwish", "hardswish", exports=False),
    Operator(_P, "elu", "Elu", static=_ALPHA, exports=False),
    Operator(_P, "celu", "Celu", "celu", static=_ALPHA, exports=False),
    Operator(_P, "leaky_relu", "LeakyRelu", "leaky_relu", static={"negative_slope": ("alpha", 0.01)}, exports=False),
    Operator(_P, "gelu", "Gelu", "gelu", static={"approximate": ("approximate", "none")}, exports=False),
    Operator(_P, "threshold", "ThresholdedRelu", "threshold", static=_THRESHOLD, exports=False),
    Operator(_P, "hardtanh", "", "hardtanh", static={"lo": "", "hi": ""}),
    Operator(_P, "hardshrink", "", "hardshrink", static={"width": ""}),
    Operator(_P, "softshrink", "", "softshrink", static={"width": ""}),
    Operator(_P, "", "BitwiseNot", "bitwise_not", _not),
    Operator(direct, "det", "Det", "det linalg_det", exports=False),
    Operator(direct, "", "InstanceNormalization", "", instance_norm, {"eps": ("epsilon", 1e-5)}),
    Operator(direct, "group_norm", "", "group_norm", static={"groups": "", "eps": ""}),
    Operator(direct, "unsqueeze", "", "unsqueeze unsqueeze_copy", static=_AXIS),
    Operator(direct, "slice", "", "narrow", static={"axis": "", "start": "", "length": ""}),
    Operator(direct, "", "", "inverse linalg_inv", inverse),  # a singular matrix gives nan, where PyTorch raises
    Operator(direct, "", "", "glu", glu, _AXIS),
    Operator(direct, "", "", "movedim.int", moveaxis, {"source": "", "target": ""}),
    Operator(direct, "", "", "tril", tril, {"k": ""}),
    Operator(direct, "", "", "triu", triu, {"k": ""}),
    Operator(direct, "", "", "diagonal diagonal_copy", diagonal, {"k": "", "first": "", "second": ""}),
    Operator(direct, "", "", "pixel_shuffle", pixel_shuffle, {"factor": ""}),
    Operator(direct, "", "", "pixel_unshuffle", pixel_unshuffle, {"factor": ""}),
    Operator(_T, "add", "Add"),
    Operator(_T, "add", "Sum", exports=False),
    Operator(_T, "sub", "Sub"),
    Operator(_T, "mul", "Mul"),
    Operator(_T, "div", "Div", "div.Tensor div.Scalar true_divide.Tensor", divide),
    Operator(_T, "mod", "Mod", "", _mod, {"fmod": ("fmod", 0)}, exports=False),
    Operator(_T, "mod", "", "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor"),
    Operator(_T, "fmod", "", "fmod.Tensor fmod.Scalar"),
    Operator(_T, "floor_divide", "", "floor_divide floor_divide.Scalar"),
    Operator(_T, "power", "Pow"),
    Operator(_T, "atan2", "", "atan2"),
    Operator(_T, "maximum", "Max", "maximum", note=NAN),
    Operator(_T, "minimum", "Min", "minimum", note=NAN),
    *[
        Operator(_T, f"bitwise_{op}", f"Bitwise{op.capitalize()}", _overloads(f"bitwise_{op}", f"__{op}__"), _bits(op))
        for op in ("and", "or", "xor")
    ],
    Operator(_T, "left_shift", "", _overloads("bitwise_left_shift", "__lshift__")),
    Operator(_T, "right_shift", "", _overloads("bitwise_right_shift", "__rshift__")),
    Operator(_C, "equal", "Equal", "eq.Tensor eq.Scalar"),
    Operator(_C, "", "", "ne.Tensor ne.Scalar", lambda ops, x, y: ops.logical_not(ops.equal(x, y))),
    Operator(_C, "less", "Less", "lt.Tensor lt.Scalar", _ordered("less")),
    Operator(_C, "less_equal", "LessOrEqual", "le.Tensor le.Scalar", _ordered("less_equal")),
    Operator(_C, "", "Greater", "gt.Tensor gt.Scalar", _ordered("less", turned=True)),
    Operator(_C, "", "GreaterOrEqual", "ge.Tensor ge.Scalar", _ordered("less_equal", turned=True)),
    Operator(_M, "logical_and", "And", "logical_and"),
    Operator(_M, "logical_or", "Or", "logical_or"),
    Operator(_M, "logical_xor", "Xor", "logical_xor"),
    Operator(_M, "logical_not", "Not", "logical_not"),
    Operator(tested, "isnan", "IsNaN", "isnan", static={"finite": False}, exports=False),
    Operator(tested, "isinf", "", "isinf", static={"finite": False}),
    Operator(tested, "isfinite", "", "isfinite", static={"finite": True}),
    Operator(_R, "reduce_sum", "ReduceSum", "sum sum.dim_IntList"),
    Operator(_R, "reduce_mean", "ReduceMean", "mean mean.dim", _mean),
    Operator(_R, "reduce_prod", "ReduceProd", "prod prod.dim_int"),
    Operator(_R, "reduce_max", "ReduceMax", "amax max", _extremum("any", "max"), _LEAST, note=NAN),
    Operator(_R, "reduce_min", "ReduceMin", "amin min", _extremum("all", "min"), _MOST, note=NAN),
    Operator(_R, "", "ReduceLogSumExp", "logsumexp", _logsumexp, _LEAST),
    Operator(_R, "", "ReduceSumSquare", "", lambda ops, x, **over: ops.reduce_sum(ops.mul(x, x), **over)),
    Operator(_R, "", "ReduceL1", "", lambda ops, x, **over: ops.reduce_sum(ops.abs(x), **over)),
    Operator(_R, "", "ReduceL2", "", lambda ops, x, **o: ops.sqrt(_floats(ops, ops.reduce_sum(ops.mul(x, x), **o)))),
    Operator(_R, "", "ReduceLogSum", "", lambda ops, x, **over: ops.log(_floats(ops, ops.reduce_sum(x, **over)))),
)


def exported(*kinds: Callable[..., Any]) -> list[Operator]:
    """Return the rows of these kinds whose op is exported as one operator."""
    return [each for each in OPERATORS if each.kind in kinds and each.op and each.onnx and each.exports]
