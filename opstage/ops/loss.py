# mypy: disable-error-code=empty-body
"""Losses: the distance of predictions from targets, as one number or one per position."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .dims import Dim, prod, ratio, require_at_most, require_equal
from .errors import ShapeError, nearest
from .method import Calls
from .primitive import Context, Effect, Primitive, R, Row, Some, Types
from .rule_helpers import add_all, full_like, same_type, zeros_like
from .static_arguments import as_number
from .types import Shape, TensorType, require_float, require_integer, require_same_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


REDUCTIONS = ("mean", "sum", "none")

IGNORED = -100
"""The label of a row that does not count, by default of `ops.cross_entropy`."""

# Mean squared error ---------------------------------------------------------------------------------------------------


def _mse_loss_shape(x: TensorType, y: TensorType) -> Types:
    require_float(x, "x")
    same_type(x, y, purpose="a prediction and its target have one shape")
    require_at_most(1, x.size, lambda: f"x is {show_shape(x.shape)}, which must have elements to take a mean of")
    return (TensorType((), x.dtype),)


def _mse_loss_decomposition(ops: Ops[R], x: R, y: R, /) -> Row[R]:
    d = ops.sub(x, y)
    return (ops.scale(ops.sum(ops.mul(d, d)), c=ratio(1, prod(x.shape))),)


def _mse_loss_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (x, y) = cotangents, ctx.saved
    slope = ops.broadcast_to(ops.scale(g, c=ratio(2, prod(x.shape))), shape=x.shape)
    dx = ops.mul(slope, ops.sub(x, y))
    return dx if ctx.needs[0] else None, ops.neg(dx) if ctx.needs[1] else None


def _mse_loss_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> tuple[R | None]:
    (x, y), (tx, ty) = primals, tangents
    d = ops.scale(ops.sub(x, y), c=ratio(2, prod(x.shape)))
    along_x = ops.sum(ops.mul(d, tx)) if tx is not None else None
    along_y = ops.neg(ops.sum(ops.mul(d, ty))) if ty is not None else None
    return (add_all(ops, along_x, along_y),)


def _mse_loss_flops(inputs: Types, outputs: Types, /) -> Dim:
    """Count a difference, a square and an addition for each element."""
    return 3 * inputs[0].size


MSE_LOSS = Primitive(
    shape=_mse_loss_shape,
    vjp=_mse_loss_vjp,
    jvp=_mse_loss_jvp,
    saves=("x", "y"),
    decomposition=_mse_loss_decomposition,
    expandable=True,
    flops=_mse_loss_flops,
)

# Cross-entropy --------------------------------------------------------------------------------------------------------


def class_axis(rank: int) -> int:
    """Return the axis of the classes: 1, or the only axis of a vector."""
    return 1 if rank > 1 else 0


def _without_classes(shape: Shape) -> Shape:
    axis = class_axis(len(shape))
    return (*shape[:axis], *shape[axis + 1 :])


def _keeping_classes(shape: Shape) -> Shape:
    """Return the shape with size 1 for the classes."""
    axis = class_axis(len(shape))
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _require_labels(
    logits: TensorType, labels: TensorType, reduction: str, ignore_index: Any, label_smoothing: Any
) -> None:
    """Check logits, labels and static parameters of cross_entropy and its derivative."""
    if reduction not in REDUCTIONS:
        raise ShapeError(f"reduction must be one of {REDUCTIONS} but is {reduction!r}{nearest(reduction, REDUCTIONS)}")
    if not isinstance(ignore_index, int) or isinstance(ignore_index, bool) or not -(2**31) <= ignore_index < 2**31:
        raise ShapeError(f"ignore_index must be an int of 32 bits but is {ignore_index!r}")
    if not isinstance(label_smoothing, (int, float, Fraction)) or not 0 <= label_smoothing <= 1:
        raise ShapeError(f"label_smoothing must be a number from 0 to 1 but is {label_smoothing!r}")
    require_float(logits, "logits")
    require_integer(labels, "labels")
    if not logits.shape:
        raise ShapeError("logits must be (C,), (N, C) or (N, C, …) but are a scalar, without an axis of classes")
    axis = class_axis(len(logits.shape))
    expected = _without_classes(logits.shape)

    def message() -> str:
        return (
            f"labels are {show_shape(labels.shape)} but logits {show_shape(logits.shape)}, with classes on axis "
            f"{axis}, take one integer per position: labels of shape {show_shape(expected)}"
        )

    if len(labels.shape) != len(expected):
        raise ShapeError(message())
    for a, b in zip(labels.shape, expected):
        require_equal(a, b, message)
    require_at_most(
        1, logits.shape[axis], lambda: f"logits are {show_shape(logits.shape)}: there must be at least one class"
    )
    if reduction == "mean":
        require_at_most(
            1,
            labels.size,
            lambda: f"labels are {show_shape(labels.shape)}: there must be at least one position to take a mean over",
        )


def _cross_entropy_shape(
    logits: TensorType, labels: TensorType, *, reduction: str, ignore_index: Any, label_smoothing: Any
) -> Types:
    _require_labels(logits, labels, reduction, ignore_index, label_smoothing)
    loss = TensorType(labels.shape if reduction == "none" else (), logits.dtype)
    number = TensorType(_keeping_classes(logits.shape), logits.dtype)
    return loss, number, number


def _ignored(ops: Ops[R], labels: R, ignore_index: int) -> R:
    """Return the mask of ignored positions."""
    return ops.equal(labels, full_like(ops, labels, ignore_index))


def _counted(ops: Ops[R], ignored: R, like: R) -> R:
    """Return the number of counted positions, in the dtype of `like`."""
    return ops.sum(ops.cast(ops.logical_not(ignored), dtype=like.dtype))


def is_label(ops: Ops[R], logits: R, labels: R) -> R:
    """Return the mask, in the shape of logits, of each position's label.

    Indices are 32-bit, which doubles the vector width; larger labels are out of range.
    """
    axis = class_axis(len(logits.shape))
    narrow = ops.cast(labels, dtype="int32")
    spread = ops.broadcast_to(ops.unsqueeze(narrow, axis=axis), shape=logits.shape)
    return ops.equal(spread, ops.iota(shape=logits.shape, axis=axis, dtype="int32"))


def _class_weight(ops: Ops[R], logits: R, labels: R, ignored: R) -> R:
    """Return 1 for each position, gathered from equal class weights, so that labels out of range are detected."""
    weights = ops.full(shape=(logits.shape[class_axis(len(logits.shape))],), value=1.0, dtype=logits.dtype)
    first = full_like(ops, labels, 0)
    return ops.gather_vec(weights, ops.select(ignored, first, labels))


def _cross_entropy_decomposition(
    ops: Ops[R], logits: R, labels: R, /, *, reduction: str, ignore_index: int, label_smoothing: Any
) -> Row[R]:
    axis = class_axis(len(logits.shape))
    # The maximum cancels in every result, so it is not differentiated.
    peak = ops.detach(ops.reduce_max(logits, axis=axis, keepdims=True))
    shifted = ops.sub(logits, ops.broadcast_to(peak, shape=logits.shape))
    total = ops.reduce_sum(ops.exp(shifted), axis=axis, keepdims=True)
    log_total = ops.log(total)
    own = ops.select(is_label(ops, logits, labels), shifted, zeros_like(ops, shifted))
    loss = ops.sub(log_total, ops.reduce_sum(own, axis=axis, keepdims=True))
    if label_smoothing != 0:
        uniform = ops.sub(log_total, ops.reduce_mean(shifted, axis=axis, keepdims=True))
        loss = ops.add(ops.scale(loss, c=1 - label_smoothing), ops.scale(uniform, c=label_smoothing))
    loss = ops.reshape(loss, shape=labels.shape)
    ignored = _ignored(ops, labels, ignore_index)
    weight = _class_weight(ops, logits, labels, ignored)
    loss = ops.select(ignored, zeros_like(ops, loss), ops.mul(loss, weight))
    if reduction != "none":
        loss = ops.sum(loss)
    if reduction == "mean":
        loss = ops.div(loss, _counted(ops, ignored, loss))
    return loss, peak, total


def _cross_entropy_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, **static: Any) -> Some[R]:
    logits, labels, peak, total = ctx.saved
    return ops.cross_entropy_grad(logits, labels, peak, total, cotangents[0], **static), None


def _cross_entropy_jvp(
    ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /, *, reduction: str, **static: Any
) -> tuple[R | None]:
    (logits, labels), (loss, peak, total), (moved, _) = primals, outputs, tangents
    assert moved is not None
    slope = ops.cross_entropy_grad(
        logits, labels, peak, total, full_like(ops, loss, 1.0), reduction=reduction, **static
    )
    change = ops.mul(slope, moved)
    return (ops.reduce_sum(change, axis=class_axis(len(logits.shape))) if reduction == "none" else ops.sum(change),)


def _four_per_logit(inputs: Types, outputs: Types, /, **static: Any) -> Dim:
    """Count forward a maximum, a difference, an exponential and an addition, and as many backward."""
    return 4 * inputs[0].size


# Residuals are a position's maximal logit, peak, and total = Σ exp(logit - peak): the single number peak + log total
# would round off the differences of large logits.
CROSS_ENTROPY = Primitive(
    "cross_entropy",
    operands=("logits", "labels"),
    effects={Effect.RAISES},
    residuals=("peak", "total"),
    shape=_cross_entropy_shape,
    vjp=_cross_entropy_vjp,
    jvp=_cross_entropy_jvp,
    saves=dict.fromkeys(("logits", "labels", "peak", "total"), ("logits",)),
    decomposition=_cross_entropy_decomposition,
    expandable=True,
    flops=_four_per_logit,
)


def _cross_entropy_grad_shape(
    logits: TensorType,
    labels: TensorType,
    peak: TensorType,
    total: TensorType,
    g: TensorType,
    *,
    reduction: str,
    ignore_index: Any,
    label_smoothing: Any,
) -> Types:
    _require_labels(logits, labels, reduction, ignore_index, label_smoothing)
    _require_type(peak, "peak", _keeping_classes(logits.shape), logits)
    _require_type(total, "total", _keeping_classes(logits.shape), logits)
    _require_type(g, "g", labels.shape if reduction == "none" else (), logits)
    return (logits,)


def _require_type(x: TensorType, name: str, expected: Shape, logits: TensorType) -> None:
    require_same_dtype(logits, x, "logits", name)

    def message() -> str:
        return f"{name} is {show_shape(x.shape)} but must be {show_shape(expected)}"

    if len(x.shape) != len(expected):
        raise ShapeError(message())
    for a, b in zip(x.shape, expected):
        require_equal(a, b, message)


def _cross_entropy_grad_decomposition(
    ops: Ops[R],
    logits: R,
    labels: R,
    peak: R,
    total: R,
    g: R,
    /,
    *,
    reduction: str,
    ignore_index: int,
    label_smoothing: Any,
) -> Row[R]:
    shape = logits.shape
    axis = class_axis(len(shape))
    exponentials = ops.exp(ops.sub(logits, ops.broadcast_to(peak, shape=shape)))
    p = ops.div(exponentials, ops.broadcast_to(total, shape=shape))
    others = label_smoothing * ratio(1, shape[axis])
    target = ops.select(
        is_label(ops, logits, labels),
        ops.full(shape=shape, value=1 - label_smoothing + others, dtype=logits.dtype),
        ops.full(shape=shape, value=others, dtype=logits.dtype),
    )
    ignored = _ignored(ops, labels, ignore_index)
    if reduction == "mean":
        g = ops.div(g, _counted(ops, ignored, g))
    if reduction != "none":
        g = ops.broadcast_to(g, shape=labels.shape)
    g = ops.mul(g, _class_weight(ops, logits, labels, ignored))
    weight = ops.unsqueeze(ops.select(ignored, zeros_like(ops, g), g), axis=axis)
    return (ops.mul(ops.broadcast_to(weight, shape=shape), ops.sub(p, target)),)


CROSS_ENTROPY_GRAD = Primitive(
    effects={Effect.RAISES},
    shape=_cross_entropy_grad_shape,
    decomposition=_cross_entropy_grad_decomposition,
    flops=_four_per_logit,
)


# The methods of Ops ------------------------------------------------------------------------------------------


class LossOps(Calls[R]):
    __slots__ = ()

    @MSE_LOSS.method
    def mse_loss(self, x: R, y: R, /) -> R:
        """Return the mean squared difference over all elements, x and y of one shape. PyTorch:
        torch.nn.functional.mse_loss.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ; an axis is empty.
        """

    def cross_entropy(
        self,
        logits: R,
        labels: R,
        /,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        weight: R | None = None,
    ) -> R:
        """Return -log softmax(logits)[label], classes on axis 1 (last up to rank 2).

        PyTorch: torch.nn.functional.cross_entropy. logits (C), (N, C) or (N, C, *D), labels the same without C,
        integers in [0, C) or ignore_index. With p = softmax(logits) over the classes and ε the smoothing (Szegedy et
        al. 2016), a position's loss is -(1 - ε)·log p[label] - ε·mean(log p), and 0 where it is ignored; "mean" divides
        their sum by the number of positions not ignored (0/0 = nan when all are). With `weight`, one number per class,
        see `derived.weighted_cross_entropy`.

        Raises:
            DtypeError: logits not a float tensor; labels not an integer tensor.
            RangeError: an index out of range, when it runs.
            ShapeError: labels do not fit the logits; the logits a scalar; an invalid argument; an axis is empty.
        """
        if weight is not None:
            ops: Any = self
            more: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
            weighted: R = weighted_cross_entropy(ops, logits, labels, weight, reduction=reduction, **more)
            return weighted
        smoothing = as_number("cross_entropy", "label_smoothing", label_smoothing)
        static = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": smoothing}
        return self._call(CROSS_ENTROPY, (logits, labels), static)

    @CROSS_ENTROPY_GRAD.method
    def cross_entropy_grad(
        self,
        logits: R,
        labels: R,
        peak: R,
        total: R,
        g: R,
        /,
        *,
        reduction: str,
        ignore_index: int,
        label_smoothing: float,
    ) -> R:
        """Return the cotangent of cross_entropy's logits, from each position's maximal logit and sum of exponentials.

        w·(exp(logits - peak)/total - (1 - ε)·onehot(labels) - ε/C), where w is g at a position (over the number of
        positions not ignored with "mean") and 0 where it is ignored; peak and total have size 1 along the classes.

        Raises:
            DtypeError: logits not a float tensor; labels not an integer tensor; dtypes differ.
            RangeError: an index out of range, when it runs.
            ShapeError: labels do not fit the logits; the logits a scalar; an invalid argument; an axis is empty; peak,
                total, g of another shape.
        """


# Functions: losses composed of other ops; formulas and names are PyTorch's --------------------------------------------


def weighted_cross_entropy(
    ops: Ops[R],
    logits: R,
    labels: R,
    weight: R,
    /,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float | Fraction = 0.0,
) -> R:
    """Return cross_entropy in which class c has weight `weight[c]`, weight (C).

    With p = softmax(logits) and ε the smoothing, a position's loss is -(1 - ε)·weight[label]·log p[label] - ε/C·Σ
    weight[c]·log p[c], and 0 where it is ignored; "mean" divides their sum by the sum of weight[label] over the
    positions not ignored. PyTorch: torch.nn.functional.cross_entropy(weight=). Raises what cross_entropy raises, and
    ShapeError for a weight that is not one number per class.

    Raises:
        DtypeError: logits not a float tensor; labels not an integer tensor; dtypes differ.
        RangeError: an index out of range, when it runs.
        ShapeError: labels do not fit the logits; the logits a scalar; an invalid argument; an axis is empty;
            operands that do not fit each other.
    """
    op = "weighted_cross_entropy"
    require_reduction(ops, op, reduction, REDUCTIONS)
    loss = ops.cross_entropy(logits, labels, reduction="none", ignore_index=ignore_index)
    axis = class_axis(len(logits.shape))
    classes = logits.shape[axis]

    def message() -> str:
        return (
            f"weight is {show_shape(weight.shape)} but logits are {show_shape(logits.shape)}, with classes on axis "
            f"{axis}: it must be one number per class, ({classes},)"
        )

    if len(weight.shape) != 1:
        raise _error(ops, op, message())
    try:
        require_equal(weight.shape[0], classes, message)
    except ShapeError as error:
        raise _error(ops, op, error.reason) from None
    if not isinstance(label_smoothing, (int, float, Fraction)) or not 0 <= label_smoothing <= 1:
        raise _error(ops, op, f"label_smoothing must be a number from 0 to 1 but is {label_smoothing!r}")
    ignored = ops.equal(labels, full_like(ops, labels, ignore_index))
    first = full_like(ops, labels, 0)
    nothing = ops.full(shape=labels.shape, value=0.0, dtype=logits.dtype)
    own = ops.select(ignored, nothing, ops.gather_vec(weight, ops.select(ignored, first, labels)))
    loss = ops.mul(loss, own)
    if label_smoothing != 0:
        each = weight
        for _ in logits.shape[axis + 1 :]:
            each = ops.unsqueeze(each, axis=-1)
        weighted = ops.mul(ops.log_softmax(logits, axis=axis), ops.broadcast_to(each, shape=logits.shape))
        uniform = ops.select(ignored, nothing, ops.neg(ops.reduce_sum(weighted, axis=axis)))
        loss = ops.add(
            ops.scale(loss, c=1 - label_smoothing), ops.scale(uniform, c=label_smoothing * ratio(1, classes))
        )
    if reduction == "none":
        return loss
    total = ops.sum(loss)
    return ops.div(total, ops.sum(own)) if reduction == "mean" else total


def binary_cross_entropy_with_logits(
    ops: Ops[R],
    logits: R,
    targets: R,
    /,
    *,
    weight: R | None = None,
    pos_weight: R | None = None,
    reduction: str = "mean",
) -> R:
    """Return -(pos_weight·y·log σ(x) + (1 - y)·log(1 - σ(x)))·weight, without overflow; x = logits, y = targets of one
    shape.

    Targets are probabilities in the dtype of the logits; `weight` and `pos_weight` are broadcast to their shape. "mean"
    divides the sum by the number of elements, whatever the weights. PyTorch:
    torch.nn.functional.binary_cross_entropy_with_logits.

    Raises:
        DtypeError: x not a float tensor; x a mask; dtypes differ.
        ShapeError: shapes differ; an invalid argument.
    """
    require_reduction(ops, "binary_cross_entropy_with_logits", reduction, REDUCTIONS)
    one = full_like(ops, logits, 1.0)
    at_one, at_zero = ops.softplus(ops.neg(logits)), ops.softplus(logits)
    positive = ops.mul(targets, at_one)
    if pos_weight is not None:
        positive = ops.mul(positive, ops.broadcast_to(pos_weight, shape=logits.shape))
    loss = ops.add(positive, ops.mul(ops.sub(one, targets), at_zero))
    if weight is not None:
        loss = ops.mul(loss, ops.broadcast_to(weight, shape=logits.shape))
    return reduced(ops, loss, reduction)


def huber(ops: Ops[R], x: R, y: R, /, *, delta: float | Fraction = 1.0, reduction: str = "mean") -> R:
    """Return ½·d² where |d| <= δ, else δ·(|d| - ½·δ), with d = x - y of one shape and δ = delta > 0.

    PyTorch: torch.nn.functional.huber_loss. Source: Huber 1964. Raises ShapeError for another delta.

    Raises:
        DtypeError: x not a float tensor; x a mask; dtypes differ.
        ShapeError: shapes differ; an invalid argument.
    """
    require_reduction(ops, "huber", reduction, REDUCTIONS)
    if not isinstance(delta, (int, float, Fraction)) or isinstance(delta, bool) or not delta > 0:
        raise _error(ops, "huber", f"delta must be a number above 0 but is {delta!r}")
    d = ops.sub(x, y)
    # c·(d - ½c) for c = d cut off at ±δ. The derivative of a part that is cut off is no product, which would be 0·inf.
    cut = ops.clamp(d, lo=-delta, hi=delta)
    return reduced(ops, ops.mul(cut, ops.sub(d, ops.scale(cut, c=Fraction(1, 2)))), reduction)


def kl_div(ops: Ops[R], x: R, y: R, /, *, log_target: bool = False, reduction: str = "mean") -> R:
    """Return y·(log y - x) for log-probabilities x and probabilities y of one shape, 0·log 0 = 0; e^y·(y - x) with
    log_target.

    "mean" divides by the number of elements, "batchmean" by the size of axis 0, which is the divergence per sample. At
    y = 0 the gradient of y omits that of y·log y, which is infinite. PyTorch: torch.nn.functional.kl_div.

    Raises:
        DtypeError: x not a float tensor; dtypes differ.
        ShapeError: shapes differ; an invalid argument.
    """
    require_reduction(ops, "kl_div", reduction, (*REDUCTIONS, "batchmean"))
    if log_target:
        loss = ops.mul(ops.exp(y), ops.sub(y, x))
    else:
        zero = zeros_like(ops, y)
        absent = ops.equal(y, zero)
        one = full_like(ops, y, 1.0)
        entropy = ops.select(absent, zero, ops.mul(y, ops.log(ops.select(absent, one, y))))
        loss = ops.sub(entropy, ops.mul(y, x))
    if reduction != "batchmean":
        return reduced(ops, loss, reduction)
    if not loss.shape:
        raise _error(ops, "kl_div", 'reduction "batchmean" takes tensors with a batch axis but x is a scalar')
    return ops.scale(ops.sum(loss), c=ratio(1, loss.shape[0]))


def cosine_similarity(ops: Ops[R], x: R, y: R, /, *, axis: int = 1, eps: float = 1e-8) -> R:
    """Return Σ x·y / (max(‖x‖, eps)·max(‖y‖, eps)) along an axis, which is dropped; x and y of one shape.

    The derivative is that of this formula: a norm below eps counts as constant, and a zero vector has a finite
    derivative. PyTorch: torch.nn.functional.cosine_similarity.

    Raises:
        DtypeError: x a mask; a number that the dtype does not hold.
        ShapeError: shapes differ; no such axis; an invalid argument.
    """
    if not isinstance(eps, (int, float, Fraction)) or isinstance(eps, bool) or not eps >= 0:
        raise _error(ops, "cosine_similarity", f"eps must be a number that is at least 0 but is {eps!r}")
    return ops.reduce_sum(ops.mul(_unit(ops, x, axis, eps), _unit(ops, y, axis, eps)), axis=axis)


def _unit(ops: Ops[R], x: R, axis: int, eps: float) -> R:
    """Return x / max(‖x‖, eps). The root is only taken where it is used, since it has no derivative at 0."""
    square = ops.reduce_sum(ops.mul(x, x), axis=axis, keepdims=True)
    one = ops.full(shape=square.shape, value=1.0, dtype=x.dtype)
    least = ops.full(shape=square.shape, value=eps, dtype=x.dtype)
    zero = ops.equal(square, ops.full(shape=square.shape, value=0.0, dtype=x.dtype))
    root = ops.sqrt(ops.select(zero, one, square))
    small = _either(ops, zero, ops.less(root, least))
    return ops.div(x, ops.broadcast_to(ops.select(small, least, root), shape=x.shape))


def _either(ops: Ops[R], a: R, b: R) -> R:
    return ops.logical_not(ops.logical_and(ops.logical_not(a), ops.logical_not(b)))


def reduced(ops: Ops[R], loss: R, reduction: str) -> R:
    """Return the losses unreduced for "none", else their mean or sum."""
    if reduction == "none":
        return loss
    return ops.reduce_mean(loss) if reduction == "mean" else ops.sum(loss)


def require_reduction(ops: Ops[R], op: str, reduction: str, allowed: tuple[str, ...]) -> None:
    """Raise ShapeError, for the function `op`, if the reduction is not allowed."""
    if reduction not in allowed:
        raise _error(ops, op, f"reduction must be one of {allowed} but is {reduction!r}{nearest(reduction, allowed)}")


def _error(ops: Ops[R], op: str, reason: str) -> ShapeError:
    return ShapeError(reason, op=op, region=ops.cursor.region.name)
