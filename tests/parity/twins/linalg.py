"""Twins: products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
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


def _rows_of_groups(ends: list[int], n: int) -> Iterator[slice]:
    """The rows of each group, for ends that never fall, and those of none."""
    return (slice(a, b) for a, b in pairwise([0, *ends, n]))


def _grouped_matmul(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    matrices = [*w, torch.zeros_like(w[0])]
    rows = _rows_of_groups(ends.tolist(), len(x))
    return torch.cat([x[at] @ matrix for at, matrix in zip(rows, matrices, strict=True)])


def _grouped_outer(x: torch.Tensor, g: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    *rows, _ = _rows_of_groups(ends.tolist(), len(x))
    return torch.stack([x[at].T @ g[at] for at in rows])


def _in_groups(*shapes: tuple[int, ...], ends: list[int]) -> Arrays:
    return lambda rng: (*(rng.standard_normal(shape) for shape in shapes), np.array(ends))


_GROUPS = ((9, 4, 5, [2, 2, 7]), (600, 150, 70, [200, 450, 590]))

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
    Twin(
        "grouped_matmul",
        _grouped_matmul,
        tuple(
            Case(f"{n} {k} {m}", _in_groups((n, k), (len(ends), k, m), ends=ends), terms=n) for n, k, m, ends in _GROUPS
        ),
    ),
    Twin(
        "grouped_outer",
        _grouped_outer,
        tuple(Case(f"{n} {k} {m}", _in_groups((n, k), (n, m), ends=ends), terms=n) for n, k, m, ends in _GROUPS),
    ),
]
