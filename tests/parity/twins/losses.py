"""Twins: the losses of opstage.ops.derived."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from opstage.ops import derived
from tests.parity.twin import INF, Arrays, Case, Twin, both, fixed, integers, normal, uniform


def _log_probabilities(shape: tuple[int, ...]) -> Arrays:
    return lambda rng: (np.log(rng.uniform(0.1, 1.0, shape)),)


def _cross_entropy(x: torch.Tensor, y: torch.Tensor, weight: Any, **static: Any) -> torch.Tensor:
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

TWINS: list[Twin] = [
    Twin(
        "derived.weighted_cross_entropy",
        _cross_entropy,
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
