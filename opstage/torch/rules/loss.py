"""Losses that are part of the program itself."""

from __future__ import annotations

from typing import Any

from ...ops.dims import prod, ratio
from ...ops.errors import UnsupportedError
from ..call import AtenCall, rule

_REDUCTIONS = ("none", "mean", "sum")


def _reduced(call: AtenCall[Any], terms: Any, reduction: int) -> Any:
    ops = call.ops
    if reduction == 0:
        return call.give(terms)
    total = ops.sum(terms)
    return call.give(total if reduction == 2 else ops.scale(total, c=ratio(1, prod(terms.shape))))


@rule("mse_loss.default", "l1_loss.default")
def _distance(call: AtenCall[Any], x: Any, y: Any, reduction: int) -> Any:
    ops = call.ops
    away = ops.sub(*call.together(x, y))
    return _reduced(call, ops.square(away) if "mse" in call.name else ops.abs(away), reduction)


@rule("cross_entropy_loss.default")
def _cross_entropy(
    call: AtenCall[Any], logits: Any, labels: Any, weight: Any, reduction: int, ignored: int, smoothing: float
) -> Any:
    ops = call.ops
    if labels.dtype.kind == "f":
        raise UnsupportedError("labels that are probabilities are not known; those that are numbers of classes are")
    target = ops.cast(labels.ref, dtype="int64")
    static: Any = {"reduction": _REDUCTIONS[reduction], "ignore_index": ignored, "label_smoothing": smoothing}
    if weight is not None:
        static["weight"] = weight.ref
    return call.give(ops.cross_entropy(logits.ref, target, **static))


@rule("nll_loss_forward.default", "nll_loss2d_forward.default")
def _nll(call: AtenCall[Any], logs: Any, labels: Any, weight: Any, reduction: int, ignored: int) -> Any:
    """Compute the loss of log-probabilities, which softmax leaves unchanged since their exponentials sum to 1."""
    ops = call.ops
    axis = 0 if len(logs.shape) == 1 else 1
    idx = ops.cast(labels.ref, dtype="int64")
    classes = logs.shape[axis]
    shape = logs.shape
    own = ops.equal(call.stretched(ops.unsqueeze(idx, axis=axis), shape), ops.iota(shape=shape, axis=axis))
    picked = ops.select(own, ops.neg(logs.ref), 0.0)
    counts = ops.cast(own, dtype=ops.dtype)
    if weight is not None:
        scales = ops.reshape(weight.ref, shape=tuple(classes if a == axis else 1 for a in range(len(shape))))
        scales = call.stretched(scales, shape)
        picked, counts = ops.mul(picked, scales), ops.mul(counts, scales)
    kept = ops.logical_not(ops.equal(idx, ignored))
    terms, each = (ops.select(kept, ops.reduce_sum(part, axis=axis), 0.0) for part in (picked, counts))
    total = ops.sum(each)
    if reduction == 0:
        return [call.give(terms, 0), call.give(total, 1)]
    result = ops.sum(terms) if reduction == 2 else ops.div(ops.sum(terms), total)
    return [call.give(result, 0), call.give(total, 1)]
