"""Activation functions and their fused derivatives."""

from __future__ import annotations

from ..arguments import Number
from ..calls import Calls
from ..catalogue.activation import (
    CELU,
    ELU,
    GELU,
    GELU_GRAD,
    HARDSHRINK,
    HARDSIGMOID,
    HARDSWISH,
    HARDTANH,
    LEAKY_RELU,
    LOG_SIGMOID,
    MISH,
    RELU,
    RELU_GRAD,
    SELU,
    SIGMOID_GRAD,
    SILU,
    SILU_GRAD,
    SOFTSHRINK,
    SOFTSIGN,
    TANH_GRAD,
    TANHSHRINK,
    THRESHOLD,
)
from ..primitive import R


class ActivationOps(Calls[R]):
    __slots__ = ()

    def relu_grad(self, y: R, g: R, /) -> R:
        """g where y > 0, else 0.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ.
        """
        return self._call2(RELU_GRAD, y, g)

    def tanh_grad(self, y: R, g: R, /) -> R:
        """g · (1 - y²), for y = tanh(x).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ.
        """
        return self._call2(TANH_GRAD, y, g)

    def sigmoid_grad(self, y: R, g: R, /) -> R:
        """g · y · (1 - y), for y = sigmoid(x).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ.
        """
        return self._call2(SIGMOID_GRAD, y, g)

    def silu_grad(self, x: R, g: R, /) -> R:
        """g · s · (1 + x·(1 - s)), s = sigmoid(x).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ.
        """
        return self._call2(SILU_GRAD, x, g)

    def relu(self, x: R, /) -> R:
        """max(x, 0); its derivative at 0 is 0. PyTorch: torch.relu.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(RELU, x)

    def silu(self, x: R, /) -> R:
        """x · sigmoid(x) (Elfwing et al. 2018). PyTorch: torch.nn.functional.silu.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(SILU, x)

    def gelu(self, x: R, /, *, approximate: str = "tanh") -> R:
        """Gaussian error linear unit, "tanh" or exact ("none"). PyTorch: torch.nn.functional.gelu.

        "tanh": ½x·(1 + tanh(√(2/π)·(x + 0.044715·x³))); "none": ½x·(1 + erf(x/√2)) (Hendrycks & Gimpel 2016).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(GELU, (x,), {"approximate": approximate})

    def gelu_grad(self, x: R, g: R, /, *, approximate: str) -> R:
        """g · gelu'(x).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument.
        """
        return self._call(GELU_GRAD, (x, g), {"approximate": approximate})

    def leaky_relu(self, x: R, /, *, negative_slope: Number = 0.01) -> R:
        """x where x > 0, else negative_slope · x, also in the derivative at 0. PyTorch: torch.nn.functional.leaky_relu.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(LEAKY_RELU, (x,), {"negative_slope": negative_slope})

    def elu(self, x: R, /, *, alpha: Number = 1.0) -> R:
        """x where x > 0, else alpha·(e^x - 1) (Clevert et al. 2016). PyTorch: torch.nn.functional.elu.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(ELU, (x,), {"alpha": alpha})

    def selu(self, x: R, /) -> R:
        """1.0507… · elu(x, alpha=1.6733…) (Klambauer et al. 2017). PyTorch: torch.nn.functional.selu.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(SELU, x)

    def celu(self, x: R, /, *, alpha: Number = 1.0) -> R:
        """x where x > 0, else alpha·(e^(x/alpha) - 1) (Barron 2017). PyTorch: torch.nn.functional.celu.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(CELU, (x,), {"alpha": alpha})

    def hardtanh(self, x: R, /, *, lo: Number = -1.0, hi: Number = 1.0) -> R:
        """x limited to [lo, hi]; gradient 0 at the bounds, clamp's is 1. PyTorch: torch.nn.functional.hardtanh.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(HARDTANH, (x,), {"lo": lo, "hi": hi})

    def relu6(self, x: R, /) -> R:
        """x limited to [0, 6]; gradient 0 at both. PyTorch: torch.nn.functional.relu6.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call(HARDTANH, (x,), {"lo": 0, "hi": 6})

    def hardsigmoid(self, x: R, /) -> R:
        """relu6(x + 3)/6. PyTorch: torch.nn.functional.hardsigmoid.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(HARDSIGMOID, x)

    def hardswish(self, x: R, /) -> R:
        """x · relu6(x + 3)/6 (Howard et al. 2019); gradient 0 at -3, 1 at 3. PyTorch: torch.nn.functional.hardswish.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(HARDSWISH, x)

    def mish(self, x: R, /) -> R:
        """x · tanh(softplus(x)) (Misra 2019). PyTorch: torch.nn.functional.mish.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(MISH, x)

    def log_sigmoid(self, x: R, /) -> R:
        """log(sigmoid(x)) = -softplus(-x), without overflow. PyTorch: torch.nn.functional.logsigmoid.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(LOG_SIGMOID, x)

    def softsign(self, x: R, /) -> R:
        """x/(1 + |x|). PyTorch: torch.nn.functional.softsign.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(SOFTSIGN, x)

    def tanhshrink(self, x: R, /) -> R:
        """x - tanh(x). PyTorch: torch.nn.functional.tanhshrink.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(TANHSHRINK, x)

    def hardshrink(self, x: R, /, *, width: Number = 0.5) -> R:
        """x where |x| > width, else 0. PyTorch: torch.nn.functional.hardshrink (lambd).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(HARDSHRINK, (x,), {"width": width})

    def softshrink(self, x: R, /, *, width: Number = 0.5) -> R:
        """x moved towards 0 by width; 0 where |x| <= width. PyTorch: torch.nn.functional.softshrink (lambd).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(SOFTSHRINK, (x,), {"width": width})

    def threshold(self, x: R, /, *, threshold: Number, value: Number) -> R:
        """x where x > threshold, else value. PyTorch: torch.nn.functional.threshold.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(THRESHOLD, (x,), {"threshold": threshold, "value": value})
