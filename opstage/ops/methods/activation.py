"""Activation functions and their fused derivatives."""

from __future__ import annotations

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
from ..primitive import R
from .calls import Calls


class ActivationOps(Calls[R]):
    __slots__ = ()

    def relu_grad(self, y: R, g: R, /) -> R:
        """g where y > 0, else 0."""
        return self._call2(RELU_GRAD, y, g)

    def tanh_grad(self, y: R, g: R, /) -> R:
        """g · (1 - y²), for y = tanh(x)."""
        return self._call2(TANH_GRAD, y, g)

    def sigmoid_grad(self, y: R, g: R, /) -> R:
        """g · y · (1 - y), for y = sigmoid(x)."""
        return self._call2(SIGMOID_GRAD, y, g)

    def silu_grad(self, x: R, g: R, /) -> R:
        """g · s · (1 + x·(1 - s)), s = sigmoid(x)."""
        return self._call2(SILU_GRAD, x, g)

    def relu(self, x: R, /) -> R:
        """max(x, 0); its derivative at 0 is 0. PyTorch: torch.relu."""
        return self._call1(RELU, x)

    def silu(self, x: R, /) -> R:
        """x · sigmoid(x) (Elfwing et al. 2018). PyTorch: torch.nn.functional.silu."""
        return self._call1(SILU, x)

    def gelu(self, x: R, /, *, approximate: str = "tanh") -> R:
        """Gaussian error linear unit, "tanh" or exact ("none"). PyTorch: torch.nn.functional.gelu.

        "tanh": ½x·(1 + tanh(√(2/π)·(x + 0.044715·x³))); "none": ½x·(1 + erf(x/√2)) (Hendrycks & Gimpel 2016).
        """
        return self._call(GELU, (x,), {"approximate": approximate})

    def gelu_grad(self, x: R, g: R, /, *, approximate: str) -> R:
        """g · gelu'(x)."""
        return self._call(GELU_GRAD, (x, g), {"approximate": approximate})
