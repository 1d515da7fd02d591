"""Kernels: optimizer updates, each in one pass over a parameter, its gradient and its state.

Learning rates and bias corrections are read on the device, so nothing waits for them. Muon's time goes into matrix
products, so its decomposition serves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
from ...scalar import update as formulas
from ..buffer import DeviceBuffer
from ..device.interface import Device
from ..language import cuda, device_function, sqrt
from .launches import Entry, Kernel, Types

ZERO, ONE = np.float32(0), np.float32(1)

_decayed = device_function(formulas.decayed())
_sgd = device_function(formulas.sgd())
_momentum = device_function(formulas.momentum())
_nesterov = device_function(formulas.nesterov())
_adagrad = device_function(formulas.adagrad(sqrt))
_rmsprop = device_function(formulas.rmsprop(sqrt))
_adadelta = device_function(formulas.adadelta(sqrt))
_adam = device_function(formulas.adam(sqrt))

# In all of them p, g and the state are read and their new values written; `decay` is the weight decay, 0 for none.


def sgd_kernel(count: Any, new_p: Any, p: Any, g: Any, lr: Any, decay: Any) -> None:
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        new_p[i] = _sgd(p[i], _decayed(p[i], g[i], decay) if decay != ZERO else g[i], lr[0])


def momentum_kernel(
    count: Any, new_p: Any, new_velocity: Any, p: Any, g: Any, velocity: Any, lr: Any, decay: Any, rate: Any
) -> None:
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        slope = _decayed(p[i], g[i], decay) if decay != ZERO else g[i]
        new_p[i], new_velocity[i] = _momentum(p[i], slope, velocity[i], lr[0], rate)


def nesterov_kernel(
    count: Any, new_p: Any, new_velocity: Any, p: Any, g: Any, velocity: Any, lr: Any, decay: Any, rate: Any
) -> None:
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        slope = _decayed(p[i], g[i], decay) if decay != ZERO else g[i]
        new_p[i], new_velocity[i] = _nesterov(p[i], slope, velocity[i], lr[0], rate)


def adagrad_kernel(
    count: Any, new_p: Any, new_total: Any, p: Any, g: Any, total: Any, lr: Any, decay: Any, eps: Any
) -> None:
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        slope = _decayed(p[i], g[i], decay) if decay != ZERO else g[i]
        new_p[i], new_total[i] = _adagrad(p[i], slope, total[i], lr[0], eps)


def rmsprop_kernel(
    count: Any,
    new_p: Any,
    new_square: Any,
    p: Any,
    g: Any,
    square: Any,
    lr: Any,
    decay: Any,
    rate: Any,
    rest: Any,
    eps: Any,
) -> None:
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        slope = _decayed(p[i], g[i], decay) if decay != ZERO else g[i]
        new_p[i], new_square[i] = _rmsprop(p[i], slope, square[i], lr[0], rate, rest, eps)


def adadelta_kernel(
    count: Any,
    new_p: Any,
    new_square: Any,
    new_delta: Any,
    p: Any,
    g: Any,
    square: Any,
    delta: Any,
    lr: Any,
    decay: Any,
    rate: Any,
    rest: Any,
    eps: Any,
) -> None:
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        slope = _decayed(p[i], g[i], decay) if decay != ZERO else g[i]
        new_p[i], new_square[i], new_delta[i] = _adadelta(p[i], slope, square[i], delta[i], lr[0], rate, rest, eps)


def adam_kernel(
    count: Any,
    new_p: Any,
    new_m: Any,
    new_v: Any,
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    lr: Any,
    c1: Any,
    c2: Any,
    decay: Any,
    shrinkage: Any,
    beta1: Any,
    a1: Any,
    beta2: Any,
    a2: Any,
    eps: Any,
) -> None:
    """`decay` is added to the gradient; `shrinkage` is AdamW's, by which p shrinks beforehand."""
    root = sqrt(c2[0])
    rate, floor = lr[0] * root / c1[0], root * eps
    shrink = ONE - lr[0] * shrinkage if shrinkage != ZERO else ONE
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        slope = _decayed(p[i], g[i], decay) if decay != ZERO else g[i]
        new_p[i], new_m[i], new_v[i] = _adam(p[i], slope, m[i], v[i], shrink, rate, floor, beta1, a1, beta2, a2)


def _updated(device: Device, kernel: Kernel, types: Types, operands: Any, *numbers: float) -> tuple[DeviceBuffer, ...]:
    new = tuple(map(device.empty, types))
    device.each(kernel, new[0].size, *new, *operands, *map(np.float32, map(float, numbers)))
    return new


def sgd(device: Device, types: Types, *operands: DeviceBuffer, weight_decay: float) -> Any:
    return _updated(device, sgd_kernel, types, operands, weight_decay)


def momentum(
    device: Device, types: Types, *operands: DeviceBuffer, momentum: float, nesterov: bool, weight_decay: float
) -> Any:
    kernel = nesterov_kernel if nesterov else momentum_kernel
    return _updated(device, kernel, types, operands, weight_decay, momentum)


def adagrad(device: Device, types: Types, *operands: DeviceBuffer, eps: float, weight_decay: float) -> Any:
    return _updated(device, adagrad_kernel, types, operands, weight_decay, eps)


def rmsprop(
    device: Device, types: Types, *operands: DeviceBuffer, alpha: float, eps: float, weight_decay: float
) -> Any:
    return _updated(device, rmsprop_kernel, types, operands, weight_decay, alpha, 1 - alpha, eps)


def adadelta(device: Device, types: Types, *operands: DeviceBuffer, rho: float, eps: float, weight_decay: float) -> Any:
    return _updated(device, adadelta_kernel, types, operands, weight_decay, rho, 1 - rho, eps)


def adam(
    device: Device,
    types: Types,
    *operands: DeviceBuffer,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> Any:
    numbers = weight_decay, 0.0, beta1, 1 - beta1, beta2, 1 - beta2, eps
    return _updated(device, adam_kernel, types, operands, *numbers)


def adamw(
    device: Device,
    types: Types,
    *operands: DeviceBuffer,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> Any:
    numbers = 0.0, weight_decay, beta1, 1 - beta1, beta2, 1 - beta2, eps
    return _updated(device, adam_kernel, types, operands, *numbers)


KERNELS: dict[Primitive, Entry] = {
    SGD_UPDATE: sgd,
    MOMENTUM_UPDATE: momentum,
    ADAGRAD_UPDATE: adagrad,
    RMSPROP_UPDATE: rmsprop,
    ADADELTA_UPDATE: adadelta,
    ADAM_UPDATE: adam,
    ADAMW_UPDATE: adamw,
}
