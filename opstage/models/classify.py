"""The loss and the metrics of classifiers, computed from logits."""

from __future__ import annotations

from ..ops.derived import correct_count
from ..ops.protocol import Ops, R


def classifier_loss(ops: Ops[R], logits: R, labels: R, *, smoothing: float, train: bool) -> R:
    """Mean cross-entropy of the batch; labels are smoothed only in training."""
    return ops.cross_entropy(logits, labels, label_smoothing=smoothing if train else 0.0)


def classifier_outputs(ops: Ops[R], logits: R) -> dict[str, R]:
    """Return the predictions of a classifier: `class`, the most likely one, int64 (B,), and `probabilities` (B,
    classes)."""
    return {"class": ops.argmax(logits, axis=-1), "probabilities": ops.softmax(logits, axis=-1)}


def classifier_metrics(ops: Ops[R], logits: R, labels: R) -> dict[str, R]:
    """Return sums over the batch: `loss`, and `accuracy`, the number of correct predictions."""
    return {"loss": ops.cross_entropy(logits, labels, reduction="sum"), "accuracy": correct_count(ops, logits, labels)}
