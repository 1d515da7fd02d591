# mypy: disable-error-code=empty-body
"""Elementwise arithmetic and functions.

A pointwise function has one derivative formula, `derivative(ops, v, g) = g · f'`, where v is the operand or the result,
whichever is cheaper; cotangents and tangents use the same formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .method import Calls
from .primitive import Context, Kind, Primitive, R, Row, Some
from .rule_helpers import alike, full_like, zeros_like
from .static_arguments import Number
from .types import require_float, require_number

if TYPE_CHECKING:
    from .protocol import Ops


def pointwise(
    name: str = "",
    *,
    derivative: Any = None,
    reads: str = "",
    integers: bool = False,
    decomposition: Callable[..., Any] | None = None,
    require: Callable[..., None] | None = None,
) -> Primitive:
    """Make a unary function; `reads` says whether its derivative is in terms of the operand `x` or the result `out`.

    Without a derivative, it has that of its decomposition. `require(**static)` raises for invalid static parameters.
    """

    def vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, **static: Any) -> Some[R]:
        return (derivative(ops, ctx.saved[0] if ctx.saved else None, cotangents[0], **static),)

    def jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /, **static: Any) -> Row[R]:
        return (derivative(ops, primals[0] if reads == "x" else outputs[0], tangents[0], **static),)

    return Primitive(
        name,
        operands=("x",) if name else (),
        shape=alike(require_number if integers else require_float, "x", check=require),
        vjp=None if derivative is None else vjp,
        jvp=None if derivative is None else jvp,
        saves=(reads,) if reads else (),
        decomposition=decomposition,
        kind=Kind.POINTWISE,
    )


# Two operands -------------------------------------------------------------------------------------------------------


binary_shape = alike(require_number, "x", "y")
_float_shape = alike(require_float, "x", "y")


def _add_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,) = cotangents
    return g, g


def _add_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> Some[R]:
    tx, ty = tangents
    return (ops.add(tx, ty) if tx is not None and ty is not None else tx if ty is None else ty,)


ADD = Primitive(kind=Kind.POINTWISE, shape=binary_shape, vjp=_add_vjp, jvp=_add_jvp)


def _sub_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,) = cotangents
    return g, ops.neg(g) if ctx.needs[1] else None


def _sub_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> Some[R]:
    tx, ty = tangents
    if ty is None:
        return (tx,)
    return (ops.neg(ty) if tx is None else ops.sub(tx, ty),)


SUB = Primitive(kind=Kind.POINTWISE, shape=binary_shape, vjp=_sub_vjp, jvp=_sub_jvp)


def _mul_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (x, y) = cotangents, ctx.saved
    return ops.mul(g, y) if ctx.needs[0] else None, ops.mul(g, x) if ctx.needs[1] else None


def _mul_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> Some[R]:
    (x, y), (tx, ty) = primals, tangents
    dx = ops.mul(tx, y) if tx is not None else None
    dy = ops.mul(x, ty) if ty is not None else None
    return _add_jvp(ops, primals, outputs, (dx, dy))


MUL = Primitive(kind=Kind.POINTWISE, shape=binary_shape, vjp=_mul_vjp, jvp=_mul_jvp, saves={"x": ("y",), "y": ("x",)})


def _div_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    y, out = ctx.saved
    dx = ops.div(cotangents[0], y)
    return dx if ctx.needs[0] else None, ops.neg(ops.mul(dx, out)) if ctx.needs[1] else None


def _div_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> Some[R]:
    (_, y), (out,), (tx, ty) = primals, outputs, tangents
    if ty is None:
        return (ops.div(tx, y) if tx is not None else None,)
    slope = ops.mul(out, ty)
    return (ops.div(ops.neg(slope) if tx is None else ops.sub(tx, slope), y),)


DIV = Primitive(
    kind=Kind.POINTWISE, shape=_float_shape, vjp=_div_vjp, jvp=_div_jvp, saves={"y": ("x", "y"), "out": ("y",)}
)


def _extremum(x_loses: Callable[..., Any]) -> Primitive:
    def share(ops: Ops[R], x: R, y: R, g: R) -> R:
        """Return the part of g for the operand x; if either operand is nan, both get all of g."""
        kept = ops.select(x_loses(ops, x, y), zeros_like(ops, g), g)
        return ops.select(ops.equal(x, y), ops.scale(g, c=0.5), kept)

    def vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
        (g,), (x, y) = cotangents, ctx.saved
        return share(ops, x, y, g) if ctx.needs[0] else None, share(ops, y, x, g) if ctx.needs[1] else None

    def jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> Some[R]:
        (x, y), (tx, ty) = primals, tangents
        dx = share(ops, x, y, tx) if tx is not None else None
        dy = share(ops, y, x, ty) if ty is not None else None
        return _add_jvp(ops, primals, outputs, (dx, dy))

    return Primitive(shape=binary_shape, vjp=vjp, jvp=jvp, saves=("x", "y"), kind=Kind.POINTWISE)


MAXIMUM = _extremum(lambda ops, x, y: ops.less(x, y))
MINIMUM = _extremum(lambda ops, x, y: ops.less(y, x))

# One operand --------------------------------------------------------------------------------------------------------

NEG = pointwise(reads="", integers=True, derivative=lambda ops, _, g: ops.neg(g))
SCALE = pointwise(reads="", derivative=lambda ops, _, g, c: ops.scale(g, c=c))


def _abs_derivative(ops: Ops[R], x: R, g: R) -> R:
    zero = zeros_like(ops, x)
    return ops.select(ops.less(x, zero), ops.neg(g), ops.select(ops.less(zero, x), g, zeros_like(ops, g)))


ABS = pointwise(reads="x", integers=True, derivative=_abs_derivative)
SQRT = pointwise(reads="out", derivative=lambda ops, y, g: ops.div(ops.scale(g, c=0.5), y))
EXP = pointwise(reads="out", derivative=lambda ops, y, g: ops.mul(g, y))
LOG = pointwise(reads="x", derivative=lambda ops, x, g: ops.div(g, x))
INV = pointwise(reads="out", derivative=lambda ops, y, g: ops.neg(ops.mul(ops.mul(g, y), y)))
SIN = pointwise(reads="x", derivative=lambda ops, x, g: ops.mul(g, ops.cos(x)))
COS = pointwise(reads="x", derivative=lambda ops, x, g: ops.neg(ops.mul(g, ops.sin(x))))
TANH = pointwise(reads="out", derivative=lambda ops, y, g: ops.tanh_grad(y, g))
SIGMOID = pointwise(reads="out", derivative=lambda ops, y, g: ops.sigmoid_grad(y, g))
SOFTPLUS = pointwise(reads="x", derivative=lambda ops, x, g: ops.mul(g, ops.sigmoid(x)))
ERF = pointwise(
    reads="x",
    derivative=lambda ops, x, g: ops.mul(g, ops.scale(ops.exp(ops.neg(ops.mul(x, x))), c=2 / math.sqrt(math.pi))),
)


def _pow_derivative(ops: Ops[R], x: R, g: R, *, exponent: Any) -> R:
    if exponent == 0:
        return zeros_like(ops, g)
    slope = ops.pow(x, exponent=exponent - 1)
    return ops.mul(g, ops.scale(slope, c=exponent))


POW = pointwise(reads="x", derivative=_pow_derivative)


def _by_base(ops: Ops[R], x: R, y: R, g: R) -> R:
    """Return g · y · x^(y - 1), and 0 where y is 0 for any x."""
    less = ops.sub(y, full_like(ops, y, 1.0))
    zero = zeros_like(ops, y)
    return ops.select(ops.equal(y, zero), zero, ops.mul(g, ops.mul(y, ops.power(x, less))))


def _by_exponent(ops: Ops[R], x: R, y: R, out: R, g: R) -> R:
    """Return g · x^y · log x, and 0 where x = 0 and y >= 0."""
    zero = zeros_like(ops, x)
    nothing = ops.logical_and(ops.equal(x, zero), ops.less_equal(zero, y))
    safe = ops.select(nothing, full_like(ops, x, 1.0), x)
    return ops.select(nothing, zero, ops.mul(g, ops.mul(out, ops.log(safe))))


def _power_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (x, y, out) = cotangents, ctx.saved
    return (_by_base(ops, x, y, g) if ctx.needs[0] else None, _by_exponent(ops, x, y, out, g) if ctx.needs[1] else None)


def _power_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> Some[R]:
    (x, y), (out,), (tx, ty) = primals, outputs, tangents
    dx = _by_base(ops, x, y, tx) if tx is not None else None
    dy = _by_exponent(ops, x, y, out, ty) if ty is not None else None
    return _add_jvp(ops, primals, outputs, (dx, dy))


POWER = Primitive(kind=Kind.POINTWISE, shape=_float_shape, vjp=_power_vjp, jvp=_power_jvp, saves=("x", "y", "out"))


def _clamp_decomposition(ops: Ops[R], x: R, /, *, lo: Any, hi: Any) -> Row[R]:
    lower = full_like(ops, x, lo)
    upper = full_like(ops, x, hi)
    return (ops.minimum(ops.maximum(x, lower), upper),)


def _clamp_derivative(ops: Ops[R], x: R, g: R, *, lo: Any, hi: Any) -> R:
    lower = full_like(ops, x, lo)
    upper = full_like(ops, x, hi)
    inside = ops.logical_and(ops.less_equal(lower, x), ops.less_equal(x, upper))
    return ops.select(inside, g, zeros_like(ops, g))


CLAMP = pointwise(reads="x", derivative=_clamp_derivative, decomposition=_clamp_decomposition)


def _safe_log_decomposition(ops: Ops[R], x: R, /, *, eps: Any) -> Row[R]:
    return (ops.log(ops.maximum(x, full_like(ops, x, eps))),)


def _safe_log_derivative(ops: Ops[R], x: R, g: R, *, eps: Any) -> R:
    floor = full_like(ops, x, eps)
    slope = ops.div(g, ops.maximum(x, floor))  # the maximum keeps the unselected side finite
    return ops.select(ops.less_equal(floor, x), slope, zeros_like(ops, g))


SAFE_LOG = pointwise(reads="x", derivative=_safe_log_derivative, decomposition=_safe_log_decomposition)


# The methods of Ops ------------------------------------------------------------------------------------------


class ElementwiseOps(Calls[R]):
    __slots__ = ()

    @ADD.method
    def add(self, x: R | Number, y: R | Number, /) -> R:
        """Return x + y, of one shape and dtype. PyTorch: torch.add.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @SUB.method
    def sub(self, x: R | Number, y: R | Number, /) -> R:
        """Return x - y, of one shape and dtype. PyTorch: torch.sub.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @MUL.method
    def mul(self, x: R | Number, y: R | Number, /) -> R:
        """Return x · y, of one shape and dtype. PyTorch: torch.mul.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @DIV.method
    def div(self, x: R | Number, y: R | Number, /) -> R:
        """Return x / y, of one shape and float dtype; IEEE at y = 0. PyTorch: torch.div.

        Raises:
            DtypeError: x not a float tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @MAXIMUM.method
    def maximum(self, x: R | Number, y: R | Number, /) -> R:
        """Return the larger of x and y, nan if either is; a tie splits the gradient 0.5/0.5. PyTorch: torch.maximum.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @MINIMUM.method
    def minimum(self, x: R | Number, y: R | Number, /) -> R:
        """Return the smaller of x and y, nan if either is; a tie splits the gradient 0.5/0.5. PyTorch: torch.minimum.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @NEG.method
    def neg(self, x: R, /) -> R:
        """Return -x. PyTorch: torch.neg.

        Raises:
            DtypeError: x a mask.
        """

    @ABS.method
    def abs(self, x: R, /) -> R:
        """Return |x|; its derivative at 0 is 0. PyTorch: torch.abs.

        Raises:
            DtypeError: x a mask.
        """

    @SQRT.method
    def sqrt(self, x: R, /) -> R:
        """Return √x; nan below 0, derivative +inf at 0. PyTorch: torch.sqrt.

        Raises:
            DtypeError: x not a float tensor.
        """

    @EXP.method
    def exp(self, x: R, /) -> R:
        """Return e^x. PyTorch: torch.exp.

        Raises:
            DtypeError: x not a float tensor.
        """

    @LOG.method
    def log(self, x: R, /) -> R:
        """Return the natural logarithm; -inf at 0, nan below. PyTorch: torch.log.

        Raises:
            DtypeError: x not a float tensor.
        """

    @INV.method
    def inv(self, x: R, /) -> R:
        """Return 1/x. PyTorch: torch.reciprocal.

        Raises:
            DtypeError: x not a float tensor.
        """

    def reciprocal(self, x: R, /) -> R:
        """Return 1/x, as inv. PyTorch: torch.reciprocal.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self.inv(x)

    def square(self, x: R, /) -> R:
        """Return x · x. PyTorch: torch.square.

        Raises:
            DtypeError: x a mask.
        """
        return self.mul(x, x)

    def rsqrt(self, x: R, /) -> R:
        """Return 1/√x; inf at 0, nan below. PyTorch: torch.rsqrt.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call(POW, (x,), {"exponent": -0.5})

    @SIN.method
    def sin(self, x: R, /) -> R:
        """Return the sine of x, in radians. PyTorch: torch.sin.

        Raises:
            DtypeError: x not a float tensor.
        """

    @COS.method
    def cos(self, x: R, /) -> R:
        """Return the cosine of x, in radians. PyTorch: torch.cos.

        Raises:
            DtypeError: x not a float tensor.
        """

    @TANH.method
    def tanh(self, x: R, /) -> R:
        """Return the hyperbolic tangent. PyTorch: torch.tanh.

        Raises:
            DtypeError: x not a float tensor.
        """

    @SIGMOID.method
    def sigmoid(self, x: R, /) -> R:
        """Return 1/(1 + e^-x), without overflow. PyTorch: torch.sigmoid.

        Raises:
            DtypeError: x not a float tensor.
        """

    @SOFTPLUS.method
    def softplus(self, x: R, /) -> R:
        """Return log(1 + e^x), without overflow. PyTorch: torch.nn.functional.softplus.

        Raises:
            DtypeError: x not a float tensor.
        """

    @ERF.method
    def erf(self, x: R, /) -> R:
        """Return the error function, 2/√π ∫₀ˣ e^(-t²) dt. PyTorch: torch.erf.

        Raises:
            DtypeError: x not a float tensor.
        """

    @SCALE.method
    def scale(self, x: R, /, *, c: Number) -> R:
        """Return c · x for a static number c, rounded once to x's dtype. PyTorch: x * c.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """

    @POW.method
    def pow(self, x: R, /, *, exponent: Number) -> R:
        """Return x^exponent for a static exponent. PyTorch: torch.pow.

        IEEE results; for ±½ those of √x and 1/√x. Its derivative, exponent · x^(exponent - 1), is 0 for exponent 0.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """

    @POWER.method
    def power(self, x: R | Number, y: R | Number, /) -> R:
        """Return x^y of two tensors of one shape and float dtype. PyTorch: torch.pow.

        nan where x < 0 and y is not an integer. Its derivative by y is 0 where x = 0 and y >= 0.

        Raises:
            DtypeError: x not a float tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @CLAMP.method
    def clamp(self, x: R, /, *, lo: Number, hi: Number) -> R:
        """Return x limited to [lo, hi]; gradient 1 inside and at the bounds, 0 outside. PyTorch: torch.clamp.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """

    @SAFE_LOG.method
    def safe_log(self, x: R, /, *, eps: Number) -> R:
        """Return log(max(x, eps)); gradient 1/x where x >= eps, else 0. PyTorch: torch.log(torch.clamp(x, min=eps)).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
