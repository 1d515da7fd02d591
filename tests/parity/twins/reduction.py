"""Twins: reductions along axes, cumulative ones, the order and the spread of elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch

from tests.parity.twin import INF, NAN, Case, Twin, both, fixed, integers, normal, tied
from tests.parity.twin import derived_twin as twin

aten = torch.ops.aten

_SHAPES = ((), (7,), (3, 4), (2, 1, 3), (2, 3, 2, 2), (600, 3), (3, 700), (5000,), (3, 4200))
_KINKS = ((3.0, 3.0, 1.0), (NAN, 1.0, 2.0), (INF, INF, -INF), (-INF, -INF, -INF), (-0.0, 0.0, -1.0), (1e30, 1.0, 1e30))


def _axes(rank: int) -> Iterator[Any]:
    """None, every axis from both ends, and every set of axes, negative ones mixed in."""
    yield None
    yield from range(-rank, rank)
    for count in range(2, rank + 1):
        for axes in itertools.combinations(range(rank), count):
            yield axes
            yield tuple(axis - rank if i % 2 else axis for i, axis in enumerate(reversed(axes)))


def _size(shape: tuple[int, ...], axis: Any) -> int:
    rank = len(shape)
    axes = range(rank) if axis is None else [axis] if isinstance(axis, int) else axis
    return math.prod(shape[a] for a in axes)


def _reductions(arrays: Callable[..., Any] = normal, *, empty: bool = False) -> tuple[Case, ...]:
    shapes = (*_SHAPES, (0, 3), (3, 0)) if empty else _SHAPES
    found = [
        Case(f"{shape} axis {axis} {keep}", arrays(shape), {"axis": axis, "keepdims": keep}, terms=_size(shape, axis))
        for shape in shapes
        for axis in _axes(len(shape))
        for keep in (False, True)
    ]
    edges = [
        Case(f"edges axis {axis} {keep}", fixed(_KINKS), {"axis": axis, "keepdims": keep}, edge=True)
        for axis in (None, 0, -1)
        for keep in (False, True)
    ]
    return (*found, *edges)


def _whole(axis: Any, x: torch.Tensor) -> Any:
    return tuple(range(x.ndim)) if axis is None else axis


def _along(arrays: Callable[..., Any], operands: int = 1) -> tuple[Case, ...]:
    return tuple(
        Case(f"{shape} axis {axis}", arrays(*[shape] * operands), {"axis": axis}, terms=shape[axis])
        for shape in _SHAPES[1:]
        for axis in range(-len(shape), len(shape))
    )


_LOGITS = (
    (1e4, 0.0, -1e4),
    (800.0, 800.0, 0.0),
    (-INF, 0.0, 1.0),
    (NAN, 0.0, 1.0),
    (1e30, -1e30, 0.0),
    (5.0, 5.0, 5.0),
)
_HOPELESS = ((INF, 0.0, 1.0), (-INF, -INF, -INF), (INF, -INF, 0.0))
_SOFT = (
    *_along(normal),
    *(Case(f"edges axis {axis}", fixed(_LOGITS), {"axis": axis}, edge=True) for axis in (-1,)),
    Case("infinite", fixed(_HOPELESS), {"axis": -1}, edge=True),
)

TWINS: list[Twin] = [
    Twin(
        "sum",
        torch.sum,
        (
            *(Case(f"{shape}", normal(shape), terms=math.prod(shape)) for shape in (*_SHAPES, (0, 3))),
            Case("integers", integers(-9, 9, (3, 4))),
        ),
    ),
    Twin("reduce_sum", lambda x, axis, keepdims: torch.sum(x, _whole(axis, x), keepdims), _reductions(empty=True)),
    Twin(
        "reduce_sum",
        lambda x, axis: torch.sum(x, axis),
        (
            Case("integers", integers(-9, 9, (3, 4)), {"axis": 1}),
            Case("short integers", lambda rng: (rng.integers(-9, 9, (3, 4)).astype("int32"),), {"axis": 0}),
        ),
    ),
    Twin("reduce_mean", lambda x, axis, keepdims: torch.mean(x, _whole(axis, x), keepdims), _reductions()),
    Twin("reduce_max", lambda x, axis, keepdims: torch.amax(x, _whole(axis, x), keepdims), _reductions()),
    Twin(
        "reduce_max",
        lambda x, axis: torch.amax(x, axis),
        (
            *(Case(f"ties axis {axis}", tied((6, 5)), {"axis": axis}, edge=True) for axis in (0, -1, (0, 1))),
            Case("integers", integers(-9, 9, (3, 4)), {"axis": 1}),
        ),
    ),
    Twin(
        "argmax",
        lambda x, axis, keepdims: torch.argmax(x, axis, keepdims),
        (
            *(
                Case(f"{shape} axis {axis} {keep}", normal(shape), {"axis": axis, "keepdims": keep})
                for shape in _SHAPES[1:]
                for axis in range(-len(shape), len(shape))
                for keep in (False, True)
            ),
            Case("edges", fixed(_KINKS), {"axis": -1, "keepdims": False}, edge=True),
            Case("ties", tied((6, 5)), {"axis": 0, "keepdims": False}, edge=True),
            Case("integers", integers(0, 3, (4, 5)), {"axis": 1, "keepdims": False}),
        ),
    ),
    Twin("reduce_min", lambda x, axis, keepdims: torch.amin(x, _whole(axis, x), keepdims), _reductions()),
    Twin(
        "argmin",
        lambda x, axis, keepdims: torch.argmin(x, axis, keepdims),
        (
            Case("matrix", normal((6, 5)), {"axis": 1, "keepdims": True}),
            Case("edges", fixed(_KINKS), {"axis": -1, "keepdims": False}, edge=True),
            Case("integers", integers(0, 3, (4, 5)), {"axis": 0, "keepdims": False}),
        ),
    ),
    *(
        Twin(
            f"reduce_{name}",
            lambda x, axis, keepdims, f=f: f(x, axis, keepdims),
            (
                Case("edges", fixed(_KINKS), {"axis": -1, "keepdims": True}, edge=True),
                Case("integers", integers(0, 2, (20, 3)), {"axis": (0,), "keepdims": False}),
                Case("masks", lambda rng: (rng.random((4, 2, 3)) < 0.7,), {"axis": (0, 2), "keepdims": False}),
            ),
        )
        for name, f in (("any", torch.any), ("all", torch.all))
    ),
    Twin("softmax", lambda x, axis: torch.softmax(x, axis), _SOFT),
    Twin("log_softmax", lambda x, axis: torch.log_softmax(x, axis), _SOFT),
    Twin("softmax_grad", lambda y, g, axis: aten._softmax_backward_data(g, y, axis, y.dtype), _along(normal, 2)),
    Twin(
        "log_softmax_grad", lambda y, g, axis: aten._log_softmax_backward_data(g, y, axis, y.dtype), _along(normal, 2)
    ),
]


# Cumulative sums and products, recurrences ----------------------------------------------------------------------------

_EDGES = ((2.0, NAN, 1.0, 2.0, INF), (0.0, -0.0, NAN, NAN, -INF), (1.0, 1.0, 1.0, 0.5, 0.5))


def _argsort(x: torch.Tensor, axis: int, descending: bool) -> torch.Tensor:
    return torch.argsort(x, dim=axis, descending=descending, stable=True)


def _recurrence(a: torch.Tensor, b: torch.Tensor, reverse: bool) -> torch.Tensor:
    """By a loop along the last axis."""
    value, found = torch.zeros_like(b[..., 0]), []
    order = range(b.shape[-1])
    for k in reversed(order) if reverse else order:
        value = a[..., k] * value + b[..., k]
        found.append(value)
    return torch.stack(found[::-1] if reverse else found, -1)


TWINS += [
    Twin(
        "cumprod",
        lambda x, axis: torch.cumprod(x, axis),
        (
            *(Case(f"axis {axis}", normal((3, 5, 2)), {"axis": axis}, terms=5) for axis in (0, 1, -1)),
            Case("zeros", fixed([[2.0, 0.0, 3.0], [0.0, 1.5, 0.0]]), {"axis": 1}, terms=3),
            Case("integers", integers(-3, 3, (3, 4)), {"axis": 0}),
        ),
    ),
    Twin(
        "reduce_prod",
        lambda x, axis, keepdims: torch.prod(x, axis, keepdims),
        (
            *(
                Case(f"axis {axis}", normal((3, 5, 2)), {"axis": axis, "keepdims": True}, terms=5)
                for axis in (0, 1, -1)
            ),
            Case("zeros", fixed([[2.0, 0.0, 3.0], [0.0, 1.5, 0.0]]), {"axis": 1, "keepdims": False}, terms=3),
            Case("integers", integers(-3, 3, (3, 4)), {"axis": 0, "keepdims": False}),
        ),
    ),
    Twin(
        "linear_recurrence",
        _recurrence,
        tuple(Case(f"{reverse}", normal((3, 7), (3, 7)), {"reverse": reverse}, terms=7) for reverse in (False, True)),
    ),
    Twin(
        "cumsum",
        lambda x, axis: torch.cumsum(x, axis),
        (
            *(
                Case(f"{shape} axis {axis}", normal(shape), {"axis": axis}, terms=shape[axis])
                for shape in ((7,), (3, 40), (2, 3, 4))
                for axis in range(-1, len(shape))
            ),
            Case("integers", integers(-9, 9, (3, 4)), {"axis": 0}),
            Case("edges", fixed(_EDGES), {"axis": -1}, edge=True),
        ),
    ),
    Twin(
        "argsort",
        _argsort,
        tuple(
            Case(f"{name} {descending}", arrays, {"axis": axis, "descending": descending}, edge=name == "edges")
            for descending in (False, True)
            for name, arrays, axis in (
                ("matrix", normal((5, 70)), -1),
                ("middle", normal((2, 9, 3)), 1),
                ("ties", tied((40, 5)), 0),
                ("integers", integers(-3, 3, (3, 40)), 1),
                ("edges", fixed(_EDGES), -1),
            )
        ),
    ),
]


# Sorting, counting, statistics ----------------------------------------------------------------------------------------

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


TWINS += [
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
