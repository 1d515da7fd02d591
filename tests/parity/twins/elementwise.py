"""Twins: arithmetic, functions of one element, activations, masks and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.parity.twin import (
    EDGES,
    INF,
    NAN,
    SHAPES,
    Arrays,
    Case,
    Twin,
    both,
    fixed,
    integers,
    masks,
    normal,
    tied,
    uniform,
)

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


# Powers, logarithms, trigonometric and hyperbolic functions -----------------------------------------------------------

_NEAR = (0.0, -0.0, 1e-10, -1e-10, 0.3, -0.3, 2.0, -2.0, 40.0, -40.0, INF, -INF, NAN)
_POSITIVE = (0.0, -0.0, 0.25, 8.0, 1000.0, 1e-30, 1e30, -1.0, INF, -INF, NAN)
_INSIDE = (0.0, -0.0, 1e-10, 0.5, -0.5, 0.9, -0.9, 1.0, -1.0, 2.0, -2.0, INF, -INF, NAN)
# Below -1, where acosh is nan, PyTorch has a number for its derivative; ours is nan too.
_GREAT = (1.0, 1.5, 40.0, 1e30, 0.5, INF, NAN)


def _of_one(op: str, twin: Callable[..., Any], arrays: Callable[..., Arrays] = normal, edges: Any = _NEAR) -> Twin:
    cases = (*(Case(f"{shape}", arrays(shape)) for shape in SHAPES), Case("edges", fixed(edges), edge=True))
    return Twin(op, twin, cases)


def _inside(*shapes: tuple[int, ...]) -> Arrays:
    return uniform(-0.95, 0.95, *shapes)


def _above_one(*shapes: tuple[int, ...]) -> Arrays:
    return uniform(1.1, 9.0, *shapes)


_SIGNS = (1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 4.0, -4.0)

TWINS += [
    _of_one("expm1", torch.expm1),
    _of_one("log1p", torch.log1p, _positive, (*_POSITIVE, 1e-10, -1e-10, -0.5)),
    _of_one("exp2", torch.exp2),
    _of_one("log2", torch.log2, _positive, _POSITIVE),
    _of_one("log10", torch.log10, _positive, _POSITIVE),
    _of_one("tan", torch.tan, _inside),
    _of_one("asin", torch.asin, _inside, _INSIDE),
    _of_one("acos", torch.acos, _inside, _INSIDE),
    _of_one("atan", torch.atan, edges=_NEAR),
    _of_one("sinh", torch.sinh),
    _of_one("cosh", torch.cosh),
    _of_one("asinh", torch.asinh, edges=_NEAR),
    _of_one("acosh", torch.acosh, _above_one, _GREAT),
    _of_one("atanh", torch.atanh, _inside, _INSIDE),
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


# Activations, and the fused derivative of each ------------------------------------------------------------------------

aten = torch.ops.aten

_FINITE = tuple(x for x in EDGES if abs(x) < 10)
# The derivatives of elu, selu and hardswish are numbers at nan in PyTorch; ours are nan.
_NUMBERS = EDGES[:-1]
_TAILS = (*EDGES, 9.0, -9.0, 30.0, -30.0, 200.0, -200.0)


def _spread(*shapes: tuple[int, ...]) -> Arrays:
    return normal(*shapes, scale=3.0)


def _activation(op: str, twin: Callable[..., Any], edges: Any = EDGES, terms: int = 1, **static: Any) -> Twin:
    cases = tuple(Case(f"{shape}{static or ''}", _spread(shape), static, terms) for shape in SHAPES)
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


TWINS += [
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
    _activation("log_sigmoid", functional.logsigmoid, edges=_TAILS),
    _activation("softsign", functional.softsign, edges=_FINITE),
    _activation("tanhshrink", functional.tanhshrink, terms=2),
    _activation("hardshrink", lambda x, width: functional.hardshrink(x, width), width=0.5),
    _activation("softshrink", lambda x, width: functional.softshrink(x, width), width=0.5),
    _activation(
        "threshold", lambda x, threshold, value: functional.threshold(x, threshold, value), threshold=0.5, value=7.0
    ),
]


# Masks, dtypes, the end of gradients, tensors made from nothing -------------------------------------------------------

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

TWINS += [
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
