"""Functions of one element."""

from __future__ import annotations

from ...codegen.cpu.functions import erf, exp
from ...host import Array
from ...scalar import activation
from .jit import Elementwise, loop

sigmoid = Elementwise(activation.sigmoid, exp)
sigmoid_grad = Elementwise(activation.sigmoid_grad, operands=2)
tanh_grad = Elementwise(activation.tanh_grad, operands=2)
relu = Elementwise(activation.relu)
relu_grad = Elementwise(activation.relu_grad, operands=2)
silu = Elementwise(activation.silu, exp)


@loop()
def erf_of(x: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = erf(x[i])
