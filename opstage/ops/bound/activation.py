"""Activation functions and their fused derivatives."""

from __future__ import annotations

from typing import final

from ..catalogue.activation import (
    GELU,
    GELU_GRAD,
    RELU,
    RELU_GRAD,
    SIGMOID_GRAD,
    SILU,
    SILU_GRAD,
    TANH_GRAD,
)
from ..protocol import R
from .calls import Calls


class ActivationOps(Calls[R]):
    __slots__ = ()

    @final
    def relu_grad(self, y: R, g: R, /) -> R:
        return self._call2(RELU_GRAD, y, g)

    @final
    def tanh_grad(self, y: R, g: R, /) -> R:
        return self._call2(TANH_GRAD, y, g)

    @final
    def sigmoid_grad(self, y: R, g: R, /) -> R:
        return self._call2(SIGMOID_GRAD, y, g)

    @final
    def silu_grad(self, x: R, g: R, /) -> R:
        return self._call2(SILU_GRAD, x, g)

    @final
    def relu(self, x: R, /) -> R:
        return self._call1(RELU, x)

    @final
    def silu(self, x: R, /) -> R:
        return self._call1(SILU, x)

    @final
    def gelu(self, x: R, /, *, approximate: str = "tanh") -> R:
        return self._call(GELU, (x,), {"approximate": approximate})

    @final
    def gelu_grad(self, x: R, g: R, /, *, approximate: str) -> R:
        return self._call(GELU_GRAD, (x, g), {"approximate": approximate})
