"""Cross-entropy of rows of logits."""

from __future__ import annotations

import math

from ...codegen.cpu.functions import RUN, add, exp, peak
from ...host import Array
from .jit import loop


@loop(results=3)
def cross_entropy(
    logits: Array, labels: Array, ignore_index: int, smoothing: float, losses: Array, peaks: Array, totals: Array
) -> int:
    """The number of rows that count; -1 at a label that names no class."""
    real, classes = logits.dtype.type, logits.shape[1]
    counted = 0
    for i in range(logits.shape[0]):
        label = labels[i]
        top = peak(logits, i, classes)
        total, drop = 0.0, 0.0
        for run in range(0, classes, RUN):
            part, dropped = real(0), real(0)
            for j in range(run, min(run + RUN, classes)):
                part = add(part, exp(logits[i, j] - top))
                dropped = add(dropped, logits[i, j] - top)
            total += part
            drop += dropped
        log_total = real(math.log(total))
        peaks[i], totals[i] = top, total
        losses[i] = real(0)
        if label != ignore_index:
            if label < 0 or label >= classes:
                return -1
            loss = log_total - (logits[i, label] - top)
            if smoothing != 0:
                loss = real(1 - smoothing) * loss + real(smoothing) * (log_total - real(drop / classes))
            losses[i] = loss
            counted += 1
    return counted


@loop()
def cross_entropy_grad(
    logits: Array,
    labels: Array,
    peaks: Array,
    totals: Array,
    weights: Array,
    ignore_index: int,
    smoothing: float,
    out: Array,
) -> int:
    """The number of rows; -1 at a label that names no class. A row's cotangent is `weights` there, 0 if ignored."""
    real, classes = logits.dtype.type, logits.shape[1]
    others = real(smoothing / classes)
    for i in range(logits.shape[0]):
        label, weight = labels[i], weights[i]
        if label == ignore_index:
            label, weight = 0, real(0)
        elif label < 0 or label >= classes:
            return -1
        top, total = peaks[i], totals[i]
        own = exp(logits[i, label] - top) / total - real(1 - smoothing)
        for j in range(classes):
            out[i, j] = weight * (exp(logits[i, j] - top) / total - others)
        out[i, label] = weight * (own - others)
    return len(labels)
