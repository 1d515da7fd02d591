"""Arithmetic identities that are exact in IEEE floats: neutral operands, signs, powers of two."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from .....ops.catalogue.activation import RELU
from .....ops.catalogue.elementwise import ABS, ADD, DIV, INV, MAXIMUM, MINIMUM, MUL, NEG, POW, SCALE, SQRT, SUB
from .....ops.catalogue.logic import FULL
from .....ops.primitive import Primitive, Static
from .....ops.types import EXACT, DType, TensorType, dtype_name, is_float
from .surroundings import Inputs, Rule, Surroundings


def plain(number: Any) -> Any:
    """Return a number as a static parameter: a Python int or float, or a Fraction."""
    return number.item() if isinstance(number, np.generic) else number


def zero_to_add(number: Any) -> bool:
    """Return whether x + number is x for every x: -0.0, as 0.0 + -0.0 is 0.0; for integers and fractions 0."""
    return number is not None and number == 0 and (not isinstance(number, np.floating) or bool(np.signbit(number)))


def zero_to_subtract(number: Any) -> bool:
    """Return whether x - number is x for every x: 0.0, as -0.0 - 0.0 is -0.0."""
    return number is not None and number == 0 and not (isinstance(number, np.floating) and bool(np.signbit(number)))


def rounded(c: Any, dtype: DType) -> Any:
    """Return the static number `c` converted to `dtype`; None for an expression in dims."""
    if type(c) not in (int, float, Fraction):
        return None
    return Fraction(c) if dtype == EXACT else dtype.type(float(c))


def negative(c: Any) -> Any:
    """Return -c; 0 becomes -0.0."""
    return -c if c != 0 else -float(c)


def _add(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    x, y = inputs
    if zero_to_add(around.number(y)):
        return x
    if zero_to_add(around.number(x)):
        return y
    if negated := around.made(y, NEG):
        return around.bind(SUB, x, *negated.inputs)
    if negated := around.made(x, NEG):
        return around.bind(SUB, y, *negated.inputs)
    return None


def _sub(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    x, y = inputs
    if zero_to_subtract(around.number(y)):
        return x
    if zero_to_add(around.number(x)):
        return around.bind(NEG, y)
    if negated := around.made(y, NEG):
        return around.bind(ADD, x, *negated.inputs)
    return None


def _mul(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    for x, other in (inputs, inputs[::-1]):
        number = around.number(other)
        if number is None or number != number:
            continue
        if number == 1:
            return x
        if is_float(out.dtype):
            return around.bind(SCALE, x, c=plain(number))
    x, y = inputs
    if (left := around.made(x, NEG)) and (right := around.made(y, NEG)):
        return around.bind(MUL, *left.inputs, *right.inputs)
    return None


def _div(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    x, y = inputs
    divisor = around.number(y)
    if divisor is not None and has_inverse(divisor):
        return around.bind(SCALE, x, c=plain(type(divisor)(1) / divisor))
    dividend = around.number(x)
    if dividend is not None and dividend == 1:
        return around.bind(INV, y)
    return None


def has_inverse(number: Any) -> bool:
    """Return whether 1/number is exact: nonzero fractions; among floats the powers of two with a normal inverse."""
    if isinstance(number, Fraction):
        return number != 0
    if not np.isfinite(number) or abs(math.frexp(number)[0]) != 0.5:
        return False
    return bool(np.finfo(number).tiny <= abs(1 / float(number)) <= np.finfo(number).max)


def _neg(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    (x,) = inputs
    if negated := around.made(x, NEG):
        return negated.inputs[0]
    scaled = around.made(x, SCALE)
    if scaled and rounded(scaled.static["c"], out.dtype) is not None:
        return around.bind(SCALE, *scaled.inputs, c=negative(scaled.static["c"]))
    return None


def _scale(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    (x,), c = inputs, static["c"]
    factor = rounded(c, out.dtype)
    if factor is None:
        return None
    if factor == 1:
        return x
    if negated := around.made(x, NEG):
        return around.bind(SCALE, *negated.inputs, c=negative(c))
    return around.bind(NEG, x) if factor == -1 else None


def _pow(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    (x,), exponent = inputs, rounded(static["exponent"], out.dtype)
    if exponent is None:
        return None
    if exponent == 0:
        return around.bind(FULL, shape=out.shape, value=1.0, dtype=dtype_name(out.dtype))
    if exponent == 1:
        return x
    if exponent == 2:
        return around.bind(MUL, x, x)
    if exponent == -1:
        return around.bind(INV, x)
    if out.dtype != EXACT and exponent == 0.5:
        return around.bind(SQRT, x)
    if out.dtype != EXACT and exponent == -0.5:
        return around.bind(INV, around.bind(SQRT, x))
    return None


def _abs(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    (x,) = inputs
    if around.made(x, ABS):
        return x
    negated = around.made(x, NEG)
    return around.bind(ABS, *negated.inputs) if negated else None


def _relu(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    return inputs[0] if around.made(inputs[0], RELU) else None


def _extremum(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    x, y = inputs
    return x if x == y else None


RULES: dict[Primitive, tuple[Rule, ...]] = {
    ADD: (_add,),
    SUB: (_sub,),
    MUL: (_mul,),
    DIV: (_div,),
    NEG: (_neg,),
    SCALE: (_scale,),
    POW: (_pow,),
    ABS: (_abs,),
    RELU: (_relu,),
    MAXIMUM: (_extremum,),
    MINIMUM: (_extremum,),
}
