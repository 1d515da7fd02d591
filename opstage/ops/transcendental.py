# mypy: disable-error-code=empty-body
"""Powers, logarithms, and trigonometric and hyperbolic functions, other than those of `elementwise`.

Composites use forms without the cancellation or overflow of the plain formula.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .elementwise import pointwise
from .method import Calls
from .primitive import Context, Kind, Primitive, R, Row, Some
from .rule_helpers import add_all, alike, full_like, zeros_like
from .types import require_float

if TYPE_CHECKING:
    from .protocol import Ops


_LOG_2 = math.log(2)
_PI = math.pi


def _great(x: Any) -> float:
    """Return the bound above which 1 + x² rounds to x²."""
    return float(2.0 ** (27 if x.dtype.itemsize == 8 else 13))


def _odd(ops: Ops[R], x: R, size: R) -> R:
    """Return `size` with the sign of x, and x itself where it is 0."""
    zero = zeros_like(ops, x)
    return ops.select(ops.less(x, zero), ops.neg(size), ops.select(ops.equal(x, zero), x, size))


# Powers and logarithms ----------------------------------------------------------------------------------------------


def _expm1_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    """tanh(x/2) · (e^x + 1)."""
    return (ops.mul(ops.tanh(ops.scale(x, c=0.5)), ops.add(ops.exp(x), full_like(ops, x, 1.0))),)


EXPM1 = pointwise(reads="x", derivative=lambda ops, x, g: ops.mul(g, ops.exp(x)), decomposition=_expm1_decomposition)


def _log1p_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    """log u · x/(u - 1) for u = 1 + x as it is rounded (Kahan)."""
    one = full_like(ops, x, 1.0)
    u = ops.add(x, one)
    d = ops.sub(u, one)
    near, far = ops.equal(u, one), ops.equal(u, x)
    ratio = ops.select(far, one, ops.div(x, ops.select(near, one, d)))
    return (ops.select(near, x, ops.mul(ops.log(u), ratio)),)


LOG1P = pointwise(
    reads="x",
    derivative=lambda ops, x, g: ops.div(g, ops.add(full_like(ops, x, 1.0), x)),
    decomposition=_log1p_decomposition,
)

EXP2 = pointwise(reads="out", derivative=lambda ops, y, g: ops.scale(ops.mul(g, y), c=_LOG_2))
LOG2 = pointwise(reads="x", derivative=lambda ops, x, g: ops.div(ops.scale(g, c=1 / _LOG_2), x))
LOG10 = pointwise(reads="x", derivative=lambda ops, x, g: ops.div(ops.scale(g, c=1 / math.log(10)), x))

# Angles -------------------------------------------------------------------------------------------------------------

TAN = pointwise(
    reads="out",
    derivative=lambda ops, y, g: ops.mul(g, ops.add(full_like(ops, y, 1.0), ops.mul(y, y))),
    decomposition=lambda ops, x, /: (ops.div(ops.sin(x), ops.cos(x)),),
)


def _atan_derivative(ops: Ops[R], x: R, g: R) -> R:
    return ops.div(g, ops.add(full_like(ops, x, 1.0), ops.mul(x, x)))


ATAN = pointwise(reads="x", derivative=_atan_derivative)


def _complementary_cosine(ops: Ops[R], x: R) -> R:
    """Return √((1 - x)·(1 + x)), accurate near ±1."""
    one = full_like(ops, x, 1.0)
    return ops.sqrt(ops.mul(ops.sub(one, x), ops.add(one, x)))


def _asin_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    """2 · atan(x/(1 + √(1 - x²)))."""
    half = ops.atan(ops.div(x, ops.add(full_like(ops, x, 1.0), _complementary_cosine(ops, x))))
    return (ops.scale(half, c=2.0),)


ASIN = pointwise(
    reads="x", derivative=lambda ops, x, g: ops.div(g, _complementary_cosine(ops, x)), decomposition=_asin_decomposition
)


def _acos_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    """2 · atan(√((1 - x)/(1 + x))); at -1 the quotient is infinite and the result π."""
    one = full_like(ops, x, 1.0)
    return (ops.scale(ops.atan(ops.sqrt(ops.div(ops.sub(one, x), ops.add(one, x)))), c=2.0),)


ACOS = pointwise(
    reads="x",
    derivative=lambda ops, x, g: ops.neg(ops.div(g, _complementary_cosine(ops, x))),
    decomposition=_acos_decomposition,
)


def _below_zero(ops: Ops[R], x: R) -> R:
    """Return the mask of numbers with a minus sign, including -0.0."""
    zero = zeros_like(ops, x)
    return ops.logical_or(ops.less(x, zero), ops.less(ops.inv(x), zero))


def _atan2_decomposition(ops: Ops[R], y: R, x: R, /) -> Row[R]:
    """atan of the smaller divided by the larger of |y| and |x|, moved to its quadrant."""
    a, b = ops.abs(y), ops.abs(x)
    less, greater = ops.minimum(a, b), ops.maximum(a, b)
    both = ops.equal(less, full_like(ops, x, math.inf))
    none = ops.equal(greater, zeros_like(ops, x))
    one = full_like(ops, x, 1.0)
    angle = ops.atan(ops.select(both, one, ops.div(less, ops.select(none, one, greater))))
    angle = ops.select(ops.less(b, a), ops.sub(full_like(ops, x, _PI / 2), angle), angle)
    angle = ops.select(_below_zero(ops, x), ops.sub(full_like(ops, x, _PI), angle), angle)
    return (ops.select(_below_zero(ops, y), ops.neg(angle), angle),)


def _atan2_slopes(ops: Ops[R], y: R, x: R) -> tuple[R, R]:
    """Return x/(y² + x²) and -y/(y² + x²), without intermediate overflow or underflow.

    With m the larger of |y| and |x| they are (x/m)/(m·s) and -(y/m)/(m·s), s = (y/m)² + (x/m)².
    """
    m = ops.maximum(ops.abs(y), ops.abs(x))
    u, v = ops.div(y, m), ops.div(x, m)
    s = ops.add(ops.mul(u, u), ops.mul(v, v))
    return ops.div(ops.div(v, s), m), ops.neg(ops.div(ops.div(u, s), m))


def _atan2_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (y, x) = cotangents, ctx.saved
    by_y, by_x = _atan2_slopes(ops, y, x)
    return ops.mul(g, by_y) if ctx.needs[0] else None, ops.mul(g, by_x) if ctx.needs[1] else None


def _atan2_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> tuple[R | None]:
    (y, x), (ty, tx) = primals, tangents
    by_y, by_x = _atan2_slopes(ops, y, x)
    terms = [ops.mul(t, slope) if t is not None else None for t, slope in ((ty, by_y), (tx, by_x))]
    return (add_all(ops, *terms),)


ATAN2 = Primitive(
    kind=Kind.POINTWISE,
    shape=alike(require_float, "y", "x"),
    vjp=_atan2_vjp,
    jvp=_atan2_jvp,
    saves=("y", "x"),
    decomposition=_atan2_decomposition,
)

# Hyperbolic functions -----------------------------------------------------------------------------------------------


def _sinh_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    """½(t + t/(t + 1)) for t = e^|x| - 1; from 1 on h²/2 - 1/(2h²) for h = e^(|x|/2), which overflows later."""
    one, size = full_like(ops, x, 1.0), ops.abs(x)
    near = ops.less(size, one)
    t = ops.expm1(ops.select(near, size, one))
    small = ops.scale(ops.add(t, ops.div(t, ops.add(t, one))), c=0.5)
    h = ops.exp(ops.scale(size, c=0.5))
    great = ops.sub(ops.mul(ops.scale(h, c=0.5), h), ops.div(ops.scale(ops.inv(h), c=0.5), h))
    return (_odd(ops, x, ops.select(near, small, great)),)


SINH = pointwise(reads="x", derivative=lambda ops, x, g: ops.mul(g, ops.cosh(x)), decomposition=_sinh_decomposition)


def _cosh_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    """h²/2 + 1/(2h²), h = e^(|x|/2)."""
    h = ops.exp(ops.scale(ops.abs(x), c=0.5))
    return (ops.add(ops.mul(ops.scale(h, c=0.5), h), ops.div(ops.scale(ops.inv(h), c=0.5), h)),)


COSH = pointwise(reads="x", derivative=lambda ops, x, g: ops.mul(g, ops.sinh(x)), decomposition=_cosh_decomposition)


def _asinh_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    """log1p(a + a²/(1 + √(1 + a²))) for a = |x|, and log a + log 2 where 1 + a² rounds to a²."""
    one, size, great = full_like(ops, x, 1.0), ops.abs(x), full_like(ops, x, _great(x))
    far = ops.less(great, size)
    a = ops.select(far, one, size)
    square = ops.mul(a, a)
    near = ops.log1p(ops.add(a, ops.div(square, ops.add(one, ops.sqrt(ops.add(one, square))))))
    beyond = ops.add(ops.log(ops.select(far, size, one)), full_like(ops, x, _LOG_2))
    return (_odd(ops, x, ops.select(far, beyond, near)),)


def _asinh_derivative(ops: Ops[R], x: R, g: R) -> R:
    """g/√(1 + x²), and g/|x| for large x."""
    one, size = full_like(ops, x, 1.0), ops.abs(x)
    far = ops.less(full_like(ops, x, _great(x)), size)
    a = ops.select(far, one, x)
    return ops.div(g, ops.select(far, size, ops.sqrt(ops.add(one, ops.mul(a, a)))))


ASINH = pointwise(reads="x", derivative=_asinh_derivative, decomposition=_asinh_decomposition)


def _acosh_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    """log1p(t + √t·√(t + 2)) for t = x - 1, and log x + log 2 where x² - 1 rounds to x²."""
    one, great = full_like(ops, x, 1.0), full_like(ops, x, _great(x))
    far = ops.less(great, x)
    t = ops.sub(ops.select(far, one, x), one)
    near = ops.log1p(ops.add(t, ops.mul(ops.sqrt(t), ops.sqrt(ops.add(t, ops.scale(one, c=2.0))))))
    beyond = ops.add(ops.log(ops.select(far, x, one)), full_like(ops, x, _LOG_2))
    return (ops.select(far, beyond, near),)


def _acosh_derivative(ops: Ops[R], x: R, g: R) -> R:
    """g/(√(x - 1)·√(x + 1))."""
    one = full_like(ops, x, 1.0)
    return ops.div(g, ops.mul(ops.sqrt(ops.sub(x, one)), ops.sqrt(ops.add(x, one))))


ACOSH = pointwise(reads="x", derivative=_acosh_derivative, decomposition=_acosh_decomposition)


def _atanh_decomposition(ops: Ops[R], x: R, /) -> Row[R]:
    """½·log1p(2a/(1 - a)) for a = |x|."""
    a = ops.abs(x)
    grown = ops.div(ops.scale(a, c=2.0), ops.sub(full_like(ops, x, 1.0), a))
    return (_odd(ops, x, ops.scale(ops.log1p(grown), c=0.5)),)


def _atanh_derivative(ops: Ops[R], x: R, g: R) -> R:
    """g/((1 - x)·(1 + x))."""
    one = full_like(ops, x, 1.0)
    return ops.div(g, ops.mul(ops.sub(one, x), ops.add(one, x)))


ATANH = pointwise(reads="x", derivative=_atanh_derivative, decomposition=_atanh_decomposition)


# The methods of Ops ------------------------------------------------------------------------------------------


class TranscendentalOps(Calls[R]):
    __slots__ = ()

    @EXPM1.method
    def expm1(self, x: R, /) -> R:
        """Return e^x - 1, accurate near 0. PyTorch: torch.expm1.

        Raises:
            DtypeError: x not a float tensor.
        """

    @LOG1P.method
    def log1p(self, x: R, /) -> R:
        """Return log(1 + x), accurate near 0; -inf at -1, nan below. PyTorch: torch.log1p.

        Raises:
            DtypeError: x not a float tensor.
        """

    @EXP2.method
    def exp2(self, x: R, /) -> R:
        """Return 2^x, exact where x is an integer. PyTorch: torch.exp2.

        Raises:
            DtypeError: x not a float tensor.
        """

    @LOG2.method
    def log2(self, x: R, /) -> R:
        """Return the logarithm to the base 2, exact for powers of 2; -inf at 0, nan below. PyTorch: torch.log2.

        Raises:
            DtypeError: x not a float tensor.
        """

    @LOG10.method
    def log10(self, x: R, /) -> R:
        """Return the logarithm to the base 10; -inf at 0, nan below. PyTorch: torch.log10.

        Raises:
            DtypeError: x not a float tensor.
        """

    @TAN.method
    def tan(self, x: R, /) -> R:
        """Return the tangent of x, in radians. PyTorch: torch.tan.

        Raises:
            DtypeError: x not a float tensor.
        """

    @ASIN.method
    def asin(self, x: R, /) -> R:
        """Return the angle in [-π/2, π/2] whose sine is x; nan outside [-1, 1]. PyTorch: torch.asin.

        Raises:
            DtypeError: x not a float tensor.
        """

    @ACOS.method
    def acos(self, x: R, /) -> R:
        """Return the angle in [0, π] whose cosine is x; nan outside [-1, 1]. PyTorch: torch.acos.

        Raises:
            DtypeError: x not a float tensor.
        """

    @ATAN.method
    def atan(self, x: R, /) -> R:
        """Return the angle in [-π/2, π/2] whose tangent is x. PyTorch: torch.atan.

        Raises:
            DtypeError: x not a float tensor.
        """

    @ATAN2.method
    def atan2(self, y: R, x: R, /) -> R:
        """Return the angle in [-π, π] of the point (x, y), by the signs of both, including zeros. PyTorch: torch.atan2.

        The derivative at (0, 0) is nan.

        Raises:
            DtypeError: y not a float tensor; dtypes differ.
            ShapeError: shapes differ.
        """

    @SINH.method
    def sinh(self, x: R, /) -> R:
        """Return ½(e^x - e^-x), accurate near 0. PyTorch: torch.sinh.

        Raises:
            DtypeError: x not a float tensor.
        """

    @COSH.method
    def cosh(self, x: R, /) -> R:
        """Return ½(e^x + e^-x). PyTorch: torch.cosh.

        Raises:
            DtypeError: x not a float tensor.
        """

    @ASINH.method
    def asinh(self, x: R, /) -> R:
        """Return the inverse of sinh, log(x + √(x² + 1)), accurate near 0 and below. PyTorch: torch.asinh.

        Raises:
            DtypeError: x not a float tensor.
        """

    @ACOSH.method
    def acosh(self, x: R, /) -> R:
        """Return the inverse of cosh, log(x + √(x² - 1)); nan below 1. PyTorch: torch.acosh.

        Raises:
            DtypeError: x not a float tensor.
        """

    @ATANH.method
    def atanh(self, x: R, /) -> R:
        """Return the inverse of tanh, ½ log((1 + x)/(1 - x)); ±inf at ±1, nan outside. PyTorch: torch.atanh.

        Raises:
            DtypeError: x not a float tensor.
        """
