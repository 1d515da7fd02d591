"""Losses composed of other ops: functions with `ops` as their first argument; formulas and names are PyTorch's."""

from __future__ import annotations

from fractions import Fraction

from .catalogue.loss import REDUCTIONS, class_axis
from .dims import ratio, require_equal
from .errors import ShapeError, nearest
from .protocol import Ops, R
from .types import show_shape


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
    """cross_entropy in which class c has weight `weight[c]`, weight (C).

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
    ignored = ops.equal(labels, ops.full(shape=labels.shape, value=ignore_index, dtype=labels.dtype))
    first = ops.full(shape=labels.shape, value=0, dtype=labels.dtype)
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
    """-(pos_weight·y·log σ(x) + (1 - y)·log(1 - σ(x)))·weight, without overflow; x = logits, y = targets of one shape.

    Targets are probabilities in the dtype of the logits; `weight` and `pos_weight` are broadcast to their shape. "mean"
    divides the sum by the number of elements, whatever the weights. PyTorch:
    torch.nn.functional.binary_cross_entropy_with_logits.

    Raises:
        DtypeError: x not a float tensor; x a mask; dtypes differ.
        ShapeError: shapes differ; an invalid argument.
    """
    require_reduction(ops, "binary_cross_entropy_with_logits", reduction, REDUCTIONS)
    one = ops.full(shape=logits.shape, value=1.0, dtype=logits.dtype)
    at_one, at_zero = ops.softplus(ops.neg(logits)), ops.softplus(logits)
    positive = ops.mul(targets, at_one)
    if pos_weight is not None:
        positive = ops.mul(positive, ops.broadcast_to(pos_weight, shape=logits.shape))
    loss = ops.add(positive, ops.mul(ops.sub(one, targets), at_zero))
    if weight is not None:
        loss = ops.mul(loss, ops.broadcast_to(weight, shape=logits.shape))
    return reduced(ops, loss, reduction)


def huber(ops: Ops[R], x: R, y: R, /, *, delta: float | Fraction = 1.0, reduction: str = "mean") -> R:
    """½·d² where |d| <= δ, else δ·(|d| - ½·δ), with d = x - y of one shape and δ = delta > 0.

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
    """y·(log y - x) for log-probabilities x and probabilities y of one shape, 0·log 0 = 0; e^y·(y - x) with log_target.

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
        zero = ops.full(shape=y.shape, value=0.0, dtype=y.dtype)
        absent = ops.equal(y, zero)
        one = ops.full(shape=y.shape, value=1.0, dtype=y.dtype)
        entropy = ops.select(absent, zero, ops.mul(y, ops.log(ops.select(absent, one, y))))
        loss = ops.sub(entropy, ops.mul(y, x))
    if reduction != "batchmean":
        return reduced(ops, loss, reduction)
    if not loss.shape:
        raise _error(ops, "kl_div", 'reduction "batchmean" takes tensors with a batch axis but x is a scalar')
    return ops.scale(ops.sum(loss), c=ratio(1, loss.shape[0]))


def cosine_similarity(ops: Ops[R], x: R, y: R, /, *, axis: int = 1, eps: float = 1e-8) -> R:
    """Σ x·y / (max(‖x‖, eps)·max(‖y‖, eps)) along an axis, which is dropped; x and y of one shape.

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
