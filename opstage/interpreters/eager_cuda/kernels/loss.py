"""Kernels: losses and their fused derivatives. A label out of range sets the device's flag."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ....ops.catalogue.loss import CROSS_ENTROPY, CROSS_ENTROPY_GRAD, MSE_LOSS, class_axis
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import quotient, remainder, steps, unrolled_steps
from ...gpu.device.interface import Device
from ...gpu.language import cuda, exp, log
from ...gpu.rows import LOWEST, MOST_WARPS, ONE, ZERO, joined_max, joined_sum, online
from ...indices import require_labels
from .launches import Entry, Types, scalar
from .reduction import PART_OF_ROW, along, each_along, reduce_part, sum_kernel


def squared_difference_kernel(rows: Any, lanes: Any, out: Any, x: Any, y: Any, size: Any, part: Any) -> None:
    """out[row] = Σ (x - y)² over one part of the elements."""
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
        total = ZERO
        for j in unrolled_steps(row * part + lane, min((row + 1) * part, size), lanes):
            d = x[j] - y[j]
            total += d * d
        total = joined_sum(total, shared, cuda.threadIdx.x, lanes)
        if lane == 0:
            out[row] = total


def cross_entropy_kernel(
    rows: Any,
    lanes: Any,
    losses: Any,
    peaks: Any,
    totals: Any,
    logits: Any,
    labels: Any,
    classes: Any,
    inner: Any,
    ignored: Any,
    smoothing: Any,
    flag: Any,
    asked: Any,
) -> None:
    """Of each row its greatest logit, total = Σ exp(logits - peak), and with lse = peak + log total the loss
    (1 - ε)·(lse - own) + ε·(lse - mean), 0 if it is ignored."""
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
        first = quotient(row, inner) * classes * inner + remainder(row, inner)
        own, total = LOWEST, ZERO
        for j in steps(lane, classes, lanes):
            own, total = online(own, total, logits[first + j * inner])
        peak = joined_max(own, shared, cuda.threadIdx.x, lanes)
        total = joined_sum(total * exp(own - peak), shared, cuda.threadIdx.x, lanes)
        log_total = log(total)
        drop = ZERO
        if smoothing != ZERO:
            for j in steps(lane, classes, lanes):
                drop += logits[first + j * inner] - peak
            drop = joined_sum(drop, shared, cuda.threadIdx.x, lanes) / np.float32(classes)
        if lane == 0:
            label, loss = labels[row], ZERO
            if label != ignored:
                if label >= 0 and label < classes:
                    loss = log_total - (logits[first + label * inner] - peak)
                    if smoothing != ZERO:
                        loss = (ONE - smoothing) * loss + smoothing * (log_total - drop)
                elif flag[0] == 0:
                    flag[0] = asked
            losses[row] = loss
            peaks[row], totals[row] = peak, total


def reduced_loss_kernel(out: Any, losses: Any, labels: Any, rows: Any, ignored: Any, mean: Any) -> None:
    """out[0] = Σ losses, over the number of rows that are not ignored if `mean`; by one block of threads."""
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    total, count = ZERO, ZERO
    for row in unrolled_steps(cuda.threadIdx.x, rows, cuda.blockDim.x):
        total += losses[row]
        count += ONE if labels[row] != ignored else ZERO
    total = joined_sum(total, shared, cuda.threadIdx.x, cuda.blockDim.x)
    count = joined_sum(count, shared, cuda.threadIdx.x, cuda.blockDim.x)
    if cuda.threadIdx.x == 0:
        out[0] = total / count if mean != 0 else total


def share_kernel(out: Any, g: Any, labels: Any, rows: Any, ignored: Any) -> None:
    """out[0] = g over the number of rows that are not ignored; by one block of threads."""
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    count = ZERO
    for row in unrolled_steps(cuda.threadIdx.x, rows, cuda.blockDim.x):
        count += ONE if labels[row] != ignored else ZERO
    count = joined_sum(count, shared, cuda.threadIdx.x, cuda.blockDim.x)
    if cuda.threadIdx.x == 0:
        out[0] = g[0] / count


def cross_entropy_grad_kernel(
    count: Any,
    out: Any,
    logits: Any,
    labels: Any,
    peaks: Any,
    totals: Any,
    g: Any,
    of_row: Any,
    classes: Any,
    inner: Any,
    ignored: Any,
    own: Any,
    others: Any,
    flag: Any,
    asked: Any,
) -> None:
    """out = w·(exp(logits - peak)/total - target): w is g, of the row or of all rows, and 0 where the row is ignored;
    the target is `own` at the row's label and `others` elsewhere."""
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        before = quotient(i, inner)
        row = quotient(before, classes) * inner + remainder(i, inner)
        j = remainder(before, classes)
        label = labels[row]
        weight = g[row if of_row != 0 else 0]
        if label == ignored:
            weight = ZERO
        elif j == 0 and (label < 0 or label >= classes) and flag[0] == 0:
            flag[0] = asked
        target = own if label == j else others
        out[i] = weight * (exp(logits[i] - peaks[row]) / totals[row] - target)


def mse_loss(device: Device, types: Types, x: DeviceBuffer, y: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    parts = -(-x.size // PART_OF_ROW)
    squares = device.empty(TensorType((parts,), x.dtype))
    numbers = np.int32(x.size), np.int32(PART_OF_ROW)
    device.each_row(squared_difference_kernel, parts, min(x.size, PART_OF_ROW), squares, x, y, *numbers)
    total = reduce_part(device, sum_kernel, x.dtype, squares, (1, parts, 1), 1 / x.size)
    return (total.reshaped(()),)


def _watched(device: Device, logits: DeviceBuffer, labels: DeviceBuffer, ignore_index: int) -> Any:
    """The number to which a kernel sets the flag at a label that names no class."""
    return np.int32(device.watched(logits.shape, labels, partial(require_labels, ignore_index=ignore_index)))


def cross_entropy(
    device: Device,
    types: Types,
    logits: DeviceBuffer,
    labels: DeviceBuffer,
    reduction: str,
    ignore_index: int,
    label_smoothing: Any,
) -> tuple[DeviceBuffer, ...]:
    loss, peak, total = (device.empty(type_) for type_ in types)
    losses = loss if reduction == "none" else device.empty(TensorType(labels.shape, logits.dtype))
    sizes = along(logits, class_axis(len(logits.shape)))
    classes, inner, ignored = np.int32(sizes[1]), np.int32(sizes[2]), np.int32(ignore_index)
    smoothing, asked = scalar(label_smoothing, logits.dtype), _watched(device, logits, labels, ignore_index)
    operands = losses, peak, total, logits, labels, classes, inner, ignored, smoothing, device.flag, asked
    each_along(device, cross_entropy_kernel, sizes, *operands)
    if reduction != "none":
        mean = np.int32(reduction == "mean")
        threads = device.block
        device.launch(reduced_loss_kernel, 1, threads, loss, losses, labels, np.int32(labels.size), ignored, mean)
    return loss, peak, total


def cross_entropy_grad(
    device: Device,
    types: Types,
    logits: DeviceBuffer,
    labels: DeviceBuffer,
    peak: DeviceBuffer,
    total: DeviceBuffer,
    g: DeviceBuffer,
    reduction: str,
    ignore_index: int,
    label_smoothing: Any,
) -> tuple[DeviceBuffer, ...]:
    out, ignored = device.empty(types[0]), np.int32(ignore_index)
    _, classes, inner = along(logits, class_axis(len(logits.shape)))
    if reduction == "mean":
        whole, g = g, device.empty(TensorType((), g.dtype))
        device.launch(share_kernel, 1, device.block, g, whole, labels, np.int32(labels.size), ignored)
    others = label_smoothing / classes
    targets = scalar(1 - label_smoothing + others, logits.dtype), scalar(others, logits.dtype)
    numbers = np.int32(reduction == "none"), np.int32(classes), np.int32(inner), ignored, *targets
    asked = _watched(device, logits, labels, ignore_index)
    device.each(cross_entropy_grad_kernel, out.size, out, logits, labels, peak, total, g, *numbers, device.flag, asked)
    return (out,)


KERNELS: dict[Primitive, Entry] = {
    MSE_LOSS: mse_loss,
    CROSS_ENTROPY: cross_entropy,
    CROSS_ENTROPY_GRAD: cross_entropy_grad,
}
