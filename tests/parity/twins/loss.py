"""Twins: losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.parity.twin import INF, NAN, Arrays, Case, Twin, fixed, normal

_LOGITS = ((5,), (4, 5), (1, 3), (3, 5, 2), (2, 4, 3, 2), (64, 300), (6, 1))


def _labelled(logits: tuple[int, ...], ignored: int | None = None, cotangent: bool = False) -> Arrays:
    """Logits and a label per position, some of them `ignored`."""
    classes = logits[1] if len(logits) > 1 else logits[0]
    shape = (logits[0], *logits[2:]) if len(logits) > 1 else ()

    def make(rng: Any) -> tuple[Any, ...]:
        values, labels = 3 * rng.standard_normal(logits), rng.integers(0, classes, shape)
        if ignored is not None and shape:
            labels.flat[:: max(labels.size // 2, 2)] = ignored
        return values, labels

    return make


def _cases() -> tuple[Case, ...]:
    found = []
    for shape in _LOGITS:
        for reduction in ("mean", "sum", "none"):
            for smoothing in (0.0, 0.1, 1.0):
                for ignored in (-100, 1):
                    static = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignored}
                    # one label that is ignored and its own loss: 0/0, an edge
                    edge = shape == (6, 1) or (not shape[1:] and ignored == 1)
                    name = f"{shape} {reduction} {smoothing} {ignored}"
                    found.append(Case(name, _labelled(shape, ignored), static, math.prod(shape), edge))
    return tuple(found)


_FAR = [[1e4, 0.0, -1e4], [-800.0, 800.0, 0.0], [5.0, 5.0, 5.0], [1e30, 1.0, 2.0]]
_INFINITE = [[-INF, 0.0, 1.0], [0.0, -INF, 1.0], [NAN, 0.0, 1.0], [INF, 0.0, 1.0], [-INF, -INF, -INF]]
_EDGES = tuple(
    Case(
        f"{name} {reduction} {smoothing}",
        fixed(logits, labels),
        {"reduction": reduction, "label_smoothing": smoothing},
        edge=True,
    )
    for name, logits, labels in (
        ("far apart", _FAR, [0, 0, 1, 2]),
        ("infinite", _INFINITE, [1, 1, 1, 0, 2]),
        ("ignored and infinite", _INFINITE, [-100, 0, -100, -100, -100]),
        ("all ignored", _FAR, [-100] * 4),
    )
    for reduction in ("mean", "sum", "none")
    for smoothing in (0.0, 0.1)
)


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor, **static: Any) -> torch.Tensor:
    return functional.cross_entropy(logits, labels, **static)


def _grad_operands(logits: tuple[int, ...], reduction: str) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        values, labels = _labelled(logits, -100)(rng)
        peak = values.max(axis=1, keepdims=True)
        total = np.exp(values - peak).sum(axis=1, keepdims=True)
        return values, labels, peak, total, rng.standard_normal(labels.shape if reduction == "none" else ())

    return make


def _cross_entropy_grad(logits: Any, labels: Any, peak: Any, total: Any, g: Any, **static: Any) -> Any:
    leaf = logits.detach().requires_grad_()
    return torch.autograd.grad(_cross_entropy(leaf, labels, **static), leaf, g)


TWINS: list[Twin] = [
    Twin(
        "mse_loss",
        functional.mse_loss,
        (
            *(Case(f"{s}", normal(s, s), terms=math.prod(s)) for s in ((), (5,), (3, 4), (2, 3, 4), (100, 70))),
            Case("equal", fixed([1.0, 2.0], [1.0, 2.0])),
            Case("edges", fixed([INF, 1.0], [1.0, NAN]), edge=True),
        ),
    ),
    Twin("cross_entropy", _cross_entropy, (*_cases(), *_EDGES)),
    Twin(
        "cross_entropy_grad",
        _cross_entropy_grad,
        tuple(
            Case(
                f"{shape} {reduction} {smoothing}",
                _grad_operands(shape, reduction),
                {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": -100},
                terms=math.prod(shape),
            )
            for shape in _LOGITS[1:6]
            for reduction in ("mean", "sum", "none")
            for smoothing in (0.0, 0.1)
        ),
        gradient="its derivatives are second derivatives of the loss, compared as such",
    ),
]
