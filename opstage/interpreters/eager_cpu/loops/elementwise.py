"""Functions of one element."""

from __future__ import annotations

from typing import Any

from ...codegen.cpu.functions import erf, exp
from ...host import Array
from ...native.inlined import Function, inlined
from ...scalar import activation
from .jit import Elementwise, loop

sigmoid = Elementwise(activation.sigmoid, exp)
sigmoid_grad = Elementwise(activation.sigmoid_grad, operands=2)
tanh_grad = Elementwise(activation.tanh_grad, operands=2)
relu = Elementwise(activation.relu)
relu_grad = Elementwise(activation.relu_grad, operands=2)
silu = Elementwise(activation.silu, exp)
silu_grad = Elementwise(activation.silu_grad, exp, operands=2)


@inlined()
def _gelu_tanh(real: Any) -> Function:
    return activation.gelu_tanh(real, exp)


@inlined()
def _gelu_tanh_grad(real: Any) -> Function:
    return activation.gelu_tanh_grad(real, exp)


@inlined()
def _gelu_erf(real: Any) -> Function:
    return activation.gelu_erf(real, erf)


@inlined()
def _gelu_erf_grad(real: Any) -> Function:
    return activation.gelu_erf_grad(real, exp, erf)


@loop()
def erf_of(x: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = erf(x[i])


@loop()
def gelu_tanh(x: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = _gelu_tanh(x[i])


@loop()
def gelu_tanh_grad(x: Array, g: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = _gelu_tanh_grad(x[i], g[i])


@loop()
def gelu_erf(x: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = _gelu_erf(x[i])


@loop()
def gelu_erf_grad(x: Array, g: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = _gelu_erf_grad(x[i], g[i])
