"""Kernels: optimizer updates, with one or two buffers in place of a result per operation.

Each repeats its decomposition operation by operation, so the bits are the same. Muon's time goes into matrix products,
so its decomposition serves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.update import (
    ADADELTA_UPDATE,
    ADAGRAD_UPDATE,
    ADAM_UPDATE,
    ADAMW_UPDATE,
    MOMENTUM_UPDATE,
    RMSPROP_UPDATE,
    SGD_UPDATE,
)
from ....ops.primitive import Primitive
from ..loops import update as loops
from ..loops.jit import Loop, flat

Array = npt.NDArray[Any]


def _decayed(p: Array, g: Array, weight_decay: float) -> Array:
    """g + weight_decay·p."""
    if not weight_decay:
        return g
    out = np.multiply(p, weight_decay, out=np.empty_like(p))
    return np.add(g, out, out=out)


def _average(average: Array, x: Array, rate: float, spare: Array) -> Array:
    """rate · average + (1 - rate) · x, a new array; `spare` is overwritten, and may be x."""
    out = np.multiply(average, rate, out=np.empty_like(average))
    return np.add(out, np.multiply(x, 1 - rate, out=spare), out=out)


def _moved(p: Array, step: Array, rate: Array) -> Array:
    """p - rate·step, in place of step."""
    np.multiply(step, rate, out=step)
    return np.subtract(p, step, out=step)


def _over_root(g: Array, square: Array, eps: float | Array, out: Array) -> Array:
    """g / (√square + eps)."""
    np.sqrt(square, out=out)
    np.add(out, eps, out=out)
    return np.divide(g, out, out=out)


def sgd(p: Array, g: Array, lr: Array, weight_decay: float) -> Array:
    g = _decayed(p, g, weight_decay)
    out = np.multiply(g, lr, out=np.empty_like(p))
    return np.subtract(p, out, out=out)


def momentum(
    p: Array, g: Array, velocity: Array, lr: Array, momentum: float, nesterov: bool, weight_decay: float
) -> tuple[Array, Array]:
    g = _decayed(p, g, weight_decay)
    velocity = np.multiply(velocity, momentum, out=np.empty_like(p))
    np.add(velocity, g, out=velocity)
    step = np.empty_like(p)
    if nesterov:
        np.multiply(velocity, momentum, out=step)
        np.add(g, step, out=step)
        return _moved(p, step, lr), velocity
    np.multiply(velocity, lr, out=step)
    return np.subtract(p, step, out=step), velocity


def adagrad(p: Array, g: Array, total: Array, lr: Array, eps: float, weight_decay: float) -> tuple[Array, Array]:
    g = _decayed(p, g, weight_decay)
    square = np.multiply(g, g, out=np.empty_like(p))
    new_total = np.add(total, square, out=np.empty_like(p))
    return _moved(p, _over_root(g, new_total, eps, square), lr), new_total


def rmsprop(
    p: Array, g: Array, square: Array, lr: Array, alpha: float, eps: float, weight_decay: float
) -> tuple[Array, Array]:
    g = _decayed(p, g, weight_decay)
    spare = np.multiply(g, g, out=np.empty_like(p))
    square = _average(square, spare, alpha, spare)
    return _moved(p, _over_root(g, square, eps, spare), lr), square


def adadelta(
    p: Array, g: Array, square: Array, delta: Array, lr: Array, rho: float, eps: float, weight_decay: float
) -> tuple[Array, Array, Array]:
    g = _decayed(p, g, weight_decay)
    spare = np.multiply(g, g, out=np.empty_like(p))
    square = _average(square, spare, rho, spare)
    step = np.add(delta, eps, out=np.empty_like(p))
    np.sqrt(step, out=step)
    np.add(square, eps, out=spare)
    np.sqrt(spare, out=spare)
    np.divide(step, spare, out=step)
    np.multiply(step, g, out=step)
    np.multiply(step, step, out=spare)
    delta = _average(delta, spare, rho, spare)
    return _moved(p, step, lr), square, delta


def _adam_step(
    p: Array, g: Array, m: Array, v: Array, lr: Array, c1: Array, c2: Array, beta1: float, beta2: float, eps: float
) -> tuple[Array, Array, Array]:
    spare = np.empty_like(p)
    m = _average(m, g, beta1, spare)
    np.multiply(g, g, out=spare)
    v = _average(v, spare, beta2, spare)
    root = np.sqrt(c2)
    rate = np.divide(np.multiply(lr, root), c1)
    return _moved(p, _over_root(m, v, np.multiply(root, eps), spare), rate), m, v


def adam(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    lr: Array,
    c1: Array,
    c2: Array,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Array, Array, Array]:
    return _adam_step(p, _decayed(p, g, weight_decay), m, v, lr, c1, c2, beta1, beta2, eps)


def adamw(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    lr: Array,
    c1: Array,
    c2: Array,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Array, Array, Array]:
    if weight_decay:
        p = np.multiply(p, np.subtract(1, np.multiply(lr, weight_decay)), out=np.empty_like(p))
    return _adam_step(p, g, m, v, lr, c1, c2, beta1, beta2, eps)


KERNELS: dict[Primitive, Callable[..., Any]] = {
    SGD_UPDATE: sgd,
    MOMENTUM_UPDATE: momentum,
    ADAGRAD_UPDATE: adagrad,
    RMSPROP_UPDATE: rmsprop,
    ADAM_UPDATE: adam,
    ADAMW_UPDATE: adamw,
    ADADELTA_UPDATE: adadelta,
}


def _written(loop: Loop, p: Array, operands: tuple[Array, ...], *numbers: Any) -> tuple[Array, ...]:
    """The new p and state that `loop` computes of p and `operands`, all of one shape."""
    out = tuple([np.empty(p.shape, p.dtype) for _ in range(len(operands))])
    loop(flat(p), *[flat(x) for x in operands], *numbers, *[x.reshape(-1) for x in out])
    return out


def fast_adagrad(p: Array, g: Array, total: Array, lr: Array, eps: float, weight_decay: float) -> tuple[Array, ...]:
    return _written(loops.adagrad, p, (_decayed(p, g, weight_decay), total), lr[()], float(eps))


def fast_rmsprop(
    p: Array, g: Array, square: Array, lr: Array, alpha: float, eps: float, weight_decay: float
) -> tuple[Array, ...]:
    return _written(loops.rmsprop, p, (_decayed(p, g, weight_decay), square), lr[()], float(alpha), float(eps))


def fast_adadelta(
    p: Array, g: Array, square: Array, delta: Array, lr: Array, rho: float, eps: float, weight_decay: float
) -> tuple[Array, ...]:
    operands = (_decayed(p, g, weight_decay), square, delta)
    return _written(loops.adadelta, p, operands, lr[()], float(rho), float(eps))


def fast_adam(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    lr: Array,
    c1: Array,
    c2: Array,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Array, ...]:
    return fast_adamw(p, _decayed(p, g, weight_decay), m, v, lr, c1, c2, beta1, beta2, eps, 0.0)


def fast_adamw(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    lr: Array,
    c1: Array,
    c2: Array,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Array, ...]:
    numbers = (lr[()], c1[()], c2[()], float(beta1), float(beta2), float(eps), float(weight_decay))
    return _written(loops.adam, p, (g, m, v), *numbers)


FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    ADAGRAD_UPDATE: fast_adagrad,
    RMSPROP_UPDATE: fast_rmsprop,
    ADAM_UPDATE: fast_adam,
    ADAMW_UPDATE: fast_adamw,
    ADADELTA_UPDATE: fast_adadelta,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
