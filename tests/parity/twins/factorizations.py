"""Twins: orthogonal factors, with signs as Opstage fixes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.parity.twin import Case, Twin


def _sign(vectors: torch.Tensor) -> torch.Tensor:
    """Of the first great entry of each column, (..., 1, k)."""
    sizes = vectors.detach().abs()
    first = (sizes >= 0.618 * sizes.amax(-2, keepdim=True)).byte().argmax(-2, keepdim=True)
    return vectors.detach().gather(-2, first).sign()


def _symmetric(*leading: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (rng.uniform(-0.4, 0.4, (*leading, 4, 4)) + np.diag([2.0, -1, 0.5, 3.5]),)


def _eigh(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values, vectors = torch.linalg.eigh((x + x.mT) / 2)
    return values, vectors * _sign(vectors)


def _qr(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    q, r = torch.linalg.qr(x)
    signs = torch.diagonal(r.detach(), dim1=-2, dim2=-1).sign()
    return q * signs.unsqueeze(-2), r * signs.unsqueeze(-1)


def _svd(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    signs = _sign(u)
    return u * signs, s, vh * signs.mT


def _full(*shape: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (rng.uniform(-0.5, 0.5, shape) + np.diag([2.0, -3.5, 5, -6.5])[: shape[-2], : shape[-1]],)


def _of_symmetric(ops: Any, x: Any) -> Any:
    rank = len(x.shape)
    other = ops.permute(x, axes=(*range(rank - 2), rank - 1, rank - 2))
    return ops.eigh(ops.scale(ops.add(x, other), c=0.5))


TWINS: list[Twin] = [
    Twin("eigh", _eigh, tuple(Case(f"{n}", _symmetric(*n), terms=50) for n in ((), (3,), (2, 2))), call=_of_symmetric),
    Twin("svd", _svd, tuple(Case(f"{n}", _full(*n), terms=50) for n in ((4, 4), (3, 4, 2), (2, 2, 4)))),
    Twin("qr", _qr, tuple(Case(f"{n}", _full(*n), terms=50) for n in ((4, 4), (3, 4, 2)))),
]
