"""Twins: determinants, cofactors and inverses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from opstage import derived
from tests.parity.twin import Case, Twin


def _regular(*leading: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (rng.uniform(-1, 1, (*leading, 4, 4)) + 3 * np.eye(4)[::-1],)


_CASES = tuple(Case(f"{n}", _regular(*n), terms=50) for n in ((), (3,), (2, 2)))

TWINS: list[Twin] = [
    Twin("det", torch.linalg.det, _CASES),
    Twin("cofactor", lambda x: torch.linalg.det(x)[..., None, None] * torch.linalg.inv(x).mT, _CASES),
    Twin("slogdet", torch.linalg.slogdet, _CASES),
    Twin("derived.inverse", torch.linalg.inv, _CASES, call=derived.inverse),
]
