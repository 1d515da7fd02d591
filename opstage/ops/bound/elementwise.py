"""Arithmetic and functions of one element."""

from __future__ import annotations

from typing import final

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
    SAFE_LOG,
    SCALE,
    SIGMOID,
    SIN,
    SOFTPLUS,
    SQRT,
    SUB,
    TANH,
)
from ..protocol import Number, R
from .calls import Calls


class ElementwiseOps(Calls[R]):
    __slots__ = ()

    @final
    def add(self, x: R, y: R, /) -> R:
        return self._call2(ADD, x, y)

    @final
    def sub(self, x: R, y: R, /) -> R:
        return self._call2(SUB, x, y)

    @final
    def mul(self, x: R, y: R, /) -> R:
        return self._call2(MUL, x, y)

    @final
    def div(self, x: R, y: R, /) -> R:
        return self._call2(DIV, x, y)

    @final
    def maximum(self, x: R, y: R, /) -> R:
        return self._call2(MAXIMUM, x, y)

    @final
    def minimum(self, x: R, y: R, /) -> R:
        return self._call2(MINIMUM, x, y)

    @final
    def neg(self, x: R, /) -> R:
        return self._call1(NEG, x)

    @final
    def abs(self, x: R, /) -> R:
        return self._call1(ABS, x)

    @final
    def sqrt(self, x: R, /) -> R:
        return self._call1(SQRT, x)

    @final
    def exp(self, x: R, /) -> R:
        return self._call1(EXP, x)

    @final
    def log(self, x: R, /) -> R:
        return self._call1(LOG, x)

    @final
    def inv(self, x: R, /) -> R:
        return self._call1(INV, x)

    @final
    def sin(self, x: R, /) -> R:
        return self._call1(SIN, x)

    @final
    def cos(self, x: R, /) -> R:
        return self._call1(COS, x)

    @final
    def tanh(self, x: R, /) -> R:
        return self._call1(TANH, x)

    @final
    def sigmoid(self, x: R, /) -> R:
        return self._call1(SIGMOID, x)

    @final
    def softplus(self, x: R, /) -> R:
        return self._call1(SOFTPLUS, x)

    @final
    def erf(self, x: R, /) -> R:
        return self._call1(ERF, x)

    @final
    def scale(self, x: R, /, *, c: Number) -> R:
        return self._call(SCALE, (x,), {"c": c})

    @final
    def pow(self, x: R, /, *, exponent: Number) -> R:
        return self._call(POW, (x,), {"exponent": exponent})

    @final
    def clamp(self, x: R, /, *, lo: Number, hi: Number) -> R:
        return self._call(CLAMP, (x,), {"lo": lo, "hi": hi})

    @final
    def safe_log(self, x: R, /, *, eps: Number) -> R:
        return self._call(SAFE_LOG, (x,), {"eps": eps})
