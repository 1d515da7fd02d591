"""Twins: the functions of opstage.ops.derived that sort, count and say how elements are spread."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch

from tests.parity.twin import INF, NAN, Twin, both, fixed, integers, normal, tied
from tests.parity.twins.arrange import twin

_MATRIX = normal((9, 40))


def _two(values: torch.Tensor, places: torch.Tensor) -> Any:
    return values, places


def _grouped(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    starts = [0, *ends.tolist()]
    parts = [x[a:b] @ w[i] for i, (a, b) in enumerate(pairwise(starts))]
    return torch.cat([*parts, torch.zeros_like(x[starts[-1] :] @ w[0])])


def _segment_sum(x: torch.Tensor, segments: torch.Tensor, count: int) -> torch.Tensor:
    return torch.zeros(count, *x.shape[1:], dtype=x.dtype).index_add(0, segments, x)


def _segment_extreme(how: str) -> Any:
    def extreme(x: torch.Tensor, segments: torch.Tensor, count: int) -> torch.Tensor:
        cells = segments.reshape(-1, *[1] * (x.ndim - 1)).expand(x.shape)
        # no number of x: what is there before counts among those that share the gradient, though not in the result
        before = torch.full((count, *x.shape[1:]), 1e30, dtype=x.dtype)
        found = before.scatter_reduce(0, cells, x, how, include_self=False)
        return torch.where(found == before, torch.zeros_like(found), found)

    return extreme


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
    twin("grouped_matmul", _grouped, {}, arrays=both(normal((9, 4)), normal((3, 4, 5)), fixed([2, 2, 7]))),
    twin("bincount", lambda x, size: torch.bincount(x, minlength=size), {"size": 7}, arrays=integers(0, 7, (30,))),
    twin("segment_sum", _segment_sum, {"count": 4}, arrays=both(normal((30, 2)), integers(0, 4, (30,)))),
    twin("unique", _unique, {"size": 12}, arrays=integers(0, 7, (5, 6))),
    *(
        twin(f"segment_{name}", _segment_extreme(f"a{name}"), {"count": 6}, arrays=both(arrays, integers(0, 4, (30,))))
        for name in ("max", "min")
        for arrays in (normal((30, 2)), tied((30, 2)))
    ),
    *(
        twin(name, lambda x, axis, call=call: _two(*call(x, dim=axis)), {"axis": 0}, {"axis": -1}, arrays=arrays)
        for name, call in (("cummax", torch.cummax), ("cummin", torch.cummin))
        for arrays in (_MATRIX, tied((5, 9)), fixed([[1.0, NAN, 2.0, INF], [INF, -INF, NAN, INF]]))
    ),
    twin("prelu", torch.nn.functional.prelu, {}, arrays=both(normal((4, 5, 3)), normal((5,)))),
    twin("glu", lambda x, axis: torch.nn.functional.glu(x, dim=axis), {"axis": -1}, {"axis": 0}, arrays=normal((4, 6))),
    twin(
        "nan_to_num",
        torch.nan_to_num,
        {},
        {"nan": 1.5, "posinf": 9.0, "neginf": -9.0},
        arrays=fixed([[1.0, NAN, 2.0, INF], [-INF, 0.5, NAN, -3.0]]),
    ),
]
