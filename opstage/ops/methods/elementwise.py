"""Elementwise arithmetic and functions."""

from __future__ import annotations

from ..arguments import Number
from ..catalogue.elementwise import (
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
    POWER,
    SAFE_LOG,
    SCALE,
    SIGMOID,
    SIN,
    SOFTPLUS,
    SQRT,
    SUB,
    TANH,
)
from ..primitive import R
from .calls import Calls


class ElementwiseOps(Calls[R]):
    __slots__ = ()

    def add(self, x: R | Number, y: R | Number, /) -> R:
        """x + y, of one shape and dtype. PyTorch: torch.add.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(ADD, x, y)

    def sub(self, x: R | Number, y: R | Number, /) -> R:
        """x - y, of one shape and dtype. PyTorch: torch.sub.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(SUB, x, y)

    def mul(self, x: R | Number, y: R | Number, /) -> R:
        """x · y, of one shape and dtype. PyTorch: torch.mul.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(MUL, x, y)

    def div(self, x: R | Number, y: R | Number, /) -> R:
        """x / y, of one shape and float dtype; IEEE at y = 0. PyTorch: torch.div.

        Raises:
            DtypeError: x not a float tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(DIV, x, y)

    def maximum(self, x: R | Number, y: R | Number, /) -> R:
        """The larger of x and y, nan if either is; a tie splits the gradient 0.5/0.5. PyTorch: torch.maximum.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(MAXIMUM, x, y)

    def minimum(self, x: R | Number, y: R | Number, /) -> R:
        """The smaller of x and y, nan if either is; a tie splits the gradient 0.5/0.5. PyTorch: torch.minimum.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(MINIMUM, x, y)

    def neg(self, x: R, /) -> R:
        """-x. PyTorch: torch.neg.

        Raises:
            DtypeError: x a mask.
        """
        return self._call1(NEG, x)

    def abs(self, x: R, /) -> R:
        """|x|; its derivative at 0 is 0. PyTorch: torch.abs.

        Raises:
            DtypeError: x a mask.
        """
        return self._call1(ABS, x)

    def sqrt(self, x: R, /) -> R:
        """√x; nan below 0, derivative +inf at 0. PyTorch: torch.sqrt.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(SQRT, x)

    def exp(self, x: R, /) -> R:
        """e^x. PyTorch: torch.exp.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(EXP, x)

    def log(self, x: R, /) -> R:
        """Natural logarithm; -inf at 0, nan below. PyTorch: torch.log.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(LOG, x)

    def inv(self, x: R, /) -> R:
        """1/x. PyTorch: torch.reciprocal.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(INV, x)

    def reciprocal(self, x: R, /) -> R:
        """1/x, as inv. PyTorch: torch.reciprocal.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(INV, x)

    def square(self, x: R, /) -> R:
        """x · x. PyTorch: torch.square.

        Raises:
            DtypeError: x a mask.
        """
        return self._call2(MUL, x, x)

    def rsqrt(self, x: R, /) -> R:
        """1/√x; inf at 0, nan below. PyTorch: torch.rsqrt.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call(POW, (x,), {"exponent": -0.5})

    def sin(self, x: R, /) -> R:
        """Sine, of radians. PyTorch: torch.sin.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(SIN, x)

    def cos(self, x: R, /) -> R:
        """Cosine, of radians. PyTorch: torch.cos.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(COS, x)

    def tanh(self, x: R, /) -> R:
        """Hyperbolic tangent. PyTorch: torch.tanh.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(TANH, x)

    def sigmoid(self, x: R, /) -> R:
        """1/(1 + e^-x), without overflow. PyTorch: torch.sigmoid.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(SIGMOID, x)

    def softplus(self, x: R, /) -> R:
        """log(1 + e^x), without overflow. PyTorch: torch.nn.functional.softplus.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(SOFTPLUS, x)

    def erf(self, x: R, /) -> R:
        """Error function, 2/√π ∫₀ˣ e^(-t²) dt. PyTorch: torch.erf.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(ERF, x)

    def scale(self, x: R, /, *, c: Number) -> R:
        """c · x for a static number c, rounded once to x's dtype. PyTorch: x * c.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(SCALE, (x,), {"c": c})

    def pow(self, x: R, /, *, exponent: Number) -> R:
        """x^exponent for a static exponent. PyTorch: torch.pow.

        IEEE results; for ±½ those of √x and 1/√x. Its derivative, exponent · x^(exponent - 1), is 0 for exponent 0.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(POW, (x,), {"exponent": exponent})

    def power(self, x: R | Number, y: R | Number, /) -> R:
        """x^y of two tensors of one shape and float dtype. PyTorch: torch.pow.

        nan where x < 0 and y is not an integer. Its derivative by y is 0 where x = 0 and y >= 0.

        Raises:
            DtypeError: x not a float tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(POWER, x, y)

    def clamp(self, x: R, /, *, lo: Number, hi: Number) -> R:
        """x limited to [lo, hi]; gradient 1 inside and at the bounds, 0 outside. PyTorch: torch.clamp.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(CLAMP, (x,), {"lo": lo, "hi": hi})

    def safe_log(self, x: R, /, *, eps: Number) -> R:
        """log(max(x, eps)); gradient 1/x where x >= eps, else 0. PyTorch: torch.log(torch.clamp(x, min=eps)).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument.
        """
        return self._call(SAFE_LOG, (x,), {"eps": eps})
