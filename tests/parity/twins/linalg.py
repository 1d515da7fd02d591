"""Twins: products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.parity.twin import INF, NAN, Arrays, Case, Twin, fixed, normal

_MATRICES = ((2, 3, 4), (1, 7, 1), (5, 1, 5), (0, 2, 3), (2, 0, 3), (64, 300, 48), (33, 1000, 17))
_BATCHES = ((2,), (2, 3), (), (0,), (16,))
_INFIX = (
    ((3, 4), (4, 2)),
    ((4,), (4, 2)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((5, 3, 4), (4, 2)),
    ((5, 3, 4), (5, 4, 2)),
    ((5, 1, 3, 4), (2, 4, 6)),
    ((4,), (5, 4, 2)),
    ((5, 3, 4), (4,)),
)
_LINEAR = (((4,), 3), ((2, 4), 3), ((2, 5, 4), 3), ((0, 4), 3), ((64, 300), 10), ((1, 4), 1))


def _linear(x: tuple[int, ...], out: int, bias: bool) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        weight = rng.standard_normal((out, x[-1]))
        return weight, rng.standard_normal(out) if bias else None, rng.standard_normal(x)

    return make


def _products(x: Callable[..., Any], y: Callable[..., Any], batches: Any) -> tuple[Case, ...]:
    return tuple(
        Case(f"{b} {m} {k} {n}", normal((*b, *x(m, k)), (*b, *y(k, n))), terms=max(m, k, n))
        for b in batches
        for m, k, n in (_MATRICES if b in ((), (2,)) else _MATRICES[:3])
    )


_EDGES = fixed([[INF, 1.0], [NAN, 0.0], [1e30, 1.0]], [[1.0, 0.0, 2.0], [1.0, 1.0, -1.0]])

TWINS: list[Twin] = [
    Twin(
        "matmul",
        torch.matmul,
        (*_products(lambda m, k: (m, k), lambda k, n: (k, n), ((),)), Case("edges", _EDGES, edge=True)),
    ),
    Twin("bmm", torch.matmul, _products(lambda m, k: (m, k), lambda k, n: (k, n), _BATCHES)),
    Twin(
        "matmul",
        lambda x, y: x @ y,
        tuple(Case(f"infix {a} {b}", normal(a, b), terms=30) for a, b in _INFIX),
        call=lambda ops, x, y: x @ y,
    ),
    Twin(
        "linear",
        lambda weight, bias, x: functional.linear(x, weight, bias),
        tuple(
            Case(f"{x} to {out} {'biased' if bias else 'plain'}", _linear(x, out, bias), terms=max(x[-1], x[0], out))
            for x, out in _LINEAR
            for bias in (True, False)
        ),
    ),
]
