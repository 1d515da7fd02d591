"""Twins: powers, logarithms, and trigonometric and hyperbolic functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.parity.twin import INF, NAN, SHAPES, Arrays, Case, Twin, fixed, normal, uniform

_NEAR = (0.0, -0.0, 1e-10, -1e-10, 0.3, -0.3, 2.0, -2.0, 40.0, -40.0, INF, -INF, NAN)
_POSITIVE = (0.0, -0.0, 0.25, 8.0, 1000.0, 1e-30, 1e30, -1.0, INF, -INF, NAN)
_INSIDE = (0.0, -0.0, 1e-10, 0.5, -0.5, 0.9, -0.9, 1.0, -1.0, 2.0, -2.0, INF, -INF, NAN)
# Below -1, where acosh is nan, PyTorch has a number for its derivative; ours is nan too.
_GREAT = (1.0, 1.5, 40.0, 1e30, 0.5, INF, NAN)


def _unary(op: str, twin: Callable[..., Any], arrays: Callable[..., Arrays] = normal, edges: Any = _NEAR) -> Twin:
    cases = (*(Case(f"{shape}", arrays(shape)) for shape in SHAPES), Case("edges", fixed(edges), edge=True))
    return Twin(op, twin, cases)


def _positive(*shapes: tuple[int, ...]) -> Arrays:
    return uniform(0.1, 9.0, *shapes)


def _inside(*shapes: tuple[int, ...]) -> Arrays:
    return uniform(-0.95, 0.95, *shapes)


def _above_one(*shapes: tuple[int, ...]) -> Arrays:
    return uniform(1.1, 9.0, *shapes)


_SIGNS = (1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 4.0, -4.0)

TWINS: list[Twin] = [
    _unary("expm1", torch.expm1),
    _unary("log1p", torch.log1p, _positive, (*_POSITIVE, 1e-10, -1e-10, -0.5)),
    _unary("exp2", torch.exp2),
    _unary("log2", torch.log2, _positive, _POSITIVE),
    _unary("log10", torch.log10, _positive, _POSITIVE),
    _unary("tan", torch.tan, _inside),
    _unary("asin", torch.asin, _inside, _INSIDE),
    _unary("acos", torch.acos, _inside, _INSIDE),
    _unary("atan", torch.atan, edges=_NEAR),
    _unary("sinh", torch.sinh),
    _unary("cosh", torch.cosh),
    _unary("asinh", torch.asinh, edges=_NEAR),
    _unary("acosh", torch.acosh, _above_one, _GREAT),
    _unary("atanh", torch.atanh, _inside, _INSIDE),
    Twin(
        "atan2",
        torch.atan2,
        (
            *(Case(f"{shape}", normal(shape, shape)) for shape in SHAPES),
            Case("quadrants", fixed(_SIGNS, _SIGNS[::-1]), edge=True),
            Case("axes", fixed((1.0, -1.0, 0.0, 0.0, -0.0), (0.0, 0.0, 1.0, -1.0, -1.0)), edge=True),
        ),
    ),
]
