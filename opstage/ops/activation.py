"""Activation functions, each with a fused derivative as a composite op."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .dims import exact_div
from .elementwise import pointwise
from .errors import ShapeError, nearest
from .method import Calls
from .primitive import Kind, Primitive, R, Row
from .rule_helpers import alike, equal_sizes, error, full_like, placed, read_axis, zeros, zeros_like
from .static_arguments import Number
from .types import require_float, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


# mypy: disable-error-code=empty-body


_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715
_GELU_FORMS = ("tanh", "none")


def _fused(decomposition: Any, operand: str = "x", require: Callable[..., None] | None = None) -> Primitive:
    """Make the fused op g · f' of the operand or result of f. A kernel may compute it in one pass; its own derivatives
    come from its decomposition."""
    shape = alike(require_float, operand, "g", check=require)
    return Primitive(shape=shape, decomposition=decomposition, kind=Kind.POINTWISE)


def _relu_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    zero = zeros_like(ops, x)
    return (ops.select(ops.less_equal(x, zero), zero, x),)  # in this order nan is kept


RELU = pointwise(reads="out", derivative=lambda ops, y, g: ops.relu_grad(y, g), decomposition=_relu_decomposition)


def _relu_grad_decomposition(ops: Ops[R], y: R, g: R, /) -> Row[R]:
    zero = zeros_like(ops, y)
    return (ops.select(ops.less_equal(y, zero), zeros_like(ops, g), g),)


RELU_GRAD = _fused(_relu_grad_decomposition, "y")


def _tanh_grad_decomposition(ops: Ops[R], y: R, g: R, /) -> Row[R]:
    return (ops.mul(g, ops.sub(full_like(ops, y, 1.0), ops.mul(y, y))),)


TANH_GRAD = _fused(_tanh_grad_decomposition, "y")


def _sigmoid_grad_decomposition(ops: Ops[R], y: R, g: R, /) -> Row[R]:
    return (ops.mul(g, ops.mul(y, ops.sub(full_like(ops, y, 1.0), y))),)


SIGMOID_GRAD = _fused(_sigmoid_grad_decomposition, "y")


def _silu_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    return (ops.mul(x, ops.sigmoid(x)),)


SILU = pointwise(reads="x", derivative=lambda ops, x, g: ops.silu_grad(x, g), decomposition=_silu_decomposition)


def _silu_grad_decomposition(ops: Ops[R], x: R, g: R, /) -> Row[R]:
    s = ops.sigmoid(x)
    slope = ops.mul(s, ops.add(full_like(ops, x, 1.0), ops.mul(x, ops.sub(full_like(ops, x, 1.0), s))))
    return (ops.mul(g, slope),)


SILU_GRAD = _fused(_silu_grad_decomposition)


def _require_gelu_form(approximate: str) -> None:
    if approximate not in _GELU_FORMS:
        raise ShapeError(
            f"approximate must be one of {_GELU_FORMS} but is {approximate!r}{nearest(approximate, _GELU_FORMS)}"
        )


def _gelu_decomposition(ops: Ops[R], x: R, /, *, approximate: str) -> Row[R]:
    if approximate == "none":
        inner = ops.erf(ops.scale(x, c=1 / math.sqrt(2)))
    else:
        inner = ops.tanh(_gelu_inner(ops, x))
    return (ops.mul(ops.scale(x, c=0.5), ops.add(full_like(ops, x, 1.0), inner)),)


def _gelu_inner(ops: Ops[R], x: R) -> R:
    cube = ops.mul(x, ops.mul(x, x))
    return ops.scale(ops.add(x, ops.scale(cube, c=_GELU_CUBIC)), c=_SQRT_2_OVER_PI)


GELU = pointwise(
    reads="x",
    derivative=lambda ops, x, g, approximate: ops.gelu_grad(x, g, approximate=approximate),
    decomposition=_gelu_decomposition,
    require=_require_gelu_form,
)


def _gelu_grad_decomposition(ops: Ops[R], x: R, g: R, /, *, approximate: str) -> Row[R]:
    one = full_like(ops, x, 1.0)
    if approximate == "none":
        distribution = ops.scale(ops.add(one, ops.erf(ops.scale(x, c=1 / math.sqrt(2)))), c=0.5)
        density = ops.scale(ops.exp(ops.scale(ops.mul(x, x), c=-0.5)), c=1 / math.sqrt(2 * math.pi))
        slope = ops.add(distribution, ops.mul(x, density))
    else:
        t = ops.tanh(_gelu_inner(ops, x))
        inner_slope = ops.scale(ops.add(one, ops.scale(ops.mul(x, x), c=3 * _GELU_CUBIC)), c=_SQRT_2_OVER_PI)
        rise = ops.mul(ops.scale(x, c=0.5), ops.mul(ops.sub(one, ops.mul(t, t)), inner_slope))
        slope = ops.add(ops.scale(ops.add(one, t), c=0.5), rise)
    return (ops.mul(g, slope),)


GELU_GRAD = _fused(_gelu_grad_decomposition, require=_require_gelu_form)

# Piecewise linear and exponential functions -------------------------------------------------------------------------


def _above_zero(ops: Ops[R], x: R, above: R, below: Callable[[R], R]) -> R:
    """Return `above` where x > 0, else `below(x)`; x > 0 is replaced by 0 for `below`, which might overflow."""
    positive = ops.less(zeros_like(ops, x), x)
    return ops.select(positive, above, below(ops.select(positive, zeros_like(ops, x), x)))


def _leaky_relu_decomposition(ops: Ops[R], x: R, /, *, negative_slope: Any) -> Row[R]:
    return (_above_zero(ops, x, x, lambda low: ops.scale(low, c=negative_slope)),)


LEAKY_RELU = pointwise(decomposition=_leaky_relu_decomposition)


def _elu_decomposition(ops: Ops[R], x: R, /, *, alpha: Any) -> Row[R]:
    return (_above_zero(ops, x, x, lambda low: ops.scale(ops.expm1(low), c=alpha)),)


ELU = pointwise(decomposition=_elu_decomposition)

_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946

SELU = pointwise(decomposition=lambda ops, x, /: (ops.scale(ops.elu(x, alpha=_SELU_ALPHA), c=_SELU_SCALE),))


def _require_alpha(alpha: Any) -> None:
    if alpha == 0:
        raise ShapeError("alpha must not be 0: x is divided by it")


def _celu_decomposition(ops: Ops[R], x: R, /, *, alpha: Any) -> Row[R]:
    return (_above_zero(ops, x, x, lambda low: ops.scale(ops.expm1(ops.scale(low, c=1 / alpha)), c=alpha)),)


CELU = pointwise(decomposition=_celu_decomposition, require=_require_alpha)


def _require_bounds(lo: Any, hi: Any) -> None:
    if not lo < hi:
        raise ShapeError(f"lo must be less than hi but lo is {lo} and hi is {hi}")


def _hardtanh_derivative(ops: Ops[R], x: R, g: R, *, lo: Any, hi: Any) -> R:
    """Return g inside and 0 at the bounds, as in PyTorch; clamp passes g there."""
    outside = ops.logical_or(ops.less_equal(x, full_like(ops, x, lo)), ops.less_equal(full_like(ops, x, hi), x))
    return ops.select(outside, zeros_like(ops, g), g)


HARDTANH = pointwise(
    reads="x",
    derivative=_hardtanh_derivative,
    decomposition=lambda ops, x, /, *, lo, hi: (ops.clamp(x, lo=lo, hi=hi),),
    require=_require_bounds,
)


def _hardsigmoid_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    return (ops.scale(ops.hardtanh(ops.add(x, full_like(ops, x, 3)), lo=0, hi=6), c=Fraction(1, 6)),)


HARDSIGMOID = pointwise(decomposition=_hardsigmoid_decomposition)


def _hardswish_derivative(ops: Ops[R], x: R, g: R) -> R:
    """g·(x/3 + ½) between -3 and 3."""
    slope = ops.add(ops.scale(x, c=Fraction(1, 3)), full_like(ops, x, Fraction(1, 2)))
    inner = ops.select(ops.less_equal(x, full_like(ops, x, -3)), zeros_like(ops, g), ops.mul(g, slope))
    return ops.select(ops.less_equal(full_like(ops, x, 3), x), g, inner)


HARDSWISH = pointwise(
    reads="x", derivative=_hardswish_derivative, decomposition=lambda ops, x, /: (ops.mul(x, ops.hardsigmoid(x)),)
)


def _threshold_decomposition(ops: Ops[R], x: R, /, *, threshold: Any, value: Any) -> Row[R]:
    return (ops.select(ops.less_equal(x, full_like(ops, x, threshold)), full_like(ops, x, value), x),)


THRESHOLD = pointwise(decomposition=_threshold_decomposition)


def _require_width(width: Any) -> None:
    if width < 0:
        raise ShapeError(f"width must be at least 0 but is {width}")


def _hardshrink_decomposition(ops: Ops[R], x: R, /, *, width: Any) -> Row[R]:
    return (ops.select(ops.less_equal(ops.abs(x), full_like(ops, x, width)), zeros_like(ops, x), x),)


HARDSHRINK = pointwise(decomposition=_hardshrink_decomposition, require=_require_width)


def _softshrink_decomposition(ops: Ops[R], x: R, /, *, width: Any) -> Row[R]:
    zero, border = zeros_like(ops, x), full_like(ops, x, width)
    moved = ops.select(ops.less(x, zero), ops.add(x, border), ops.sub(x, border))
    return (ops.select(ops.less_equal(ops.abs(x), border), zero, moved),)


SOFTSHRINK = pointwise(decomposition=_softshrink_decomposition, require=_require_width)

# Smooth functions ----------------------------------------------------------------------------------------------------

LOG_SIGMOID = pointwise(decomposition=lambda ops, x, /: (ops.neg(ops.softplus(ops.neg(x))),))
MISH = pointwise(decomposition=lambda ops, x, /: (ops.mul(x, ops.tanh(ops.softplus(x))),))
SOFTSIGN = pointwise(decomposition=lambda ops, x, /: (ops.div(x, ops.add(full_like(ops, x, 1.0), ops.abs(x))),))
TANHSHRINK = pointwise(decomposition=lambda ops, x, /: (ops.sub(x, ops.tanh(x)),))


# The methods of Ops ------------------------------------------------------------------------------------------


class ActivationOps(Calls[R]):
    __slots__ = ()

    @RELU_GRAD.method
    def relu_grad(self, y: R, g: R, /) -> R:
        """Return g where y > 0, else 0.

        Raises:
            DtypeError: y not a float tensor; dtypes differ.
            ShapeError: shapes differ.
        """

    @TANH_GRAD.method
    def tanh_grad(self, y: R, g: R, /) -> R:
        """Return g · (1 - y²), for y = tanh(x).

        Raises:
            DtypeError: y not a float tensor; dtypes differ.
            ShapeError: shapes differ.
        """

    @SIGMOID_GRAD.method
    def sigmoid_grad(self, y: R, g: R, /) -> R:
        """Return g · y · (1 - y), for y = sigmoid(x).

        Raises:
            DtypeError: y not a float tensor; dtypes differ.
            ShapeError: shapes differ.
        """

    @SILU_GRAD.method
    def silu_grad(self, x: R, g: R, /) -> R:
        """Return g · s · (1 + x·(1 - s)), s = sigmoid(x).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ.
        """

    @RELU.method
    def relu(self, x: R, /) -> R:
        """Return max(x, 0); its derivative at 0 is 0. PyTorch: torch.relu.

        Raises:
            DtypeError: x not a float tensor.
        """

    @SILU.method
    def silu(self, x: R, /) -> R:
        """Return x · sigmoid(x) (Elfwing et al. 2018). PyTorch: torch.nn.functional.silu.

        Raises:
            DtypeError: x not a float tensor.
        """

    @GELU.method
    def gelu(self, x: R, /, *, approximate: str = "tanh") -> R:
        """Return the Gaussian error linear unit, "tanh" or exact ("none"). PyTorch: torch.nn.functional.gelu.

        "tanh": ½x·(1 + tanh(√(2/π)·(x + 0.044715·x³))); "none": ½x·(1 + erf(x/√2)) (Hendrycks & Gimpel 2016).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """

    @GELU_GRAD.method
    def gelu_grad(self, x: R, g: R, /, *, approximate: str) -> R:
        """Return g · gelu'(x).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument.
        """

    @LEAKY_RELU.method
    def leaky_relu(self, x: R, /, *, negative_slope: Number = 0.01) -> R:
        """Return x where x > 0, else negative_slope · x, also in the derivative at 0. PyTorch:
        torch.nn.functional.leaky_relu.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """

    @ELU.method
    def elu(self, x: R, /, *, alpha: Number = 1.0) -> R:
        """Return x where x > 0, else alpha·(e^x - 1) (Clevert et al. 2016). PyTorch: torch.nn.functional.elu.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """

    @SELU.method
    def selu(self, x: R, /) -> R:
        """Return 1.0507… · elu(x, alpha=1.6733…) (Klambauer et al. 2017). PyTorch: torch.nn.functional.selu.

        Raises:
            DtypeError: x not a float tensor.
        """

    @CELU.method
    def celu(self, x: R, /, *, alpha: Number = 1.0) -> R:
        """Return x where x > 0, else alpha·(e^(x/alpha) - 1) (Barron 2017). PyTorch: torch.nn.functional.celu.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """

    @HARDTANH.method
    def hardtanh(self, x: R, /, *, lo: Number = -1.0, hi: Number = 1.0) -> R:
        """Return x limited to [lo, hi]; gradient 0 at the bounds, clamp's is 1. PyTorch: torch.nn.functional.hardtanh.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """

    def relu6(self, x: R, /) -> R:
        """Return x limited to [0, 6]; gradient 0 at both. PyTorch: torch.nn.functional.relu6.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call(HARDTANH, (x,), {"lo": 0, "hi": 6})

    @HARDSIGMOID.method
    def hardsigmoid(self, x: R, /) -> R:
        """Return relu6(x + 3)/6. PyTorch: torch.nn.functional.hardsigmoid.

        Raises:
            DtypeError: x not a float tensor.
        """

    @HARDSWISH.method
    def hardswish(self, x: R, /) -> R:
        """Return x · relu6(x + 3)/6 (Howard et al. 2019); gradient 0 at -3, 1 at 3. PyTorch:
        torch.nn.functional.hardswish.

        Raises:
            DtypeError: x not a float tensor.
        """

    @MISH.method
    def mish(self, x: R, /) -> R:
        """Return x · tanh(softplus(x)) (Misra 2019). PyTorch: torch.nn.functional.mish.

        Raises:
            DtypeError: x not a float tensor.
        """

    @LOG_SIGMOID.method
    def log_sigmoid(self, x: R, /) -> R:
        """Return log(sigmoid(x)) = -softplus(-x), without overflow. PyTorch: torch.nn.functional.logsigmoid.

        Raises:
            DtypeError: x not a float tensor.
        """

    @SOFTSIGN.method
    def softsign(self, x: R, /) -> R:
        """Return x/(1 + |x|). PyTorch: torch.nn.functional.softsign.

        Raises:
            DtypeError: x not a float tensor.
        """

    @TANHSHRINK.method
    def tanhshrink(self, x: R, /) -> R:
        """Return x - tanh(x). PyTorch: torch.nn.functional.tanhshrink.

        Raises:
            DtypeError: x not a float tensor.
        """

    @HARDSHRINK.method
    def hardshrink(self, x: R, /, *, width: Number = 0.5) -> R:
        """Return x where |x| > width, else 0. PyTorch: torch.nn.functional.hardshrink (lambd).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """

    @SOFTSHRINK.method
    def softshrink(self, x: R, /, *, width: Number = 0.5) -> R:
        """Return x moved towards 0 by width; 0 where |x| <= width. PyTorch: torch.nn.functional.softshrink (lambd).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """

    @THRESHOLD.method
    def threshold(self, x: R, /, *, threshold: Number, value: Number) -> R:
        """Return x where x > threshold, else value. PyTorch: torch.nn.functional.threshold.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """


# Functions: learned slopes and gates ----------------------------------------------------------------------------------


def prelu(ops: Ops[R], x: R, weight: R, /, *, axis: int = 1) -> R:
    """Return x where x > 0, else weight·x; the derivative at 0 is the weight.

    The weight is a scalar, of shape (1), a vector along `axis` of x, or has x's rank and broadcasts to x.
    PyTorch: torch.nn.functional.prelu. ONNX: PRelu. Source: He et al. 2015.

    Raises:
        DtypeError: x a mask; dtypes differ.
        ShapeError: x does not broadcast to the shape; no such axis; operands that do not fit each other.
    """
    op = "prelu"
    rank = len(x.shape)
    own: tuple[object, ...] = weight.shape
    if len(own) == 1 and own[0] != 1 and rank > 1:
        axis = read_axis(ops, op, axis, rank)
        entries = weight.shape[0]
        equal_sizes(
            ops,
            op,
            entries,
            x.shape[axis],
            lambda: f"weight has {entries} numbers, but x is {show_shape(x.shape)}: axis {axis} has {x.shape[axis]}",
        )
        weight = ops.reshape(weight, shape=tuple(entries if a == axis else 1 for a in range(rank)))
    elif len(own) not in (0, 1, rank):
        raise error(
            ops,
            op,
            f"weight is {show_shape(weight.shape)} and x {show_shape(x.shape)}: it must be a number, a vector of one "
            "for each entry of an axis, or of x's rank",
        )
    slope = ops.broadcast_to(weight, shape=x.shape)
    zero = zeros(ops, x)
    positive = ops.less(zero, x)
    # Positive elements are replaced before the product: inf there would make the weight's derivative nan.
    return ops.select(positive, x, ops.mul(slope, ops.select(positive, zero, x)))


def glu(ops: Ops[R], x: R, /, *, axis: int = -1) -> R:
    """Return a·σ(b) for the halves a and b of an axis of even size; the result is half as long.

    PyTorch: torch.nn.functional.glu. Source: Dauphin et al. 2017.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: no such axis; operands that do not fit each other.
    """
    op = "glu"
    axis = read_axis(ops, op, axis, len(x.shape))
    half = x.shape[axis]

    def message() -> str:
        return f"x is {show_shape(x.shape)}: axis {axis} has two halves, so its size must be even"

    size = []
    placed(ops, op, lambda: size.append(exact_div(half, 2, message)))
    a, b = ops.split(x, sizes=(size[0], size[0]), axis=axis)
    return ops.mul(a, ops.sigmoid(b))
