"""Reductions along axes, softmax and log-softmax.

`axes` is a sorted tuple of distinct nonnegative axes; a reduction over no axes is the identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..dims import Dim, prod, ratio, require_at_most
from ..kinds import Kind
from ..primitive import Context, Linearity, Primitive, R
from ..rules import same_type
from ..types import BOOL, INT64, Shape, TensorType, is_float, require_float, require_number, show_shape

if TYPE_CHECKING:
    from ..protocol import Ops


def flops_per_element(count: int) -> Callable[..., Dim]:
    """Count `count` operations for each element of the first operand."""

    def flops(inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, **static: Any) -> Dim:
        return count * inputs[0].size

    return flops


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Return the shape of a reduction over axes."""
    if keepdims:
        return tuple(1 if axis in axes else d for axis, d in enumerate(shape))
    return tuple(d for axis, d in enumerate(shape) if axis not in axes)


def _require_elements(x: TensorType, axes: tuple[int, ...], what: str) -> None:
    """Require nonempty axes: over an empty axis only a sum has a value."""
    require_at_most(
        1,
        prod(x.shape[axis] for axis in axes),
        lambda: (
            f"x is {show_shape(x.shape)}, so the {what} over {_axes_text(axes)} is one of no elements, which has no "
            "value; leave such a tensor out"
        ),
    )


def _axes_text(axes: tuple[int, ...]) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {axes}"


def _spread(ops: Ops[R], reduced: R, shape: Shape, axes: tuple[int, ...], keepdims: bool) -> R:
    """Broadcast a reduction's result along `axes`, back to the operand's shape."""
    if not keepdims:
        reduced = ops.reshape(reduced, shape=reduced_shape(shape, axes, True))
    return ops.broadcast_to(reduced, shape=shape)


# Sums ---------------------------------------------------------------------------------------------------------------


def _reduce_sum_shape(x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> tuple[TensorType, ...]:
    require_number(x, "x")
    return (TensorType(reduced_shape(x.shape, axes, keepdims), INT64 if x.dtype.kind == "i" else x.dtype),)


def _reduce_sum_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, axes: tuple[int, ...], keepdims: bool
) -> tuple[R | None, ...]:
    return (_spread(ops, cotangents[0], ctx.inputs[0].shape, axes, keepdims),)


REDUCE_SUM = Primitive(
    "reduce_sum",
    operands=("x",),
    kind=Kind.REDUCTION,
    shape=_reduce_sum_shape,
    vjp=_reduce_sum_vjp,
    jvp=Linearity.JOINT,
    flops=flops_per_element(1),
)


def _sum_shape(x: TensorType) -> tuple[TensorType, ...]:
    return _reduce_sum_shape(x, axes=tuple(range(len(x.shape))), keepdims=False)


def _sum_decomposition(ops: Ops[R], x: R, /) -> tuple[R, ...]:
    return (ops.reduce_sum(x),)


SUM = Primitive(
    "sum",
    operands=("x",),
    kind=Kind.REDUCTION,
    shape=_sum_shape,
    decomposition=_sum_decomposition,
    flops=flops_per_element(1),
)


def _reduce_mean_shape(x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> tuple[TensorType, ...]:
    require_float(x, "x")
    _require_elements(x, axes, "mean")
    return (TensorType(reduced_shape(x.shape, axes, keepdims), x.dtype),)


def _reduce_mean_decomposition(ops: Ops[R], x: R, /, *, axes: tuple[int, ...], keepdims: bool) -> tuple[R, ...]:
    count = prod(x.shape[axis] for axis in axes)
    return (ops.scale(ops.reduce_sum(x, axis=axes, keepdims=keepdims), c=ratio(1, count)),)


def _reduce_mean_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, axes: tuple[int, ...], keepdims: bool
) -> tuple[R | None, ...]:
    shape = ctx.inputs[0].shape
    share = ops.scale(cotangents[0], c=ratio(1, prod(shape[axis] for axis in axes)))
    return (_spread(ops, share, shape, axes, keepdims),)


REDUCE_MEAN = Primitive(
    "reduce_mean",
    operands=("x",),
    kind=Kind.REDUCTION,
    shape=_reduce_mean_shape,
    vjp=_reduce_mean_vjp,
    jvp=Linearity.JOINT,
    decomposition=_reduce_mean_decomposition,
    expandable=True,
    flops=flops_per_element(1),
)

# Maxima -------------------------------------------------------------------------------------------------------------


def _reduce_max_shape(x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> tuple[TensorType, ...]:
    require_number(x, "x")
    _require_elements(x, axes, "maximum")
    return (TensorType(reduced_shape(x.shape, axes, keepdims), x.dtype),)


def _maxima(ops: Ops[R], x: R, out: R, axes: tuple[int, ...], keepdims: bool) -> tuple[R, R]:
    """Return 1 at maxima, else 0, and their number for each element of the result; none where that is nan."""
    winners = ops.cast(ops.equal(x, _spread(ops, out, x.shape, axes, keepdims)), dtype=x.dtype)
    return winners, ops.reduce_sum(winners, axis=axes, keepdims=keepdims)


def _reduce_max_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, axes: tuple[int, ...], keepdims: bool
) -> tuple[R | None, ...]:
    (g,), (x, out) = cotangents, ctx.saved
    winners, count = _maxima(ops, x, out, axes, keepdims)
    share = _spread(ops, ops.div(g, count), x.shape, axes, keepdims)
    return (ops.mul(winners, share),)


def _reduce_max_jvp(
    ops: Ops[R],
    primals: tuple[R, ...],
    outputs: tuple[R, ...],
    tangents: tuple[R, ...],
    /,
    *,
    axes: tuple[int, ...],
    keepdims: bool,
) -> tuple[R | None]:
    (x,), (out,), (t,) = primals, outputs, tangents
    winners, count = _maxima(ops, x, out, axes, keepdims)
    total = ops.reduce_sum(ops.mul(winners, t), axis=axes, keepdims=keepdims)
    return (ops.div(total, count),)


REDUCE_MAX = Primitive(
    "reduce_max",
    operands=("x",),
    kind=Kind.REDUCTION,
    shape=_reduce_max_shape,
    vjp=_reduce_max_vjp,
    jvp=_reduce_max_jvp,
    saves=("x", "out"),
    flops=flops_per_element(1),
)


def _argmax_shape(x: TensorType, *, axis: int, keepdims: bool) -> tuple[TensorType, ...]:
    require_number(x, "x")
    _require_elements(x, (axis,), "argmax")
    return (TensorType(reduced_shape(x.shape, (axis,), keepdims), INT64),)


ARGMAX = Primitive(
    "argmax",
    operands=("x",),
    kind=Kind.REDUCTION,
    shape=_argmax_shape,
    differentiable=False,
    flops=flops_per_element(1),
)

# Minima and masks, composed of maxima and sums ------------------------------------------------------------------------


def _reversed_order(ops: Ops[R], x: R) -> R:
    """Return -x, which reverses the order; for integers -1 - x, since the smallest one has no negative."""
    if is_float(x.dtype):
        return ops.neg(x)
    return ops.sub(ops.full(shape=x.shape, value=-1, dtype=x.dtype), x)


def _reduce_min_shape(x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> tuple[TensorType, ...]:
    require_number(x, "x")
    _require_elements(x, axes, "minimum")
    return (TensorType(reduced_shape(x.shape, axes, keepdims), x.dtype),)


def _reduce_min_decomposition(ops: Ops[R], x: R, /, *, axes: tuple[int, ...], keepdims: bool) -> tuple[R, ...]:
    return (_reversed_order(ops, ops.reduce_max(_reversed_order(ops, x), axis=axes, keepdims=keepdims)),)


REDUCE_MIN = Primitive(
    "reduce_min",
    operands=("x",),
    kind=Kind.REDUCTION,
    shape=_reduce_min_shape,
    decomposition=_reduce_min_decomposition,
    flops=flops_per_element(1),
)


def _argmin_shape(x: TensorType, *, axis: int, keepdims: bool) -> tuple[TensorType, ...]:
    require_number(x, "x")
    _require_elements(x, (axis,), "argmin")
    return (TensorType(reduced_shape(x.shape, (axis,), keepdims), INT64),)


def _argmin_decomposition(ops: Ops[R], x: R, /, *, axis: int, keepdims: bool) -> tuple[R, ...]:
    return (ops.argmax(_reversed_order(ops, x), axis=axis, keepdims=keepdims),)


ARGMIN = Primitive(
    "argmin",
    operands=("x",),
    kind=Kind.REDUCTION,
    shape=_argmin_shape,
    decomposition=_argmin_decomposition,
    differentiable=False,
    flops=flops_per_element(1),
)


def _mask_shape(x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> tuple[TensorType, ...]:
    return (TensorType(reduced_shape(x.shape, axes, keepdims), BOOL),)


def _how_many(ops: Ops[R], x: R, axes: tuple[int, ...], keepdims: bool, *, zeros: bool) -> R:
    """Return the number of elements over axes that are zero (or False), or of those that are not, in int64; nan is
    nonzero."""
    zero = ops.logical_not(x) if x.dtype == BOOL else ops.equal(x, ops.full(shape=x.shape, value=0, dtype=x.dtype))
    counted = zero if zeros else ops.logical_not(zero)
    return ops.reduce_sum(ops.cast(counted, dtype=INT64), axis=axes, keepdims=keepdims)


def _reduce_any_decomposition(ops: Ops[R], x: R, /, *, axes: tuple[int, ...], keepdims: bool) -> tuple[R, ...]:
    count = _how_many(ops, x, axes, keepdims, zeros=False)
    return (ops.less(ops.full(shape=count.shape, value=0, dtype=INT64), count),)


def _reduce_all_decomposition(ops: Ops[R], x: R, /, *, axes: tuple[int, ...], keepdims: bool) -> tuple[R, ...]:
    count = _how_many(ops, x, axes, keepdims, zeros=True)
    return (ops.equal(count, ops.full(shape=count.shape, value=0, dtype=INT64)),)


REDUCE_ANY = Primitive(
    "reduce_any",
    operands=("x",),
    kind=Kind.REDUCTION,
    shape=_mask_shape,
    decomposition=_reduce_any_decomposition,
    differentiable=False,
    flops=flops_per_element(1),
)

REDUCE_ALL = Primitive(
    "reduce_all",
    operands=("x",),
    kind=Kind.REDUCTION,
    shape=_mask_shape,
    decomposition=_reduce_all_decomposition,
    differentiable=False,
    flops=flops_per_element(1),
)

# Softmax ------------------------------------------------------------------------------------------------------------


def _softmax_shape(x: TensorType, *, axis: int) -> tuple[TensorType, ...]:
    require_float(x, "x")
    return (x,)


def _softmax_grad_shape(y: TensorType, g: TensorType, *, axis: int) -> tuple[TensorType, ...]:
    _softmax_shape(y, axis=axis)
    return (same_type(y, g, "y", "g"),)


def _sum_along(ops: Ops[R], x: R, axis: int) -> R:
    """Return Σ x along an axis, broadcast along it."""
    return ops.broadcast_to(ops.reduce_sum(x, axis=axis, keepdims=True), shape=x.shape)


def _shifted(ops: Ops[R], x: R, axis: int) -> R:
    """Return x - max x, whose exponential cannot overflow; results do not depend on the shift, so it has no
    gradient."""
    if isinstance(x.shape[axis], int) and not x.shape[axis]:
        return x  # an empty axis has no maximum, and nothing to shift
    shift = ops.detach(ops.reduce_max(x, axis=axis, keepdims=True))
    return ops.sub(x, ops.broadcast_to(shift, shape=x.shape))


def _softmax_decomposition(ops: Ops[R], x: R, /, *, axis: int) -> tuple[R, ...]:
    e = ops.exp(_shifted(ops, x, axis))
    return (ops.div(e, _sum_along(ops, e, axis)),)


def _softmax_vjp(ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, axis: int) -> tuple[R | None, ...]:
    (g,), (y,) = cotangents, ctx.saved
    return (ops.softmax_grad(y, g, axis=axis),)


def _softmax_jvp(
    ops: Ops[R], primals: tuple[R, ...], outputs: tuple[R, ...], tangents: tuple[R, ...], /, *, axis: int
) -> tuple[R | None]:
    return (ops.softmax_grad(outputs[0], tangents[0], axis=axis),)  # the Jacobian is symmetric


SOFTMAX = Primitive(
    "softmax",
    operands=("x",),
    shape=_softmax_shape,
    vjp=_softmax_vjp,
    jvp=_softmax_jvp,
    saves=("out",),
    decomposition=_softmax_decomposition,
    expandable=True,
    flops=flops_per_element(5),
)


def _softmax_grad_decomposition(ops: Ops[R], y: R, g: R, /, *, axis: int) -> tuple[R, ...]:
    return (ops.mul(y, ops.sub(g, _sum_along(ops, ops.mul(y, g), axis))),)


SOFTMAX_GRAD = Primitive(
    "softmax_grad",
    operands=("y", "g"),
    shape=_softmax_grad_shape,
    decomposition=_softmax_grad_decomposition,
    flops=flops_per_element(4),
)


def _log_softmax_decomposition(ops: Ops[R], x: R, /, *, axis: int) -> tuple[R, ...]:
    z = _shifted(ops, x, axis)
    log_sum = ops.log(ops.reduce_sum(ops.exp(z), axis=axis, keepdims=True))
    return (ops.sub(z, ops.broadcast_to(log_sum, shape=x.shape)),)


def _log_softmax_vjp(ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, *, axis: int) -> tuple[R | None, ...]:
    (g,), (y,) = cotangents, ctx.saved
    return (ops.log_softmax_grad(y, g, axis=axis),)


def _log_softmax_jvp(
    ops: Ops[R], primals: tuple[R, ...], outputs: tuple[R, ...], tangents: tuple[R, ...], /, *, axis: int
) -> tuple[R | None]:
    (y,), (t,) = outputs, tangents
    return (ops.sub(t, _sum_along(ops, ops.mul(ops.exp(y), t), axis)),)


LOG_SOFTMAX = Primitive(
    "log_softmax",
    operands=("x",),
    shape=_softmax_shape,
    vjp=_log_softmax_vjp,
    jvp=_log_softmax_jvp,
    saves=("out",),
    decomposition=_log_softmax_decomposition,
    expandable=True,
    flops=flops_per_element(5),
)


def _log_softmax_grad_decomposition(ops: Ops[R], y: R, g: R, /, *, axis: int) -> tuple[R, ...]:
    return (ops.sub(g, ops.mul(ops.exp(y), _sum_along(ops, g, axis))),)


LOG_SOFTMAX_GRAD = Primitive(
    "log_softmax_grad",
    operands=("y", "g"),
    shape=_softmax_grad_shape,
    decomposition=_log_softmax_grad_decomposition,
    flops=flops_per_element(4),
)
