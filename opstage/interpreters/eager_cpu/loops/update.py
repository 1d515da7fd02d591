"""Optimizer updates in one pass over a parameter, its gradient and its state. No operation is taken out of order."""

from __future__ import annotations

import math
from typing import Any

from ...host import Array
from ...scalar import update
from .jit import Function, inlined, loop


@inlined()
def _adagrad(real: Any) -> Function:
    return update.adagrad(math.sqrt)


@inlined()
def _rmsprop(real: Any) -> Function:
    return update.rmsprop(math.sqrt)


@inlined()
def _adadelta(real: Any) -> Function:
    return update.adadelta(math.sqrt)


@inlined()
def _adam(real: Any) -> Function:
    return update.adam(math.sqrt)


@loop(results=2)
def adagrad(p: Array, g: Array, total: Array, lr: Any, eps: float, new_p: Array, new_total: Array) -> None:
    e = p.dtype.type(eps)
    for i in range(p.size):
        new_p[i], new_total[i] = _adagrad(p[i], g[i], total[i], lr, e)


@loop(results=2)
def rmsprop(
    p: Array, g: Array, square: Array, lr: Any, alpha: float, eps: float, new_p: Array, new_square: Array
) -> None:
    real = p.dtype.type
    rate, a, e = real(alpha), real(1 - alpha), real(eps)
    for i in range(p.size):
        new_p[i], new_square[i] = _rmsprop(p[i], g[i], square[i], lr, rate, a, e)


@loop(results=3)
def adadelta(
    p: Array,
    g: Array,
    square: Array,
    delta: Array,
    lr: Any,
    rho: float,
    eps: float,
    new_p: Array,
    new_square: Array,
    new_delta: Array,
) -> None:
    real = p.dtype.type
    rate, a, e = real(rho), real(1 - rho), real(eps)
    for i in range(p.size):
        new_p[i], new_square[i], new_delta[i] = _adadelta(p[i], g[i], square[i], delta[i], lr, rate, a, e)


@loop(results=3)
def adam(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    lr: Any,
    c1: Any,
    c2: Any,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    new_p: Array,
    new_m: Array,
    new_v: Array,
) -> None:
    """`decay` is AdamW's, which shrinks p beforehand; a product with 1 changes no bit."""
    real = p.dtype.type
    b1, a1, b2, a2 = real(beta1), real(1 - beta1), real(beta2), real(1 - beta2)
    root = real(math.sqrt(c2))
    rate, floor = lr * root / c1, root * real(eps)
    shrink = real(1) - lr * real(decay) if decay != 0 else real(1)
    for i in range(p.size):
        new_p[i], new_m[i], new_v[i] = _adam(p[i], g[i], m[i], v[i], shrink, rate, floor, b1, a1, b2, a2)
