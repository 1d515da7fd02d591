# mypy: disable-error-code=empty-body
"""Ops along an ordered axis: cumulative sums and products, linear recurrences, argsort."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..arguments import Axes, Axis, normalize_axis
from ..calls import Calls
from ..dims import Dim, prod, ratio
from ..primitive import Context, Ints, Linearity, Primitive, R, Row, Some, Types
from ..rules import add_all, same_type
from ..types import INT64, TensorType, is_float, require_number
from .reduction import flops_per_element, reduced_shape

if TYPE_CHECKING:
    from ..protocol import Ops


def _cumsum_shape(x: TensorType, *, axis: int, exclusive: bool, reverse: bool) -> Types:
    require_number(x, "x")
    return (TensorType(x.shape, INT64 if x.dtype.kind == "i" else x.dtype),)


def _cumsum_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axis: int, exclusive: bool, reverse: bool
) -> Some[R]:
    """An element is in the sums of all later ones, so the transpose sums from the other end."""
    return (ops.cumsum(cotangents[0], axis=axis, exclusive=exclusive, reverse=not reverse),)


CUMSUM = Primitive(shape=_cumsum_shape, vjp=_cumsum_vjp, jvp=Linearity.JOINT, flops=flops_per_element(1))


def _argsort_shape(x: TensorType, *, axis: int, descending: bool) -> Types:
    return (TensorType(x.shape, INT64),)


def _argsort_flops(inputs: Types, outputs: Types, /, *, axis: int, **_: bool) -> Dim:
    """Count a comparison per element and merge pass; one pass for symbolic sizes, which have no closed formula."""
    length = inputs[0].shape[axis]
    return outputs[0].size * (max(1, length.bit_length()) if isinstance(length, int) else 1)


ARGSORT = Primitive(shape=_argsort_shape, differentiable=False, flops=_argsort_flops)

# Recurrences --------------------------------------------------------------------------------------------------------


def _linear_recurrence_shape(a: TensorType, b: TensorType, *, axis: int, reverse: bool) -> Types:
    require_number(a, "a")
    return (same_type(a, b, "a", "b"),)


def _shifted(ops: Ops[R], x: R, axis: int, *, onward: bool, first: int = 0) -> R:
    """Replace each element by the previous one, or with onward=False by the next one, and by `first` at the end."""
    sides = [(0, 0)] * len(x.shape)
    sides[axis] = (1, 0) if onward else (0, 1)
    return ops.slice(ops.pad(x, padding=sides, value=first), axis=axis, start=0 if onward else 1, length=x.shape[axis])


def _linear_recurrence_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axis: int, reverse: bool) -> Some[R]:
    """The cotangent of b is s[k] = g[k] + a[k + 1]·s[k + 1], a recurrence from the other end; that of a is s[k]·out[k -
    1]."""
    (g,), (a, out) = cotangents, ctx.saved
    s = ops.linear_recurrence(_shifted(ops, a, axis, onward=reverse), g, axis=axis, reverse=not reverse)
    return ops.mul(s, _shifted(ops, out, axis, onward=not reverse)) if ctx.needs[0] else None, s


def _linear_recurrence_jvp(
    ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /, *, axis: int, reverse: bool
) -> tuple[R | None]:
    (a, _), (out,), (t_a, t_b) = primals, outputs, tangents
    moved = ops.mul(t_a, _shifted(ops, out, axis, onward=not reverse)) if t_a is not None else None
    total = add_all(ops, moved, t_b)
    return (None if total is None else ops.linear_recurrence(a, total, axis=axis, reverse=reverse),)


LINEAR_RECURRENCE = Primitive(
    "linear_recurrence",
    operands=("a", "b"),
    shape=_linear_recurrence_shape,
    vjp=_linear_recurrence_vjp,
    jvp=_linear_recurrence_jvp,
    saves={"a": ("a", "b"), "out": ("a",)},
    flops=flops_per_element(2),
)


def _cumprod_decomposition(ops: Ops[R], x: R, /, *, axis: int, exclusive: bool, reverse: bool) -> Row[R]:
    """A recurrence with a given first element, so that its derivative does not divide and is correct at zeros."""
    if not is_float(x.dtype):
        x = ops.cast(x, dtype=INT64)
    if exclusive:
        x = _shifted(ops, x, axis, onward=not reverse, first=1)
    places = ops.iota(shape=x.shape, axis=axis)
    start = x.shape[axis] - 1 if reverse else 0
    first = ops.equal(
        places, ops.full(shape=x.shape, value=start if isinstance(start, int) else ratio(start, 1), dtype=INT64)
    )
    # -0.0 + y is y, also for y = -0.0
    zero = ops.full(shape=x.shape, value=-0.0 if is_float(x.dtype) else 0, dtype=x.dtype)
    a, b = ops.select(first, zero, x), ops.select(first, x, zero)
    return (ops.linear_recurrence(a, b, axis=axis, reverse=reverse),)


CUMPROD = Primitive(shape=_cumsum_shape, decomposition=_cumprod_decomposition, flops=flops_per_element(1))


def _reduce_prod_shape(x: TensorType, *, axes: Ints, keepdims: bool) -> Types:
    require_number(x, "x")
    shape = reduced_shape(x.shape, axes, keepdims)
    return (TensorType(shape, INT64 if x.dtype.kind == "i" else x.dtype),)


def _reduce_prod_decomposition(ops: Ops[R], x: R, /, *, axes: Ints, keepdims: bool) -> Row[R]:
    """The last cumulative product of all elements after a 1."""
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    leading, length = [x.shape[axis] for axis in kept], prod(x.shape[axis] for axis in axes)
    rows = ops.reshape(ops.permute(x, axes=(*kept, *axes)), shape=(*leading, length))
    last = len(leading)
    products = ops.cumprod(ops.pad(rows, padding=[*[(0, 0)] * last, (1, 0)], value=1), axis=last)
    out = ops.slice(products, axis=last, start=length, length=1)
    return (ops.reshape(out, shape=reduced_shape(x.shape, axes, keepdims)),)


REDUCE_PROD = Primitive(shape=_reduce_prod_shape, decomposition=_reduce_prod_decomposition, flops=flops_per_element(1))


# The methods of Ops ------------------------------------------------------------------------------------------


class SequenceOps(Calls[R]):
    __slots__ = ()

    @CUMSUM.method
    def cumsum(self, x: R, /, *, axis: Axis = -1, exclusive: bool = False, reverse: bool = False) -> R:
        """Cumulative sums along an axis; integers are summed in int64. PyTorch: torch.cumsum.

        out[k] = Σ x[i] over i <= k; with exclusive=True over i < k, so that the first is 0; with reverse=True over
        i >= k. ONNX: CumSum.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """

    @ARGSORT.method
    def argsort(self, x: R, /, *, axis: Axis = -1, descending: bool = False) -> R:
        """Indices that sort x along an axis, int64; equal elements keep their order. PyTorch: torch.argsort.

        No gradient. nan counts as larger than any number: last, or first with descending=True.

        Raises:
            ShapeError: no such axis; an invalid argument.
        """

    def linear_recurrence(self, a: R, b: R, /, *, axis: int = -1, reverse: bool = False) -> R:
        """out[k] = a[k]·out[k - 1] + b[k] along an axis, starting from 0; with reverse=True from the end.

        a and b have one shape. With a = 1 it is a cumulative sum, with b = 0 after the first a cumulative product.
        Elements are computed in sequence, so rounding does not depend on later elements.

        Raises:
            DtypeError: a a mask; dtypes differ.
            ShapeError: shapes differ; no such axis; an invalid argument.
        """
        axis = normalize_axis("linear_recurrence", axis, len(b.shape))
        return self._call(LINEAR_RECURRENCE, (a, b), {"axis": axis, "reverse": reverse})

    @CUMPROD.method
    def cumprod(self, x: R, /, *, axis: Axis = -1, exclusive: bool = False, reverse: bool = False) -> R:
        """Cumulative products along an axis; integers are multiplied in int64. PyTorch: torch.cumprod.

        With exclusive=True of the elements before each one, so that the first is 1; with reverse=True from each one
        on. Its derivative does not divide, so it is correct where elements are 0.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """

    @REDUCE_PROD.method
    def reduce_prod(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Product over axes, or all for None; 1 over an empty axis. PyTorch: torch.prod.

        Integers are multiplied in int64. Its derivative does not divide, so it is correct where elements are 0.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """
