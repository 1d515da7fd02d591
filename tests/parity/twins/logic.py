"""Twins: masks, dtypes, the gradient's end, and tensors made from nothing."""

from __future__ import annotations

from typing import Any

import torch

from tests.parity.twin import EDGES, INF, NAN, SHAPES, Case, Twin, both, fixed, integers, masks, normal, tied

_TIES = (1.0, 0.0, -0.0, INF, -INF, NAN, 2.0), (1.0, -0.0, 0.0, INF, INF, NAN, NAN)
_COMPARISONS = (
    *(Case(f"{shape}", tied(shape, shape)) for shape in SHAPES),
    Case("integers", integers(-2, 3, (4, 5), (4, 5))),
    Case("edges", fixed(*_TIES), edge=True),
)
_INFIX = tuple(Case(f"infix {a} {b}", tied(a, b)) for a, b in (((3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 3))))


def _made_like(x: torch.Tensor, shape: Any, axis: int) -> torch.Tensor:
    view = [1] * len(shape)
    view[axis] = shape[axis]
    return torch.arange(shape[axis]).reshape(view).expand(shape)


def _from_nothing(arrays: Any = None) -> Any:
    return normal(())  # an operand that the op does not read: it tells PyTorch the dtype


_SPECIAL = (Case("edges", fixed(EDGES)), Case("integers", integers(-3, 3, (4,))))

TWINS: list[Twin] = [
    Twin("less", torch.lt, _COMPARISONS),
    Twin("less_equal", torch.le, _COMPARISONS),
    Twin("equal", torch.eq, _COMPARISONS),
    Twin("less", lambda x, y: x < y, _INFIX, call=lambda ops, x, y: x < y),
    Twin("less", lambda x, y: x > y, _INFIX, call=lambda ops, x, y: x > y),
    Twin("less_equal", lambda x, y: x <= y, _INFIX, call=lambda ops, x, y: x <= y),
    Twin("less_equal", lambda x, y: x >= y, _INFIX, call=lambda ops, x, y: x >= y),
    Twin("logical_and", torch.logical_and, tuple(Case(f"{shape}", masks(shape, shape)) for shape in SHAPES)),
    Twin("logical_or", torch.logical_or, tuple(Case(f"{shape}", masks(shape, shape)) for shape in SHAPES)),
    Twin("logical_xor", torch.logical_xor, tuple(Case(f"{shape}", masks(shape, shape)) for shape in SHAPES)),
    Twin("isnan", torch.isnan, _SPECIAL),
    Twin("isinf", torch.isinf, _SPECIAL),
    Twin("isfinite", torch.isfinite, _SPECIAL),
    Twin("logical_not", torch.logical_not, tuple(Case(f"{shape}", masks(shape)) for shape in SHAPES)),
    Twin(
        "select",
        torch.where,
        (
            *(Case(f"{shape}", both(masks(shape), normal(shape, shape))) for shape in SHAPES),
            Case("edges", fixed([True, False, True, False], [1.0, NAN, INF, INF], [NAN, 1.0, NAN, -INF]), edge=True),
            Case("integers", both(masks((3, 4)), integers(-9, 9, (3, 4), (3, 4)))),
        ),
    ),
    Twin(
        "cast",
        lambda x, dtype: x.to(getattr(torch, dtype)),
        (
            *(Case(f"to {dtype}", normal((3, 4), scale=9.0), {"dtype": dtype}) for dtype in ("int64", "int32", "bool")),
            *(Case(f"integers to {d}", integers(-9, 9, (3, 4)), {"dtype": d}) for d in ("float32", "float64", "bool")),
            *(Case(f"masks to {d}", masks((3, 4)), {"dtype": d}) for d in ("float32", "float64", "int64")),
        ),
    ),
    Twin(
        "cast",
        lambda x, dtype: x.to(getattr(torch, dtype)).to(x.dtype),
        tuple(Case(f"by way of {d}", normal((3, 4)), {"dtype": d}) for d in ("float32", "float64")),
        call=lambda ops, x, dtype: ops.cast(ops.cast(x, dtype=dtype), dtype=ops.dtype),
    ),
    Twin("detach", torch.Tensor.detach, tuple(Case(f"{shape}", normal(shape)) for shape in SHAPES)),
    Twin(
        "full",
        lambda x, shape, value: torch.full(shape, value, dtype=x.dtype),
        tuple(Case(f"{shape}", _from_nothing(), {"shape": shape, "value": 0.1}) for shape in SHAPES),
        call=lambda ops, x, shape, value: ops.full(shape=shape, value=value),
    ),
    Twin(
        "iota",
        _made_like,
        tuple(
            Case(f"{shape} axis {axis}", _from_nothing(), {"shape": shape, "axis": axis})
            for shape in SHAPES
            for axis in range(-len(shape), len(shape))
        ),
        call=lambda ops, x, shape, axis: ops.iota(shape=shape, axis=axis),
    ),
]
