"""Kernels: optimizer updates, each in one pass over parameters, their gradients and their state.

Updates are put off, and one launch does those of all parameters of a step. Their pointers stand in a table on the
device: as parameters of the kernel they would be some hundred, each read by comparing its number with all others, and
every number of tensors would be a kernel of its own. Learning rates and bias corrections are read on the device too, so
nothing waits for them. Muon's time goes into matrix products, so its decomposition serves.
"""

from __future__ import annotations

from collections.abc import Callable
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
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import quotient, remainder, steps
from ...gpu.device.interface import Device
from ...gpu.language import cuda, device_function, sqrt
from ...scalar import update as formulas
from .launches import Entry, Kernel, Types, called

ZERO, ONE = np.float32(0), np.float32(1)
FIRST = np.int32(0)

_decayed = device_function(formulas.decayed())
_sgd = device_function(formulas.sgd())
_rmsprop = device_function(formulas.rmsprop(sqrt))
_adadelta = device_function(formulas.adadelta(sqrt))
_adam = device_function(formulas.adam(sqrt))


@device_function
def _slope(p: Any, g: Any, decay: Any) -> Any:
    """The gradient, with the weight decay in it unless that is 0."""
    return _decayed(p, g, decay) if decay != ZERO else g


@device_function
def _going(rows: Any, stop: Any) -> Any:
    """The rows to go through: none once an index was out of range, so that nothing was changed when that is told."""
    return rows if stop[0] == 0 else FIRST


@device_function
def _part(row: Any, part: Any, table: Any) -> Any:
    """Which of the tensors a row is part of, and where in that it begins and ends.

    Their number is read for each row, so that the compiler makes no second loop of other rounding for one tensor alone.
    """
    count = table[0]
    tensor, above = FIRST, count
    while above - tensor > 1:
        middle = (tensor + above) >> 1
        if table[1 + middle] <= row:
            tensor = middle
        else:
            above = middle
    begin = (row - table[1 + tensor]) * part
    end, size = begin + part, table[1 + count + tensor]
    return tensor, begin, end if end < size else size


# Kernels of `device.each_tensor`. The buffers of a tensor are its new value and state, then p, g and the old state.


def sgd_kernel(rows: Any, lanes: Any, part: Any, table: Any, buffers: Any, stop: Any, lr: Any, decay: Any) -> None:
    rate, lane = lr[0], remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), _going(rows, stop), quotient(cuda.gridsize(1), lanes)):
        tensor, begin, end = _part(row, part, table)
        at = 3 * tensor
        new_p, p, g = buffers[at], buffers[at + 1], buffers[at + 2]
        for i in steps(begin + lane, end, lanes):
            new_p[i] = _sgd(p[i], _slope(p[i], g[i], decay), rate)


def _kernel_of(name: str, step: Callable[..., Any]) -> Kernel:
    """Of an update with one state and one number besides the rate."""

    def kernel(
        rows: Any,
        lanes: Any,
        part: Any,
        table: Any,
        buffers: Any,
        stop: Any,
        lr: Any,
        decay: Any,
        number: Any,
    ) -> None:
        rate, lane = lr[0], remainder(cuda.threadIdx.x, lanes)
        for row in steps(quotient(cuda.grid(1), lanes), _going(rows, stop), quotient(cuda.gridsize(1), lanes)):
            tensor, begin, end = _part(row, part, table)
            at = 5 * tensor
            new_p, new_state = buffers[at], buffers[at + 1]
            p, g, state = buffers[at + 2], buffers[at + 3], buffers[at + 4]
            for i in steps(begin + lane, end, lanes):
                new_p[i], new_state[i] = step(p[i], _slope(p[i], g[i], decay), state[i], rate, number)

    return called(name, kernel)  # type: ignore[no-any-return]


momentum_kernel = _kernel_of("momentum_kernel", device_function(formulas.momentum()))
nesterov_kernel = _kernel_of("nesterov_kernel", device_function(formulas.nesterov()))
adagrad_kernel = _kernel_of("adagrad_kernel", device_function(formulas.adagrad(sqrt)))


def rmsprop_kernel(
    rows: Any,
    lanes: Any,
    part: Any,
    table: Any,
    buffers: Any,
    stop: Any,
    lr: Any,
    decay: Any,
    alpha: Any,
    rest: Any,
    eps: Any,
) -> None:
    rate, lane = lr[0], remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), _going(rows, stop), quotient(cuda.gridsize(1), lanes)):
        tensor, begin, end = _part(row, part, table)
        at = 5 * tensor
        new_p, new_square = buffers[at], buffers[at + 1]
        p, g, square = buffers[at + 2], buffers[at + 3], buffers[at + 4]
        for i in steps(begin + lane, end, lanes):
            slope = _slope(p[i], g[i], decay)
            new_p[i], new_square[i] = _rmsprop(p[i], slope, square[i], rate, alpha, rest, eps)


def adadelta_kernel(
    rows: Any,
    lanes: Any,
    part: Any,
    table: Any,
    buffers: Any,
    stop: Any,
    lr: Any,
    decay: Any,
    rho: Any,
    rest: Any,
    eps: Any,
) -> None:
    rate, lane = lr[0], remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), _going(rows, stop), quotient(cuda.gridsize(1), lanes)):
        tensor, begin, end = _part(row, part, table)
        at = 7 * tensor
        new_p, new_square, new_delta = buffers[at], buffers[at + 1], buffers[at + 2]
        p, g, square, delta = buffers[at + 3], buffers[at + 4], buffers[at + 5], buffers[at + 6]
        for i in steps(begin + lane, end, lanes):
            slope = _slope(p[i], g[i], decay)
            new_p[i], new_square[i], new_delta[i] = _adadelta(p[i], slope, square[i], delta[i], rate, rho, rest, eps)


def adam_kernel(
    rows: Any,
    lanes: Any,
    part: Any,
    table: Any,
    buffers: Any,
    stop: Any,
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
    lane = remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), _going(rows, stop), quotient(cuda.gridsize(1), lanes)):
        tensor, begin, end = _part(row, part, table)
        at = 7 * tensor
        new_p, new_m, new_v = buffers[at], buffers[at + 1], buffers[at + 2]
        p, g, m, v = buffers[at + 3], buffers[at + 4], buffers[at + 5], buffers[at + 6]
        for i in steps(begin + lane, end, lanes):
            slope = _slope(p[i], g[i], decay)
            new_p[i], new_m[i], new_v[i] = _adam(p[i], slope, m[i], v[i], shrink, rate, floor, beta1, a1, beta2, a2)


def _updated(device: Device, kernel: Kernel, types: Types, operands: Any, *numbers: float) -> tuple[DeviceBuffer, ...]:
    """New values and state of p, g, the state and scalars."""
    new = tuple(map(device.empty, types))
    scalars = 1 + len(new)
    device.put_off(kernel, new, operands[:scalars], *operands[scalars:], *map(np.float32, map(float, numbers)))
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
