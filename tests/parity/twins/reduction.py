"""Twins: reductions along axes, and the normalised exponentials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.parity.twin import INF, NAN, Case, Twin, fixed, integers, normal, tied

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
