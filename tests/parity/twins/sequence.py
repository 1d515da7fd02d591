"""Twins: cumulative sums and products, recurrences, and the order of sorted elements."""

from __future__ import annotations

import torch

from tests.parity.twin import INF, NAN, Case, Twin, fixed, integers, normal, tied

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


TWINS: list[Twin] = [
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
