"""Elementwise functions."""

from __future__ import annotations

import math
from typing import Any

from ...codegen.cpu.functions import erf as erf_of_one
from ...codegen.cpu.functions import exp
from ...native.inlined import Function
from ...scalar import activation
from .jit import Elementwise

sigmoid = Elementwise(activation.sigmoid, exp)
sigmoid_grad = Elementwise(activation.sigmoid_grad, operands=2)
tanh_grad = Elementwise(activation.tanh_grad, operands=2)
relu = Elementwise(activation.relu)
relu_grad = Elementwise(activation.relu_grad, operands=2)
silu = Elementwise(activation.silu, exp)
select = Elementwise(activation.select, operands=2, masked=True)


def _alone(real: Any, function: Function) -> Function:
    def formula(x: Any) -> Any:
        return function(x)

    return formula


def _square_root(real: Any) -> Function:
    def formula(x: Any) -> Any:
        return math.sqrt(x)

    return formula


def _inverse(real: Any) -> Function:
    one = real(1)

    def formula(x: Any) -> Any:
        return one / x

    return formula


erf = Elementwise(_alone, erf_of_one)
sqrt = Elementwise(_square_root)
inv = Elementwise(_inverse)
