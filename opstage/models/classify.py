"""The loss and the metrics of classifiers, from the logits alone."""

from __future__ import annotations

from ..ops.derived import correct_count
from ..ops.protocol import Ops, R


def classifier_loss(ops: Ops[R], logits: R, labels: R, *, smoothing: float, train: bool) -> R:
    """Mean cross-entropy of the batch; labels are smoothed in training alone."""
    return ops.cross_entropy(logits, labels, label_smoothing=smoothing if train else 0.0)


def classifier_outputs(ops: Ops[R], logits: R) -> dict[str, R]:
    """The predictions of a classifier: `class`, the likeliest, int64 (B,), and `probabilities` (B, classes)."""
    return {"class": ops.argmax(logits, axis=-1), "probabilities": ops.softmax(logits, axis=-1)}


def classifier_metrics(ops: Ops[R], logits: R, labels: R) -> dict[str, R]:
    """Sums over the batch, so that batches of any size add up: `loss`, and `accuracy` as the count of right answers."""
    return {
        "loss": ops.cross_entropy(logits, labels, reduction="sum"),
        "accuracy": correct_count(ops, logits, labels),
    }
