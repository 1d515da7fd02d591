"""Twins: activation functions, and the fused derivative of each, which PyTorch keeps under torch.ops.aten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.parity.twin import EDGES, INF, NAN, SHAPES, Arrays, Case, Twin, fixed, normal

aten = torch.ops.aten

_FAR = (*EDGES, 9.0, -9.0, 30.0, -30.0, 200.0, -200.0)


def _wide(*shapes: tuple[int, ...]) -> Arrays:
    return normal(*shapes, scale=3.0)


def _activation(op: str, twin: Callable[..., Any], edges: Any = EDGES, terms: int = 1, **static: Any) -> Twin:
    cases = tuple(Case(f"{shape}{static or ''}", _wide(shape), static, terms) for shape in SHAPES)
    return Twin(op, twin, (*cases, Case(f"edges{static or ''}", fixed(edges), static, edge=True)))


def _fused(op: str, twin: Callable[..., Any], edges: Any = (0.0, 1.0, -1.0), **static: Any) -> Twin:
    """First operand and cotangent; all but relu's are a sum of two terms. The gradients are second derivatives."""
    cases = tuple(Case(f"{shape}{static or ''}", normal(shape, shape), static, terms=2) for shape in SHAPES)
    ones = (1.0,) * len(edges)
    return Twin(op, twin, (*cases, Case(f"edges{static or ''}", fixed(edges, ones), static, edge=True)))


def _silu_grad(x: torch.Tensor, g: torch.Tensor) -> Any:
    """By way of autograd: aten.silu_backward has no derivative of its own."""
    x = x if x.requires_grad else x.detach().requires_grad_()
    return torch.autograd.grad(functional.silu(x), x, g, create_graph=True)


TWINS: list[Twin] = [
    _activation("relu", torch.relu),
    # Beyond 1e20 the square and cube in PyTorch's derivatives overflow into nan, and so do ours; not compared.
    _activation("silu", functional.silu, (0.0, -0.0, 1.0, 1e-30, 9.0, -9.0, 30.0, -30.0, 200.0, -200.0, NAN)),
    _activation("gelu", functional.gelu, (0.0, -0.0, 1.0, 1e-30, 9.0, -9.0, 30.0, -30.0, NAN), 2, approximate="none"),
    _activation("gelu", functional.gelu, (0.0, -0.0, 1.0, 1e-30, 9.0, -9.0, 30.0, -30.0, NAN), 2, approximate="tanh"),
    _fused("relu_grad", lambda y, g: aten.threshold_backward(g, y, 0.0), (0.0, -0.0, 1.0, -1.0, INF, -INF, NAN)),
    _fused("tanh_grad", lambda y, g: aten.tanh_backward(g, y)),
    _fused("sigmoid_grad", lambda y, g: aten.sigmoid_backward(g, y)),
    _fused("silu_grad", _silu_grad, (0.0, 20.0, -20.0, 80.0, -80.0)),
    _fused(
        "gelu_grad", lambda x, g, approximate: aten.gelu_backward(g, x, approximate=approximate), approximate="none"
    ),
    _fused(
        "gelu_grad", lambda x, g, approximate: aten.gelu_backward(g, x, approximate=approximate), approximate="tanh"
    ),
]
