"""Twins: activation functions, and the fused derivative of each, which PyTorch keeps under torch.ops.aten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.parity.twin import EDGES, INF, NAN, SHAPES, Arrays, Case, Twin, fixed, normal

aten = torch.ops.aten

_FINITE = tuple(x for x in EDGES if abs(x) < 10)
# The derivatives of elu, selu and hardswish are numbers at nan in PyTorch; ours are nan.
_NUMBERS = EDGES[:-1]
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


def _celu(x: torch.Tensor, alpha: float) -> torch.Tensor:
    """PyTorch's own rounds alpha to float32, as its hardsigmoid does 1/6."""
    return torch.where(x > 0, x, alpha * torch.expm1(torch.clamp(x, max=0) / alpha))


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
    _activation("leaky_relu", lambda x, negative_slope: functional.leaky_relu(x, negative_slope), negative_slope=0.2),
    _activation("elu", lambda x, alpha: functional.elu(x, alpha), _NUMBERS, alpha=1.3),
    _activation("selu", functional.selu, _NUMBERS),
    _activation("celu", _celu, _NUMBERS, alpha=0.7),
    _activation("hardtanh", lambda x, lo, hi: functional.hardtanh(x, lo, hi), lo=-0.5, hi=1.0),
    _activation("relu6", functional.relu6, edges=(*EDGES, 6.0)),
    _activation("hardsigmoid", lambda x: functional.relu6(x + 3) / 6, edges=(*EDGES, 3.0, -3.0)),
    _activation("hardswish", functional.hardswish, edges=(*_FINITE, 2.9, -2.9)),
    _activation("mish", functional.mish, edges=(*_FINITE, 9.0, -9.0, NAN)),
    _activation("log_sigmoid", functional.logsigmoid, edges=_FAR),
    _activation("softsign", functional.softsign, edges=_FINITE),
    _activation("tanhshrink", functional.tanhshrink, terms=2),
    _activation("hardshrink", lambda x, width: functional.hardshrink(x, width), width=0.5),
    _activation("softshrink", lambda x, width: functional.softshrink(x, width), width=0.5),
    _activation(
        "threshold", lambda x, threshold, value: functional.threshold(x, threshold, value), threshold=0.5, value=7.0
    ),
]
