"""Kernels: losses and their fused derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.loss import CROSS_ENTROPY, CROSS_ENTROPY_GRAD, MSE_LOSS, class_axis
from ....ops.primitive import Primitive
from ...host import number
from ...indices import require_labels
from ..loops import loss as loops
from ..loops.jit import flat, integers, rows
from .reduction import reduce_mean, reduce_sum

Array = npt.NDArray[Any]


def mse_loss(x: Array, y: Array) -> Array:
    d = np.subtract(x, y)
    return np.asarray(np.mean(np.multiply(d, d)))


def _labels(op: str, logits: Array, labels: Array, ignore_index: int) -> tuple[int, Array, Array]:
    """The axis of the classes; where positions are ignored, and labels with 0 there, both of size 1 on that axis."""
    require_labels(op, logits.shape, labels, ignore_index=ignore_index)
    axis = class_axis(logits.ndim)
    ignored = np.asarray(labels == ignore_index)
    safe = np.where(ignored, 0, labels)
    return axis, np.expand_dims(ignored, axis), np.expand_dims(safe, axis)


def cross_entropy(
    logits: Array, labels: Array, reduction: str, ignore_index: int, label_smoothing: Any
) -> tuple[Array, Array, Array]:
    axis, ignored, safe = _labels("cross_entropy", logits, labels, ignore_index)
    peak = logits.max(axis=axis, keepdims=True)
    shifted = logits - peak
    own = np.take_along_axis(shifted, safe, axis)
    smoothing = number(label_smoothing, logits.dtype)
    mean = reduce_mean(shifted, (axis,), True) if smoothing else own
    total = reduce_sum(np.exp(shifted, out=shifted), (axis,), True)
    log_total = np.log(total)
    loss = log_total - own
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing * (log_total - mean)
    loss = np.where(ignored, 0, loss).reshape(labels.shape)
    if reduction != "none":
        loss = loss.sum()
    if reduction == "mean":
        loss = np.divide(loss, int(np.count_nonzero(~ignored)))
    return loss, peak, total


def cross_entropy_grad(
    logits: Array,
    labels: Array,
    peak: Array,
    total: Array,
    g: Array,
    reduction: str,
    ignore_index: int,
    label_smoothing: Any,
) -> Array:
    axis, ignored, safe = _labels("cross_entropy_grad", logits, labels, ignore_index)
    smoothing = number(label_smoothing, logits.dtype)
    out = np.subtract(logits, peak)
    np.exp(out, out=out)
    out /= total
    own = np.take_along_axis(out, safe, axis) - (1 - smoothing)
    np.put_along_axis(out, safe, own, axis)
    if smoothing:
        out -= smoothing / logits.shape[axis]
    if reduction == "none":
        g = np.expand_dims(g, axis)
    elif reduction == "mean":
        g = np.divide(g, int(np.count_nonzero(~ignored)))
    out *= np.where(ignored, 0, g)
    return out


KERNELS: dict[Primitive, Callable[..., Any]] = {
    MSE_LOSS: mse_loss,
    CROSS_ENTROPY: cross_entropy,
    CROSS_ENTROPY_GRAD: cross_entropy_grad,
}


def _as_rows(logits: Array, labels: Array) -> tuple[Array, Array] | None:
    """Logits as rows of classes, and their labels; None where the classes do not lie in memory one after another."""
    if logits.ndim > 2:
        return None
    return rows(logits), integers(labels)


def fast_cross_entropy(
    logits: Array, labels: Array, reduction: str, ignore_index: int, label_smoothing: Any
) -> tuple[Array, Array, Array]:
    found = _as_rows(logits, labels)
    if found is None:
        return cross_entropy(logits, labels, reduction, ignore_index, label_smoothing)
    x, own = found
    losses, peak, total = (np.empty(len(x), x.dtype) for _ in range(3))
    counted = loops.cross_entropy(x, own, ignore_index, float(label_smoothing), losses, peak, total)
    if counted < 0:
        _labels("cross_entropy", logits, labels, ignore_index)  # which says what is wrong
    kept = peak.reshape(*logits.shape[:-1], 1), total.reshape(*logits.shape[:-1], 1)
    if reduction == "none":
        return losses.reshape(labels.shape), *kept
    loss = losses.sum()
    return np.divide(loss, counted) if reduction == "mean" else loss, *kept


def fast_cross_entropy_grad(
    logits: Array,
    labels: Array,
    peak: Array,
    total: Array,
    g: Array,
    reduction: str,
    ignore_index: int,
    label_smoothing: Any,
) -> Array:
    found = _as_rows(logits, labels)
    if found is None:
        return cross_entropy_grad(logits, labels, peak, total, g, reduction, ignore_index, label_smoothing)
    x, own = found
    if reduction == "none":
        weights = flat(g)
    else:
        each = np.divide(g, np.count_nonzero(own != ignore_index)) if reduction == "mean" else g
        weights = np.full(len(x), each, x.dtype)
    out = np.empty(logits.shape, x.dtype)
    kept = flat(peak), flat(total)
    if loops.cross_entropy_grad(x, own, *kept, weights, ignore_index, float(label_smoothing), out.reshape(x.shape)) < 0:
        _labels("cross_entropy_grad", logits, labels, ignore_index)
    return out


FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    CROSS_ENTROPY: fast_cross_entropy,
    CROSS_ENTROPY_GRAD: fast_cross_entropy_grad,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
