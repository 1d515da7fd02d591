"""Kernels: arithmetic and functions of one element."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops.catalogue.elementwise import (
    ABS,
    ADD,
    CLAMP,
    COS,
    DIV,
    ERF,
    EXP,
    INV,
    LOG,
    MAXIMUM,
    MINIMUM,
    MUL,
    NEG,
    POW,
    SAFE_LOG,
    SCALE,
    SIGMOID,
    SIN,
    SOFTPLUS,
    SQRT,
    SUB,
    TANH,
)
from ....ops.primitive import Primitive
from ...gpu import language
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import steps
from ...gpu.device.interface import Device
from ...gpu.language import cuda
from ...scalar import activation as formulas
from .launches import Entry, Types, binary_kernel, called, elementwise, parametric_kernel, scalar, unary_kernel

ZERO, ONE = np.float32(0), np.float32(1)
_exp, _log, _log1p, _power = language.exp, language.log, language.log1p, language.power


def add(x: Any, y: Any) -> Any:
    return x + y


def sub(x: Any, y: Any) -> Any:
    return x - y


def mul(x: Any, y: Any) -> Any:
    return x * y


def div(x: Any, y: Any) -> Any:
    return x / y


def maximum(x: Any, y: Any) -> Any:
    """nan where either is."""
    return x if x > y or x != x else y


def minimum(x: Any, y: Any) -> Any:
    return x if x < y or x != x else y


def neg(x: Any) -> Any:
    return -x


def absolute(x: Any) -> Any:
    return abs(x)


def inv(x: Any) -> Any:
    return ONE / x


def softplus(x: Any) -> Any:
    positive = ZERO if x <= ZERO else x
    return positive + _log1p(_exp(-abs(x)))


def square(x: Any) -> Any:
    return x * x


def inverse_sqrt(x: Any) -> Any:
    return ONE / _sqrt(x)


_sqrt = language.sqrt


def _wrapped(function: Any, name: str) -> Any:
    """A function of the language as a formula with a name of its own."""

    def formula(x: Any) -> Any:
        return function(x)

    return called(name, formula)


def safe_log(x: Any, eps: Any) -> Any:
    """log(max(x, eps)), nan of nan."""
    return _log(eps if x < eps else x)


def clamp_kernel(count: Any, out: Any, x: Any, lo: Any, hi: Any) -> None:
    """out[i] = min(max(x[i], lo), hi), nan of nan."""
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        value = x[i]
        value = lo if value < lo else value
        out[i] = hi if value > hi else value


def to_power(x: Any, c: Any) -> Any:
    return _power(x, c)


_MUL_BY = parametric_kernel(mul)
_POWER = parametric_kernel(to_power)
_SAFE_LOG = parametric_kernel(safe_log)
_POWERS = {2.0: unary_kernel(square), -1.0: unary_kernel(inv), -0.5: unary_kernel(inverse_sqrt)}
_SQRT = unary_kernel(_wrapped(language.sqrt, "sqrt"))
_POWERS[0.5] = _SQRT


def scale(device: Device, types: Types, x: DeviceBuffer, c: Any) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(_MUL_BY, out.size, out, x, scalar(c, x.dtype))
    return (out,)


def power(device: Device, types: Types, x: DeviceBuffer, exponent: Any) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    special = _POWERS.get(float(exponent))
    if special is not None:
        device.each(special, out.size, out, x)
    else:
        device.each(_POWER, out.size, out, x, scalar(exponent, x.dtype))
    return (out,)


def clamp(device: Device, types: Types, x: DeviceBuffer, lo: Any, hi: Any) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(clamp_kernel, out.size, out, x, scalar(lo, x.dtype), scalar(hi, x.dtype))
    return (out,)


def safe_log_of(device: Device, types: Types, x: DeviceBuffer, eps: Any) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(_SAFE_LOG, out.size, out, x, scalar(eps, x.dtype))
    return (out,)


KERNELS: dict[Primitive, Entry] = {
    ADD: elementwise(binary_kernel(add)),
    SUB: elementwise(binary_kernel(sub)),
    MUL: elementwise(binary_kernel(mul)),
    DIV: elementwise(binary_kernel(div)),
    MAXIMUM: elementwise(binary_kernel(maximum)),
    MINIMUM: elementwise(binary_kernel(minimum)),
    NEG: elementwise(unary_kernel(neg)),
    ABS: elementwise(unary_kernel(absolute)),
    INV: elementwise(unary_kernel(inv)),
    SQRT: elementwise(_SQRT),
    EXP: elementwise(unary_kernel(_wrapped(language.exp, "exp"))),
    LOG: elementwise(unary_kernel(_wrapped(language.log, "log"))),
    SIN: elementwise(unary_kernel(_wrapped(language.sin, "sin"))),
    COS: elementwise(unary_kernel(_wrapped(language.cos, "cos"))),
    TANH: elementwise(unary_kernel(_wrapped(language.tanh, "tanh"))),
    ERF: elementwise(unary_kernel(_wrapped(language.erf, "erf"))),
    SIGMOID: elementwise(unary_kernel(called("sigmoid", formulas.sigmoid(np.float32, _exp)))),
    SOFTPLUS: elementwise(unary_kernel(softplus)),
    CLAMP: clamp,
    SAFE_LOG: safe_log_of,
    SCALE: scale,
    POW: power,
}
