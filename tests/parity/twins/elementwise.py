"""Twins: arithmetic and functions of one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.parity.twin import EDGES, INF, NAN, SHAPES, Arrays, Case, Twin, fixed, integers, normal, tied, uniform

Function = Callable[..., Any]

_PAIRS = np.array(np.meshgrid(EDGES, EDGES)).reshape(2, -1)
_BROADCAST = (((3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 3)), ((2, 1, 3), (4, 1)), ((1,), (0, 3)), ((5,), ()))


def _shaped(arrays: Callable[..., Arrays], **static: Any) -> tuple[Case, ...]:
    return tuple(Case(f"{shape}", arrays(shape), static) for shape in SHAPES)


def _binary(op: str, twin: Function, infix: Function | None, *, divides: bool = False) -> list[Twin]:
    """The named op on equal shapes, and infix on shapes that broadcast."""
    arrays: Callable[..., Arrays] = (lambda *s: uniform(0.5, 2.0, *s)) if divides else normal
    cases = (
        *(Case(f"{shape}", arrays(shape, shape)) for shape in SHAPES),
        Case("edges", fixed(*_PAIRS), edge=True),
        Case("ties", tied((4, 5), (4, 5)), edge=True),
        *(() if divides else (Case("integers", integers(-9, 9, (3, 4), (3, 4))),)),
    )
    broadcast = tuple(Case(f"infix {a} {b}", arrays(a, b), terms=6) for a, b in _BROADCAST)
    twins = [Twin(op, twin, cases)]
    return twins if infix is None else [*twins, Twin(op, infix, broadcast, call=lambda ops, x, y: infix(x, y))]


def _scalars(op: str, infix: Function) -> Twin:
    """Infix with Python's numbers."""
    cases = tuple(Case(f"number {c}", uniform(0.5, 2.0, (3, 4)), {"c": c}) for c in (2, -0.3, 1e-3, 7.0))
    return Twin(op, infix, cases, call=lambda ops, x, c: infix(x, c))


def _unary(op: str, twin: Function, arrays: Callable[..., Arrays] = normal, edges: Any = EDGES, **static: Any) -> Twin:
    cases = (*_shaped(arrays, **static), Case("edges", fixed(edges), static, edge=True))
    return Twin(op, twin, cases)


def _positive(*shapes: tuple[int, ...]) -> Arrays:
    return uniform(0.1, 9.0, *shapes)


def _wide(*shapes: tuple[int, ...]) -> Arrays:
    return normal(*shapes, scale=4.0)


_FAR = (*tuple(float(x) for x in np.linspace(-110, 110, 45)), 0.0, INF, -INF, NAN)
_POWERS = (2, 3, 1, 0, -1, -2, 0.5, 1.5, -0.5, 1 / 3, 7)
_NEAR_ZERO = (0.0, -0.0, 2.0, -2.0, 0.25, -0.25, 1e-5, 100.0, INF, -INF, NAN)


def _powers() -> tuple[Case, ...]:
    spread = tuple(Case(f"to {e:.2g}", _positive((3, 4)), {"exponent": e}) for e in _POWERS)
    negative = tuple(Case(f"negative to {e}", normal((3, 4)), {"exponent": e}) for e in (2, 3, 1, 0, -1, -2, 7))
    edges = tuple(Case(f"edges to {e:.2g}", fixed(_NEAR_ZERO), {"exponent": e}, edge=True) for e in _POWERS)
    return (*spread, *negative, *edges)


def _clamps() -> tuple[Case, ...]:
    bounds = {"lo": -0.5, "hi": 1.0}
    return (
        *_shaped(normal, **bounds),
        Case("edges", fixed(EDGES), bounds, edge=True),
        Case("one point", fixed(EDGES), {"lo": 0.5, "hi": 0.5}, edge=True),
        Case("crossed bounds", fixed(EDGES), {"lo": 1.0, "hi": -0.5}, edge=True),
        Case("no upper bound", fixed(EDGES), {"lo": 0.0, "hi": INF}, edge=True),
    )


_HALVES = (-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 3.2, 1e9, INF, -INF, NAN)


def _apart(*shapes: tuple[int, ...]) -> Arrays:
    """Away from whole numbers."""
    return uniform(0.1, 0.9, *shapes)


def _whole(op: str, twin: Function) -> Twin:
    return Twin(op, twin, (*_shaped(_apart), Case("halves", fixed(_HALVES), edge=True)))


def _of_integers(op: str, twin: Function, low: int = -9) -> Twin:
    return Twin(op, twin, (Case("integers", integers(low, 9, (3, 4), (3, 4))),))


_ROUNDING = [
    Twin("power", torch.pow, (*(Case(f"{s}", uniform(0.5, 2.0, s, s)) for s in SHAPES),)),
    _whole("floor", torch.floor),
    _whole("ceil", torch.ceil),
    _whole("trunc", torch.trunc),
    _whole("round", torch.round),
    Twin("sign", torch.sign, (*_shaped(_apart), Case("numbers", fixed(_HALVES[:-1]), edge=True))),  # of nan it has 0
    Twin("mod", torch.remainder, (*(Case(f"{s}", uniform(0.5, 2.0, s, s)) for s in SHAPES),)),
    Twin("fmod", torch.fmod, (*(Case(f"{s}", uniform(0.5, 2.0, s, s)) for s in SHAPES),)),
    Twin(
        "floor_divide",
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        (*(Case(f"{s}", uniform(0.5, 2.0, s, s)) for s in SHAPES),),
    ),
    _of_integers("bitwise_and", torch.bitwise_and),
    _of_integers("bitwise_or", torch.bitwise_or),
    _of_integers("bitwise_xor", torch.bitwise_xor),
    _of_integers("left_shift", torch.bitwise_left_shift, 0),
    _of_integers("right_shift", torch.bitwise_right_shift, 0),
]

TWINS: list[Twin] = [
    *_ROUNDING,
    *_binary("add", torch.add, lambda x, y: x + y),
    *_binary("sub", torch.sub, lambda x, y: x - y),
    *_binary("mul", torch.mul, lambda x, y: x * y),
    *_binary("div", torch.div, lambda x, y: x / y, divides=True),
    *_binary("maximum", torch.maximum, None),
    *_binary("minimum", torch.minimum, None),
    _scalars("add", lambda x, c: x + c),
    _scalars("add", lambda x, c: c + x),
    _scalars("sub", lambda x, c: x - c),
    _scalars("sub", lambda x, c: c - x),
    _scalars("mul", lambda x, c: x * c),
    _scalars("mul", lambda x, c: c * x),
    _scalars("div", lambda x, c: x / c),
    _scalars("div", lambda x, c: c / x),
    _scalars("pow", lambda x, c: x**c),
    _unary("reciprocal", torch.reciprocal, _positive),
    _unary("square", torch.square),
    _unary("rsqrt", torch.rsqrt, _positive, (0.0, 0.25, 1e30, -1.0, NAN)),
    _unary("neg", torch.neg),
    _unary("scale", lambda x, c: x * c, c=0.3),
    _unary("abs", torch.abs),
    _unary("sqrt", torch.sqrt, _positive),
    _unary("exp", torch.exp),
    _unary("log", torch.log, _positive),
    _unary("inv", torch.reciprocal, _positive),
    _unary("sin", torch.sin, _wide, edges=(0.0, -0.0, 1e-30, 1e4, -1e4, INF, NAN)),
    _unary("cos", torch.cos, _wide, edges=(0.0, -0.0, 1e-30, 1e4, -1e4, INF, NAN)),
    _unary("tanh", torch.tanh, lambda *s: normal(*s, scale=1.5), edges=_FAR),
    _unary("sigmoid", torch.sigmoid, _wide, edges=_FAR),
    # PyTorch gives x itself above `threshold`, by default 20, where log(1 + e^-x) is still 2e-9; at 50 it is nothing.
    _unary("softplus", lambda x: functional.softplus(x, threshold=50), _wide, edges=_FAR),
    _unary("erf", torch.erf, _wide),
    Twin("pow", lambda x, exponent: torch.pow(x, exponent), _powers()),
    Twin("clamp", lambda x, lo, hi: torch.clamp(x, lo, hi), _clamps()),
    _unary("safe_log", lambda x, eps: torch.log(torch.clamp(x, min=eps)), _positive, eps=0.5),
]
