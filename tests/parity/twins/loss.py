"""Twins: losses and metrics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from opstage.ops import derived
from tests.parity.twin import INF, NAN, Arrays, Case, Twin, both, fixed, integers, normal, uniform

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


# Losses of derived ----------------------------------------------------------------------------------------------------


def _log_probabilities(shape: tuple[int, ...]) -> Arrays:
    return lambda rng: (np.log(rng.uniform(0.1, 1.0, shape)),)


def _weighted(x: torch.Tensor, y: torch.Tensor, weight: Any, **static: Any) -> torch.Tensor:
    return functional.cross_entropy(x, y, torch.tensor(weight, dtype=x.dtype), **static)


def _binary(x: torch.Tensor, y: torch.Tensor, weight: Any, pos_weight: Any, **static: Any) -> torch.Tensor:
    weights = [None if w is None else torch.tensor(w, dtype=x.dtype) for w in (weight, pos_weight)]
    return functional.binary_cross_entropy_with_logits(x, y, weights[0], pos_weight=weights[1], **static)


def _our_binary(ops: Any, x: Any, y: Any, weight: Any, pos_weight: Any, **static: Any) -> Any:
    weights = [None if w is None else ops.const(w) for w in (weight, pos_weight)]
    return derived.binary_cross_entropy_with_logits(ops, x, y, weight=weights[0], pos_weight=weights[1], **static)


_CLASSES = both(normal((20, 5)), integers(0, 5, (20,)))
_PLACES = both(normal((3, 5, 4)), integers(0, 5, (3, 4)))
_REDUCTIONS = ("mean", "sum", "none")
# PyTorch differentiates these losses in no weights, so they are constants here.
_WEIGHT = [0.5, 2.0, 0.25, 1.0, 1.5]
_UNWEIGHTED: dict[str, Any] = {"weight": None, "pos_weight": None}
_WEIGHTED: dict[str, Any] = {"weight": [[0.5], [2.0], [1.0], [0.0]], "pos_weight": _WEIGHT}

TWINS += [
    Twin(
        "derived.weighted_cross_entropy",
        _weighted,
        (
            *(
                Case(f"{name} {r} {e}", arrays, {"weight": _WEIGHT, "reduction": r, "label_smoothing": e}, terms=100)
                for name, arrays in (("batch", _CLASSES), ("places", _PLACES))
                for r in _REDUCTIONS
                for e in (0.0, 0.2)
            ),
            Case("ignored", _CLASSES, {"weight": _WEIGHT, "ignore_index": 2, "label_smoothing": 0.1}, terms=100),
        ),
        call=lambda ops, x, y, weight, **static: derived.weighted_cross_entropy(ops, x, y, ops.const(weight), **static),
    ),
    Twin(
        "derived.binary_cross_entropy_with_logits",
        _binary,
        (
            *(
                Case(f"{r} {i}", both(normal((4, 5)), uniform(0.0, 1.0, (4, 5))), {"reduction": r, **weights}, 20)
                for r in _REDUCTIONS
                for i, weights in enumerate((_UNWEIGHTED, _WEIGHTED))
            ),
            Case("edges", fixed([1e4, -1e4, 1e4, -1e4], [1.0, 0.0, 0.0, 1.0]), _UNWEIGHTED, terms=4, edge=True),
        ),
        call=_our_binary,
    ),
    Twin(
        "derived.huber",
        functional.huber_loss,
        (
            *(
                Case(f"{d} {r}", normal((6, 5), (6, 5)), {"delta": d, "reduction": r}, 30)
                for d in (0.5, 2.0)
                for r in _REDUCTIONS
            ),
            Case("edges", fixed([0.0, 1e30, -1.0, INF], [0.0, 0.0, 0.0, 0.0]), {"reduction": "none"}, edge=True),
        ),
        call=derived.huber,
    ),
    Twin(
        "derived.kl_div",
        functional.kl_div,
        (
            *(
                Case(f"{r}", both(_log_probabilities((4, 5)), uniform(0.1, 1.0, (4, 5))), {"reduction": r}, 20)
                for r in (*_REDUCTIONS, "batchmean")
            ),
            Case("log", normal((4, 5), (4, 5)), {"reduction": "batchmean", "log_target": True}, 20),
        ),
        call=derived.kl_div,
    ),
    Twin(
        "derived.cosine_similarity",
        lambda x, y, axis: functional.cosine_similarity(x, y, dim=axis),
        tuple(Case(f"{axis}", normal((3, 6, 4), (3, 6, 4)), {"axis": axis}, 12) for axis in (0, 1, -1)),
        call=derived.cosine_similarity,
    ),
]


# Further functions of derived -----------------------------------------------------------------------------------------

_EQUATIONS = (
    ("ij,jk->ik", (3, 4), (4, 2)),
    ("ij,jk", (3, 4), (4, 2)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("i,j->ij", (3,), (4,)),
    ("ij->ji", (3, 4)),
    ("ij->", (3, 4)),
    ("ij,ij->i", (3, 4), (3, 4)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("i,i,i->", (4,), (4,), (4,)),
)
_PEAKS = ((-INF, -INF, -INF), (0.0, -INF, 1.0), (1e4, 1e4, -1e4), (INF, 0.0, 1.0))


def _one_hot(labels: torch.Tensor, classes: int, like: str) -> torch.Tensor:
    return functional.one_hot(labels, classes).to(getattr(torch, like))


def _correct(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return ((logits.argmax(1) == labels) & (labels != -100)).sum().to(logits.dtype)


def _counted(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return _correct(logits, labels) / (labels != -100).sum()


_CLASSIFIED = (
    Case("batch", both(normal((20, 5)), integers(0, 5, (20,)))),
    Case("places", both(normal((3, 5, 4)), integers(0, 5, (3, 4)))),
    Case("ignored", both(normal((4, 3)), fixed([0, -100, 2, -100]))),
)

TWINS += [
    Twin(
        "derived.einsum",
        lambda *xs, equation: torch.einsum(equation, *xs),
        tuple(Case(f"{e} {shapes}", normal(*shapes), {"equation": e}, terms=20) for e, *shapes in _EQUATIONS),
        call=lambda ops, *xs, equation: derived.einsum(ops, equation, *xs),
    ),
    Twin(
        "derived.logsumexp",
        lambda x, axis, keepdims: torch.logsumexp(x, axis, keepdims),
        (
            *(
                Case(f"{axis} {keep}", normal((2, 3, 4)), {"axis": axis, "keepdims": keep}, terms=24)
                for axis in (0, -1, (0, 2), (0, 1, 2))
                for keep in (False, True)
            ),
            Case("edges", fixed(_PEAKS[:3]), {"axis": -1, "keepdims": False}, edge=True),
        ),
        call=lambda ops, x, axis, keepdims: derived.logsumexp(ops, x, axis=axis, keepdims=keepdims),
    ),
    Twin(
        "derived.one_hot",
        _one_hot,
        (Case("labels", integers(0, 5, (3, 4)), {"classes": 5, "like": "int64"}),),
        call=lambda ops, labels, classes, like: derived.one_hot(ops, labels, classes=classes, dtype=like),
    ),
    Twin(
        "derived.embedding",
        lambda table, idx: functional.embedding(idx, table),
        (Case("repeated", both(normal((5, 3)), integers(0, 5, (4, 6))), terms=24),),
        call=lambda ops, table, idx: derived.embedding(ops, table, idx),
    ),
    Twin(
        "derived.global_avg_pool",
        lambda x: functional.adaptive_avg_pool2d(x, 1).flatten(-3),
        tuple(Case(f"{s}", normal(s), terms=20) for s in ((3, 4, 5), (2, 3, 4, 5), (2, 3, 1, 1))),
        call=lambda ops, x: derived.global_avg_pool(ops, x),
    ),
    Twin("derived.correct_count", _correct, _CLASSIFIED, call=lambda ops, *xs: derived.correct_count(ops, *xs)),
    Twin("derived.accuracy", _counted, _CLASSIFIED, call=lambda ops, *xs: derived.accuracy(ops, *xs)),
]
