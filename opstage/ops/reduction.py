# mypy: disable-error-code=empty-body
"""Reductions along axes, softmax and log-softmax.

`axes` is a sorted tuple of distinct nonnegative axes; a reduction over no axes is the identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .dims import Dim, prod, ratio, require_at_most
from .method import Calls
from .primitive import Context, Ints, Kind, Linearity, Primitive, R, Row, Some, Types
from .rule_helpers import alike, anything, full_like
from .static_arguments import Axes, Axis
from .types import BOOL, INT64, DType, Shape, TensorType, is_float, require_float, require_number, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


def flops_per_element(count: int) -> Callable[..., Dim]:
    """Count `count` operations for each element of the first operand."""

    def flops(inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, **static: Any) -> Dim:
        return count * inputs[0].size

    return flops


def reduced_shape(shape: Shape, axes: Ints, keepdims: bool) -> Shape:
    """Return the shape of a reduction over axes."""
    if keepdims:
        return tuple(1 if axis in axes else d for axis, d in enumerate(shape))
    return tuple(d for axis, d in enumerate(shape) if axis not in axes)


def reduced(
    require: Callable[..., None] = require_number, *, what: str = "", to: DType | None = None
) -> Callable[..., Types]:
    """Make the shape rule of a reduction along `axes` or one `axis`, in x's dtype or another; `what` has no value over
    an empty axis."""

    def shape(x: TensorType, *, keepdims: bool, axes: Ints = (), axis: int | None = None) -> Types:
        along = axes if axis is None else (axis,)
        require(x, "x")
        if what:
            _require_elements(x, along, what)
        return (TensorType(reduced_shape(x.shape, along, keepdims), to or x.dtype),)

    return shape


def _require_elements(x: TensorType, axes: Ints, what: str) -> None:
    """Require nonempty axes: over an empty axis only a sum has a value."""
    require_at_most(
        1,
        prod(x.shape[axis] for axis in axes),
        lambda: (
            f"x is {show_shape(x.shape)}, so the {what} over {_axes_text(axes)} needs at least one element; "
            "leave such a tensor out"
        ),
    )


def _axes_text(axes: Ints) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {axes}"


def _spread(ops: Ops[R], reduced: R, shape: Shape, axes: Ints, keepdims: bool) -> R:
    """Broadcast a reduction's result along `axes`, back to the operand's shape."""
    if not keepdims:
        reduced = ops.reshape(reduced, shape=reduced_shape(shape, axes, True))
    return ops.broadcast_to(reduced, shape=shape)


# Sums ---------------------------------------------------------------------------------------------------------------


def _reduce_sum_shape(x: TensorType, *, axes: Ints, keepdims: bool) -> Types:
    require_number(x, "x")
    return (TensorType(reduced_shape(x.shape, axes, keepdims), INT64 if x.dtype.kind == "i" else x.dtype),)


def _reduce_sum_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axes: Ints, keepdims: bool) -> Some[R]:
    return (_spread(ops, cotangents[0], ctx.inputs[0].shape, axes, keepdims),)


REDUCE_SUM = Primitive(
    kind=Kind.REDUCTION, shape=_reduce_sum_shape, vjp=_reduce_sum_vjp, jvp=Linearity.JOINT, flops=flops_per_element(1)
)


def _sum_shape(x: TensorType) -> Types:
    return _reduce_sum_shape(x, axes=tuple(range(len(x.shape))), keepdims=False)


def _sum_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    return (ops.reduce_sum(x),)


SUM = Primitive(kind=Kind.REDUCTION, shape=_sum_shape, decomposition=_sum_decomposition, flops=flops_per_element(1))


def _reduce_mean_decomposition(ops: Ops[R], x: R, /, *, axes: Ints, keepdims: bool) -> Row[R]:
    count = prod(x.shape[axis] for axis in axes)
    return (ops.scale(ops.reduce_sum(x, axis=axes, keepdims=keepdims), c=ratio(1, count)),)


def _reduce_mean_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axes: Ints, keepdims: bool) -> Some[R]:
    shape = ctx.inputs[0].shape
    share = ops.scale(cotangents[0], c=ratio(1, prod(shape[axis] for axis in axes)))
    return (_spread(ops, share, shape, axes, keepdims),)


REDUCE_MEAN = Primitive(
    kind=Kind.REDUCTION,
    shape=reduced(require_float, what="mean"),
    vjp=_reduce_mean_vjp,
    jvp=Linearity.JOINT,
    decomposition=_reduce_mean_decomposition,
    expandable=True,
    flops=flops_per_element(1),
)

# Maxima -------------------------------------------------------------------------------------------------------------


def _maxima(ops: Ops[R], x: R, out: R, axes: Ints, keepdims: bool) -> tuple[R, R]:
    """Return 1 at maxima, else 0, and their number for each element of the result; none where that is nan."""
    winners = ops.cast(ops.equal(x, _spread(ops, out, x.shape, axes, keepdims)), dtype=x.dtype)
    return winners, ops.reduce_sum(winners, axis=axes, keepdims=keepdims)


def _reduce_max_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axes: Ints, keepdims: bool) -> Some[R]:
    (g,), (x, out) = cotangents, ctx.saved
    winners, count = _maxima(ops, x, out, axes, keepdims)
    share = _spread(ops, ops.div(g, count), x.shape, axes, keepdims)
    return (ops.mul(winners, share),)


def _reduce_max_jvp(
    ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /, *, axes: Ints, keepdims: bool
) -> Some[R]:
    (x,), (out,), (t,) = primals, outputs, tangents
    winners, count = _maxima(ops, x, out, axes, keepdims)
    total = ops.reduce_sum(ops.mul(winners, t), axis=axes, keepdims=keepdims)
    return (ops.div(total, count),)


REDUCE_MAX = Primitive(
    kind=Kind.REDUCTION,
    shape=reduced(what="maximum"),
    vjp=_reduce_max_vjp,
    jvp=_reduce_max_jvp,
    saves=("x", "out"),
    flops=flops_per_element(1),
)


ARGMAX = Primitive(
    kind=Kind.REDUCTION, shape=reduced(what="argmax", to=INT64), differentiable=False, flops=flops_per_element(1)
)

# Minima and masks, composed of maxima and sums ------------------------------------------------------------------------


def _reversed_order(ops: Ops[R], x: R) -> R:
    """Return -x, which reverses the order; for integers -1 - x, since the smallest one has no negative."""
    if is_float(x.dtype):
        return ops.neg(x)
    return ops.sub(full_like(ops, x, -1), x)


def _reduce_min_decomposition(ops: Ops[R], x: R, /, *, axes: Ints, keepdims: bool) -> Row[R]:
    return (_reversed_order(ops, ops.reduce_max(_reversed_order(ops, x), axis=axes, keepdims=keepdims)),)


REDUCE_MIN = Primitive(
    kind=Kind.REDUCTION,
    shape=reduced(what="minimum"),
    decomposition=_reduce_min_decomposition,
    flops=flops_per_element(1),
)


def _argmin_decomposition(ops: Ops[R], x: R, /, *, axis: int, keepdims: bool) -> Row[R]:
    return (ops.argmax(_reversed_order(ops, x), axis=axis, keepdims=keepdims),)


ARGMIN = Primitive(
    kind=Kind.REDUCTION,
    shape=reduced(what="argmin", to=INT64),
    decomposition=_argmin_decomposition,
    differentiable=False,
    flops=flops_per_element(1),
)


def _how_many(ops: Ops[R], x: R, axes: Ints, keepdims: bool, *, zeros: bool) -> R:
    """Return the number of elements over axes that are zero (or False), or of those that are not, in int64; nan is
    nonzero."""
    zero = ops.logical_not(x) if x.dtype == BOOL else ops.equal(x, full_like(ops, x, 0))
    counted = zero if zeros else ops.logical_not(zero)
    return ops.reduce_sum(ops.cast(counted, dtype=INT64), axis=axes, keepdims=keepdims)


def _reduce_any_decomposition(ops: Ops[R], x: R, /, *, axes: Ints, keepdims: bool) -> Row[R]:
    count = _how_many(ops, x, axes, keepdims, zeros=False)
    return (ops.less(ops.full(shape=count.shape, value=0, dtype=INT64), count),)


def _reduce_all_decomposition(ops: Ops[R], x: R, /, *, axes: Ints, keepdims: bool) -> Row[R]:
    count = _how_many(ops, x, axes, keepdims, zeros=True)
    return (ops.equal(count, ops.full(shape=count.shape, value=0, dtype=INT64)),)


REDUCE_ANY = Primitive(
    kind=Kind.REDUCTION,
    shape=reduced(anything, to=BOOL),
    decomposition=_reduce_any_decomposition,
    differentiable=False,
    flops=flops_per_element(1),
)

REDUCE_ALL = Primitive(
    kind=Kind.REDUCTION,
    shape=reduced(anything, to=BOOL),
    decomposition=_reduce_all_decomposition,
    differentiable=False,
    flops=flops_per_element(1),
)

# Softmax ------------------------------------------------------------------------------------------------------------


_softmax_shape = alike(require_float, "x")
_softmax_grad_shape = alike(require_float, "y", "g")


def _broadcast_sum(ops: Ops[R], x: R, axis: int) -> R:
    """Return Σ x along an axis, broadcast along it."""
    return ops.broadcast_to(ops.reduce_sum(x, axis=axis, keepdims=True), shape=x.shape)


def _shifted(ops: Ops[R], x: R, axis: int) -> R:
    """Return x - max x, whose exponential cannot overflow; results do not depend on the shift, so it has no
    gradient."""
    if isinstance(x.shape[axis], int) and not x.shape[axis]:
        return x  # an empty axis has no maximum, and nothing to shift
    shift = ops.detach(ops.reduce_max(x, axis=axis, keepdims=True))
    return ops.sub(x, ops.broadcast_to(shift, shape=x.shape))


def _softmax_decomposition(ops: Ops[R], x: R, /, *, axis: int) -> Row[R]:
    e = ops.exp(_shifted(ops, x, axis))
    return (ops.div(e, _broadcast_sum(ops, e, axis)),)


def _softmax_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axis: int) -> Some[R]:
    (g,), (y,) = cotangents, ctx.saved
    return (ops.softmax_grad(y, g, axis=axis),)


def _softmax_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /, *, axis: int) -> Some[R]:
    return (ops.softmax_grad(outputs[0], tangents[0], axis=axis),)  # the Jacobian is symmetric


SOFTMAX = Primitive(
    shape=_softmax_shape,
    vjp=_softmax_vjp,
    jvp=_softmax_jvp,
    saves=("out",),
    decomposition=_softmax_decomposition,
    expandable=True,
    flops=flops_per_element(5),
)


def _softmax_grad_decomposition(ops: Ops[R], y: R, g: R, /, *, axis: int) -> Row[R]:
    return (ops.mul(y, ops.sub(g, _broadcast_sum(ops, ops.mul(y, g), axis))),)


SOFTMAX_GRAD = Primitive(
    shape=_softmax_grad_shape, decomposition=_softmax_grad_decomposition, flops=flops_per_element(4)
)


def _log_softmax_decomposition(ops: Ops[R], x: R, /, *, axis: int) -> Row[R]:
    z = _shifted(ops, x, axis)
    log_sum = ops.log(ops.reduce_sum(ops.exp(z), axis=axis, keepdims=True))
    return (ops.sub(z, ops.broadcast_to(log_sum, shape=x.shape)),)


def _log_softmax_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axis: int) -> Some[R]:
    (g,), (y,) = cotangents, ctx.saved
    return (ops.log_softmax_grad(y, g, axis=axis),)


def _log_softmax_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /, *, axis: int) -> Some[R]:
    (y,), (t,) = outputs, tangents
    return (ops.sub(t, _broadcast_sum(ops, ops.mul(ops.exp(y), t), axis)),)


LOG_SOFTMAX = Primitive(
    shape=_softmax_shape,
    vjp=_log_softmax_vjp,
    jvp=_log_softmax_jvp,
    saves=("out",),
    decomposition=_log_softmax_decomposition,
    expandable=True,
    flops=flops_per_element(5),
)


def _log_softmax_grad_decomposition(ops: Ops[R], y: R, g: R, /, *, axis: int) -> Row[R]:
    return (ops.sub(g, ops.mul(ops.exp(y), _broadcast_sum(ops, g, axis))),)


LOG_SOFTMAX_GRAD = Primitive(
    shape=_softmax_grad_shape, decomposition=_log_softmax_grad_decomposition, flops=flops_per_element(4)
)


# The methods of Ops ------------------------------------------------------------------------------------------


class ReductionOps(Calls[R]):
    __slots__ = ()

    @SUM.method
    def sum(self, x: R, /) -> R:
        """Return the sum of all elements, a scalar. PyTorch: torch.sum.

        Raises:
            DtypeError: x a mask.
        """

    @REDUCE_SUM.method
    def reduce_sum(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Return the sum over axes, or all for None; 0 over an empty axis. Integers are summed in int64. PyTorch:
        torch.sum.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument.
        """

    @REDUCE_MEAN.method
    def reduce_mean(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Return the mean over axes, with at least one element. PyTorch: torch.mean.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """

    @REDUCE_MAX.method
    def reduce_max(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Return the maximum over axes; ties share the gradient evenly. PyTorch: torch.amax.

        Over at least one element; nan if any element is nan, and the gradient of these elements is nan.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """

    @ARGMAX.method
    def argmax(self, x: R, /, *, axis: Axis = -1, keepdims: bool = False) -> R:
        """Return the index of the first maximum along an axis, int64; no gradient. PyTorch: torch.argmax.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """

    @REDUCE_MIN.method
    def reduce_min(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Return the minimum over axes; ties share the gradient evenly. PyTorch: torch.amin.

        Over at least one element; nan if any element is nan, and the gradient of these elements is nan.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """

    @ARGMIN.method
    def argmin(self, x: R, /, *, axis: Axis = -1, keepdims: bool = False) -> R:
        """Return the index of the first minimum along an axis, int64; no gradient. PyTorch: torch.argmin.

        Raises:
            DtypeError: x a mask.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """

    @REDUCE_ANY.method
    def reduce_any(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Return whether any element over axes is True or nonzero; False over an empty axis.

        A mask; no gradient; nan is nonzero. PyTorch: torch.any.

        Raises:
            ShapeError: no such axis; an invalid argument.
        """

    @REDUCE_ALL.method
    def reduce_all(self, x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
        """Return whether all elements over axes are True or nonzero; True over an empty axis.

        A mask; no gradient; nan is nonzero. PyTorch: torch.all.

        Raises:
            ShapeError: no such axis; an invalid argument.
        """

    @SOFTMAX.method
    def softmax(self, x: R, /, *, axis: Axis = -1) -> R:
        """Return e^x / Σ e^x along an axis of at least one element, without overflow. PyTorch: torch.softmax.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: no such axis.
        """

    @LOG_SOFTMAX.method
    def log_softmax(self, x: R, /, *, axis: Axis = -1) -> R:
        """Return x - log Σ e^x along an axis of at least one element, without overflow. PyTorch: torch.log_softmax.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: no such axis.
        """

    @SOFTMAX_GRAD.method
    def softmax_grad(self, y: R, g: R, /, *, axis: Axis) -> R:
        """Return y · (g - Σ g·y), for y = softmax(x).

        Raises:
            DtypeError: y not a float tensor; dtypes differ.
            ShapeError: shapes differ; no such axis.
        """

    @LOG_SOFTMAX_GRAD.method
    def log_softmax_grad(self, y: R, g: R, /, *, axis: Axis) -> R:
        """Return g - e^y · Σ g, for y = log_softmax(x).

        Raises:
            DtypeError: y not a float tensor; dtypes differ.
            ShapeError: shapes differ; no such axis.
        """
