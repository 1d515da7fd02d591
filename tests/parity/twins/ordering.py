"""Twins: the functions of opstage.ops.derived that sort, count and say how elements are spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tests.parity.twin import Twin, both, fixed, integers, normal
from tests.parity.twins.arrange import twin

_MATRIX = normal((9, 40))


def _two(values: torch.Tensor, places: torch.Tensor) -> Any:
    return values, places


def _segment_sum(x: torch.Tensor, segments: torch.Tensor, count: int) -> torch.Tensor:
    return torch.zeros(count, *x.shape[1:], dtype=x.dtype).index_add(0, segments, x)


def _unique(x: torch.Tensor, size: int) -> Any:
    values, counts = torch.unique(x, return_counts=True)
    rest = size - len(values)
    found = torch.tensor(len(values))
    return torch.nn.functional.pad(values, (0, rest)), torch.nn.functional.pad(counts, (0, rest)), found


_SPREAD: tuple[Mapping[str, Any], ...] = ({"axis": -1}, {"axis": (0, 2)}, {"axis": (0, 1, 2), "keepdims": True})
_ORDERED = fixed([-1.0, 0.0, 0.5, 0.5, 2.0])


def _keep(statics: Mapping[str, Any]) -> dict[str, Any]:
    return {"dim": statics["axis"], "keepdim": statics.get("keepdims", False)}


TWINS: list[Twin] = [
    twin("var", lambda x, **s: torch.var(x, **_keep(s)), *_SPREAD),
    twin("std", lambda x, **s: torch.std(x, **_keep(s)), *_SPREAD),
    twin(
        "norm",
        lambda x, ord=2, **s: torch.linalg.vector_norm(x, ord, **_keep(s)),
        *_SPREAD,
        {"ord": 1, "axis": 1},
        {"ord": float("inf"), "axis": 0},
        {"ord": float("-inf"), "axis": -1},
    ),
    twin(
        "quantile",
        lambda x, q, axis, interpolation: torch.quantile(x, q, dim=axis, interpolation=interpolation),
        {"q": 0.25, "axis": 0, "interpolation": "linear"},
        {"q": 0.5, "axis": 1, "interpolation": "lower"},
        {"q": 0.75, "axis": -1, "interpolation": "higher"},
        arrays=_MATRIX,
    ),
    twin("median", lambda x, axis: torch.median(x, dim=axis).values, {"axis": 0}, arrays=_MATRIX),
    twin(
        "sort",
        lambda x, axis, descending: _two(*torch.sort(x, dim=axis, descending=descending, stable=True)),
        {"axis": 0, "descending": False},
        {"axis": -1, "descending": True},
        arrays=_MATRIX,
    ),
    twin(
        "top_k",
        lambda x, k, axis, largest: _two(*torch.topk(x, k, dim=axis, largest=largest)),
        {"k": 3, "axis": -1, "largest": True},
        {"k": 9, "axis": 0, "largest": False},
        arrays=_MATRIX,
    ),
    twin(
        "searchsorted",
        lambda ordered, values, right: torch.searchsorted(ordered, values, right=right),
        {"right": False},
        {"right": True},
        arrays=both(_ORDERED, fixed([[0.5, 0.4], [2.0, 9.0]])),
    ),
    twin("bincount", lambda x, size: torch.bincount(x, minlength=size), {"size": 7}, arrays=integers(0, 7, (30,))),
    twin("segment_sum", _segment_sum, {"count": 4}, arrays=both(normal((30, 2)), integers(0, 4, (30,)))),
    twin("unique", _unique, {"size": 12}, arrays=integers(0, 7, (5, 6))),
]
