"""Twins: the functions of opstage.ops.derived that read and write at places."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.parity.twin import Arrays, both, fixed, integers, normal
from tests.parity.twins.arrange import twin

_X = normal((3, 4))
_NAMES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _apart(rng: np.random.Generator) -> tuple[Any, ...]:
    """Indices that name no place twice, where PyTorch leaves open which update stands."""
    return (np.argsort(rng.random((3, 4)), axis=1)[:, :3],)


def _put(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor, axis: int, reduce: str) -> torch.Tensor:
    if reduce == "set":
        return torch.scatter(x, axis, i, v)
    return torch.scatter_reduce(x, axis, i, v, _NAMES[reduce])


_PAIRS: Arrays = fixed([[0, 1], [2, 3], [0, 1], [1, 1]])
_ONCE: Arrays = fixed([[0, 1], [2, 3], [1, 1]])

TWINS = [
    twin(
        "take_along_axis",
        lambda x, i, axis: torch.gather(x, axis, i),
        {"axis": 1},
        arrays=both(_X, integers(0, 4, (3, 6))),
    ),
    twin("put_along_axis", _put, {"axis": 1, "reduce": "set"}, arrays=both(_X, _apart, normal((3, 3)))),
    twin(
        "put_along_axis",
        _put,
        *({"axis": 1, "reduce": reduce} for reduce in _NAMES),
        arrays=both(_X, integers(0, 4, (3, 6)), normal((3, 6))),
    ),
    twin("gather_nd", lambda x, i: x[i[:, 0], i[:, 1]], arrays=both(normal((3, 4, 2)), _PAIRS)),
    twin(
        "scatter_nd",
        lambda x, i, v: torch.index_put(x, (i[:, 0], i[:, 1]), v),
        arrays=both(normal((3, 4, 2)), _ONCE, normal((3, 2))),
    ),
    twin(
        "scatter_nd",
        lambda x, i, v, reduce: torch.index_put(x, (i[:, 0], i[:, 1]), v, accumulate=True),
        {"reduce": "add"},
        arrays=both(normal((3, 4, 2)), _PAIRS, normal((4, 2))),
    ),
    twin(
        "index_add",
        lambda x, i, v, axis: torch.index_add(x, axis, i, v),
        {"axis": 1},
        arrays=both(_X, fixed([3, 0, 3]), normal((3, 3))),
    ),
    twin(
        "nonzero",
        lambda m, size: (torch.nonzero(m)[:size], torch.count_nonzero(m)),
        {"size": 3},
        arrays=fixed([[True, False], [True, True]]),
    ),
    twin(
        "masked_select",
        lambda x, m, size: (torch.masked_select(x, m), torch.count_nonzero(m)),
        {"size": 3},
        arrays=both(normal((2, 2)), fixed([[True, False], [True, True]])),
    ),
]
