"""Samples: losses. The references are the definitions, one position and one class at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, given, gives, halves, normal


def _mse(x: Any, y: Any) -> Any:
    return np.array(sum((a - b) ** 2 for a, b in zip(x.flat, y.flat)) / x.size)


def _rows(logits: Any, labels: Any) -> tuple[Any, Any]:
    """Logits as (positions, classes), and the labels of the positions."""
    classes_last = logits if logits.ndim <= 2 else np.moveaxis(logits, 1, -1)
    return classes_last.reshape(-1, classes_last.shape[-1]), labels.reshape(-1)


def _log_probabilities(row: Any) -> Any:
    return row - row.max() - np.log(np.sum(np.exp(row - row.max())))


def _cross_entropy(
    logits: Any, labels: Any, reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0
) -> Any:
    rows, wanted = _rows(logits, labels)
    losses = []
    for row, label in zip(rows, wanted):
        target = np.full(len(row), label_smoothing / len(row))
        if label != ignore_index:
            target[label] += 1 - label_smoothing
            losses.append(-np.sum(target * _log_probabilities(row)))
        else:
            losses.append(0.0)
    if reduction == "none":
        return np.array(losses).reshape(labels.shape)
    total, counted = sum(losses), np.sum(wanted != ignore_index)
    if reduction == "sum":
        return np.array(total)
    return np.array(total / counted if counted else np.nan)


def _cross_entropy_grad(
    logits: Any, labels: Any, peak: Any, total: Any, g: Any, reduction: str, ignore_index: int, label_smoothing: float
) -> Any:
    rows, wanted = _rows(logits, labels)
    counted = max(np.sum(wanted != ignore_index), 1) if reduction == "mean" else 1
    weights = np.broadcast_to(g, labels.shape).reshape(-1) / counted
    out = np.zeros_like(rows)
    for i, (row, label, top, sum_) in enumerate(zip(rows, wanted, peak.reshape(-1), total.reshape(-1))):
        if label == ignore_index:
            continue
        for c in range(len(row)):
            target = label_smoothing / len(row) + (1 - label_smoothing if c == label else 0.0)
            out[i, c] = weights[i] * (np.exp(row[c] - top) / sum_ - target)
    if logits.ndim <= 2:
        return out.reshape(logits.shape)
    return np.moveaxis(out.reshape(logits.shape[0], *logits.shape[2:], -1), -1, 1)


def _labelled(
    shape: tuple[int, ...], labels: Any, dtype: Any = np.int64
) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (*normal(shape)(rng), np.array(labels, dtype))


def _with_cotangent(
    shape: tuple[int, ...], labels: Any, *, scalar: bool = True
) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Logits, labels, numbers near each position's peak and sum of exponentials, and the cotangent of the loss."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        wanted = np.array(labels)
        (logits,) = normal(shape)(rng)
        axis = 1 if len(shape) > 1 else 0
        peak = logits.max(axis=axis, keepdims=True) + 0.1
        total = np.sum(np.exp(logits - peak), axis=axis, keepdims=True) + 0.1
        return (logits, wanted, peak, total, *normal(() if scalar else wanted.shape)(rng))

    return make


def _static(reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0) -> dict[str, Any]:
    return {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": label_smoothing}


_IMAGE_LABELS = [[[0, 1], [2, 1]], [[-100, 2], [0, 0]]]

SAMPLES = [
    Sample("mse_loss", "matrix", halves((3, 2), (3, 2)), _mse, exact=True),
    Sample("mse_loss", "scalar", halves((), ()), _mse, exact=True),
    Sample("mse_loss", "rank 4", normal((2, 1, 2, 3), (2, 1, 2, 3)), _mse),
    Sample("cross_entropy", "matrix", _labelled((4, 3), [2, 0, 1, 1]), _cross_entropy),
    Sample("cross_entropy", "int32 labels", _labelled((2, 3), [2, 0], np.int32), _cross_entropy),
    Sample("cross_entropy", "vector", _labelled((5,), 3), _cross_entropy),
    Sample("cross_entropy", "vector, not reduced", _labelled((3,), 1), _cross_entropy, reduction="none"),
    Sample("cross_entropy", "sum", _labelled((4, 3), [2, 0, -100, 1]), _cross_entropy, reduction="sum"),
    Sample("cross_entropy", "not reduced", _labelled((4, 3), [2, 0, -100, 1]), _cross_entropy, reduction="none"),
    Sample("cross_entropy", "ignored", _labelled((4, 3), [2, -100, 1, -100]), _cross_entropy),
    Sample("cross_entropy", "ignored class", _labelled((4, 3), [2, 0, 1, 0]), _cross_entropy, ignore_index=0),
    Sample("cross_entropy", "sequence", _labelled((2, 3, 4), [[0, 1, 2, 2], [-100, 1, 0, 2]]), _cross_entropy),
    Sample("cross_entropy", "image", _labelled((2, 3, 2, 2), _IMAGE_LABELS), _cross_entropy, label_smoothing=0.25),
    Sample(
        "cross_entropy",
        "image, not reduced",
        _labelled((2, 3, 2, 2), _IMAGE_LABELS),
        _cross_entropy,
        _static("none", -100, 0.1),
    ),
    Sample("cross_entropy", "smoothed", _labelled((4, 3), [2, -100, 1, 0]), _cross_entropy, label_smoothing=0.1),
    Sample("cross_entropy", "all smoothed", _labelled((2, 3), [2, 1]), _cross_entropy, _static("sum", -100, 1.0)),
    Sample("cross_entropy", "one class", _labelled((3, 1), [0, 0, 0]), _cross_entropy),
    Sample("cross_entropy", "all ignored", _labelled((2, 3), [-100, -100]), _cross_entropy, order=0),
    Sample("cross_entropy", "no positions", _labelled((0, 3), np.zeros((0,))), _cross_entropy, reduction="sum"),
    Sample(
        "cross_entropy", "large logits", given([[1e4, 0.0, -1e4], [-3e38, 0.0, 3.0]], [0, 2]), _cross_entropy, order=0
    ),
    Sample(
        "cross_entropy",
        "impossible classes",
        given([[-np.inf, 0.0, 1.0], [2.0, -np.inf, 0.0]], [1, 1]),
        gives([np.log(1 + np.e), np.inf]),
        reduction="none",
        order=0,
    ),
    Sample("cross_entropy_grad", "mean", _with_cotangent((4, 3), [2, 0, -100, 1]), _cross_entropy_grad, _static()),
    Sample("cross_entropy_grad", "vector", _with_cotangent((3,), 1), _cross_entropy_grad, _static("sum")),
    Sample(
        "cross_entropy_grad",
        "not reduced",
        _with_cotangent((3, 3), [2, -100, 1], scalar=False),
        _cross_entropy_grad,
        _static("none", -100, 0.1),
    ),
    Sample(
        "cross_entropy_grad",
        "image",
        _with_cotangent((2, 3, 2, 2), _IMAGE_LABELS),
        _cross_entropy_grad,
        _static("mean", -100, 0.2),
    ),
    Sample(
        "cross_entropy_grad",
        "all ignored",
        _with_cotangent((2, 3), [-100, -100]),
        _cross_entropy_grad,
        _static(),
        order=0,
    ),
]


def _bad(logits: Any, labels: Any) -> Callable[[], tuple[Any, ...]]:
    return lambda: (logits, labels)


_LOGITS, _LABELS = np.ones((4, 3)), np.zeros(4, np.int64)

BAD_CALLS = [
    BadCall("mse_loss", "shape", given(np.ones((3, 1)), np.ones((3, 2))), r"x is \(3, 1\) but y is \(3, 2\)"),
    BadCall("mse_loss", "integers", given(_LABELS, _LABELS), "x must be a float tensor"),
    BadCall("mse_loss", "empty", given(np.ones((0, 2)), np.ones((0, 2))), "must have elements to take a mean of"),
    BadCall("cross_entropy", "scalar", _bad(np.ones(()), _LABELS), "without an axis of classes"),
    BadCall("cross_entropy", "float labels", _bad(_LOGITS, np.ones(4)), "labels must be an integer tensor"),
    BadCall("cross_entropy", "one-hot labels", _bad(_LOGITS, np.ones((4, 3), np.int64)), r"labels of shape \(4,\)"),
    BadCall("cross_entropy", "batch", _bad(_LOGITS, np.zeros(5, np.int64)), r"labels are \(5,\) but logits \(4, 3\)"),
    BadCall("cross_entropy", "classes last", _bad(np.ones((2, 5, 3)), np.zeros((2, 5), np.int64)), "classes on axis 1"),
    BadCall("cross_entropy", "no classes", _bad(np.ones((4, 0)), _LABELS), "at least one class"),
    BadCall(
        "cross_entropy", "no positions", _bad(np.ones((0, 3)), _LABELS[:0]), "at least one position to take a mean over"
    ),
    BadCall("cross_entropy", "reduction", _bad(_LOGITS, _LABELS), r"did you mean 'mean'\?", reduction="means"),
    BadCall("cross_entropy", "smoothing", _bad(_LOGITS, _LABELS), "from 0 to 1 but is 1.5", label_smoothing=1.5),
    BadCall("cross_entropy", "ignore_index", _bad(_LOGITS, _LABELS), "ignore_index must be an int", ignore_index=0.5),
    BadCall(
        "cross_entropy_grad",
        "peak",
        given(_LOGITS, _LABELS, np.ones(4), np.ones((4, 1)), np.ones(())),
        r"peak is \(4,\) but must be \(4, 1\)",
        _static(),
    ),
    BadCall(
        "cross_entropy_grad",
        "total",
        given(_LOGITS, _LABELS, np.ones((4, 1)), np.ones((4, 3)), np.ones(())),
        r"total is \(4, 3\) but must be \(4, 1\)",
        _static(),
    ),
    BadCall(
        "cross_entropy_grad",
        "g",
        given(_LOGITS, _LABELS, np.ones((4, 1)), np.ones((4, 1)), np.ones(())),
        r"g is \(\) but must be \(4,\)",
        _static("none"),
    ),
]
