"""Twins: functions of opstage.ops.derived."""

from __future__ import annotations

import torch
from torch.nn import functional

from opstage.ops import derived
from tests.parity.twin import INF, Case, Twin, both, fixed, integers, normal

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

TWINS: list[Twin] = [
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
