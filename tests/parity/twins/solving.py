"""Twins: linear systems, and the Cholesky factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.parity.twin import Case, Twin


def _system(*leading: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (rng.uniform(-1, 1, (*leading, 4, 4)) + 4 * np.eye(4), rng.standard_normal((*leading, 4, 3)))


def _triangular(a: torch.Tensor, b: torch.Tensor, lower: bool, transpose: bool) -> torch.Tensor:
    if transpose:
        a, lower = a.mT, not lower
    return torch.linalg.solve_triangular(a.tril() if lower else a.triu(), b, upper=not lower)


def _square(ops: Any, x: Any) -> Any:
    return ops.cholesky(ops.add(ops.bmm(x, ops.permute(x, axes=(0, 2, 1))), ops.const(np.stack([2 * np.eye(4)] * 2))))


TWINS: list[Twin] = [
    Twin("solve", torch.linalg.solve, tuple(Case(f"{n}", _system(*n), terms=50) for n in ((), (3,), (2, 2)))),
    Twin(
        "triangular_solve",
        _triangular,
        tuple(
            Case(f"{lower} {transpose}", _system(2), {"lower": lower, "transpose": transpose}, terms=50)
            for lower in (True, False)
            for transpose in (True, False)
        ),
    ),
    Twin(
        "cholesky",
        lambda x: torch.linalg.cholesky(x @ x.mT + 2 * torch.eye(4, dtype=x.dtype)),
        (Case("stack", lambda rng: (rng.standard_normal((2, 4, 4)),), terms=50),),
        call=_square,
    ),
]
