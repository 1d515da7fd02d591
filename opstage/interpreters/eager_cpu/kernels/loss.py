"""NumPy kernels: losses and their fused derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.loss import CROSS_ENTROPY, CROSS_ENTROPY_GRAD, MSE_LOSS, class_axis
from ....ops.errors import RangeError
from ....ops.primitive import Primitive
from ....ops.types import show_shape
from .indexing import first_out_of_range
from .numbers import number

Array = npt.NDArray[Any]


def mse_loss(x: Array, y: Array) -> Array:
    d = np.subtract(x, y)
    return np.asarray(np.mean(np.multiply(d, d)))


def _labels(op: str, logits: Array, labels: Array, ignore_index: int) -> tuple[int, Array, Array]:
    """The axis of the classes; where positions are ignored, and labels with 0 there, both of size 1 on that axis."""
    axis = class_axis(logits.ndim)
    classes = logits.shape[axis]
    ignored = np.asarray(labels == ignore_index)
    safe = np.where(ignored, 0, labels)
    found = first_out_of_range(safe, classes)
    if found is not None:
        label, position = found
        place = f" at position {show_shape(position)}" if position else ""
        raise RangeError(
            f"label {label}{place} is out of range: logits are {show_shape(logits.shape)} with {classes} classes on "
            f"axis {axis}, so labels are 0 … {classes - 1}, or ignore_index={ignore_index}",
            op=op,
        )
    return axis, np.expand_dims(ignored, axis), np.expand_dims(safe, axis)


def cross_entropy(
    logits: Array, labels: Array, reduction: str, ignore_index: int, label_smoothing: Any
) -> tuple[Array, Array]:
    axis, ignored, safe = _labels("cross_entropy", logits, labels, ignore_index)
    peak = logits.max(axis=axis, keepdims=True)
    shifted = logits - peak
    own = np.take_along_axis(shifted, safe, axis)
    smoothing = number(label_smoothing, logits.dtype)
    mean = shifted.mean(axis=axis, keepdims=True) if smoothing else own
    log_total = np.log(np.exp(shifted, out=shifted).sum(axis=axis, keepdims=True))
    loss = log_total - own
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing * (log_total - mean)
    loss = np.where(ignored, 0, loss).reshape(labels.shape)
    if reduction != "none":
        loss = loss.sum()
    if reduction == "mean":
        loss = np.divide(loss, int(np.count_nonzero(~ignored)))
    return loss, peak + log_total


def cross_entropy_grad(
    logits: Array,
    labels: Array,
    lse: Array,
    g: Array,
    reduction: str,
    ignore_index: int,
    label_smoothing: Any,
) -> Array:
    axis, ignored, safe = _labels("cross_entropy_grad", logits, labels, ignore_index)
    smoothing = number(label_smoothing, logits.dtype)
    out = np.subtract(logits, lse)
    np.exp(out, out=out)
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

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
