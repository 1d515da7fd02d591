"""Algebraic identities: an op is replaced by a simpler one with the same result, or by an operand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from ....ops.activation import RELU
from ....ops.body import Body
from ....ops.elementwise import ABS, ADD, DIV, INV, MAXIMUM, MINIMUM, MUL, NEG, POW, SCALE, SQRT, SUB
from ....ops.layout import RESHAPE
from ....ops.logic import CAST, DETACH, EQUAL, FULL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, SELECT
from ....ops.primitive import Primitive, Static
from ....ops.reduction import REDUCE_MAX, REDUCE_MEAN, REDUCE_SUM, SUM
from ....ops.types import BOOL, DTYPES, EXACT, FLOAT32, FLOAT64, INT32, INT64, DType, TensorType, dtype_name, is_float
from .layout_identities import LAYOUT, Inputs, Rule, Surroundings, is_one
from .rewrite import Rewrite


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


ARITHMETIC: dict[Primitive, tuple[Rule, ...]] = {
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


# Logic ----------------------------------------------------------------------------------------------------------------


HELD_BY: dict[DType, frozenset[DType]] = {
    BOOL: frozenset((INT32, INT64, FLOAT32, FLOAT64)),
    INT32: frozenset((INT64, FLOAT64)),
    FLOAT32: frozenset((FLOAT64,)),
}
"""The dtypes that represent all values of another."""


def _mask(around: Surroundings, out: TensorType, value: bool) -> int:
    return around.bind(FULL, shape=out.shape, value=value, dtype=dtype_name(BOOL))


def _select(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    mask, x, y = inputs
    if x == y:
        return x
    chosen = around.number(mask)
    if chosen is not None:
        return x if chosen else y
    negated = around.made(mask, LOGICAL_NOT)
    return around.bind(SELECT, *negated.inputs, y, x) if negated else None


def _logical_not(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    negated = around.made(inputs[0], LOGICAL_NOT)
    return negated.inputs[0] if negated else None


def _logical_and(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    x, y = inputs
    if x == y:
        return x
    for mask, other in (inputs, inputs[::-1]):
        number = around.number(mask)
        if number is not None:
            return other if number else mask
    return None


def _less(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    return _mask(around, out, False) if inputs[0] == inputs[1] else None


def _equal(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    """x = x and x <= x, except for floats, which may be nan."""
    same = inputs[0] == inputs[1] and around.type(inputs[0]).dtype.kind in "iub"
    return _mask(around, out, True) if same else None


def _cast(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    (x,) = inputs
    if around.type(x).dtype == out.dtype:
        return x
    first = around.made(x, CAST)
    if first is None:
        return None
    (source,) = first.inputs
    held = HELD_BY.get(around.type(source).dtype, frozenset())
    return around.bind(CAST, source, dtype=static["dtype"]) if DTYPES[first.static["dtype"]] in held else None


def _detach(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    """Remove `detach`: derivatives have been taken before a graph is optimised."""
    return inputs[0]


LOGIC: dict[Primitive, tuple[Rule, ...]] = {
    SELECT: (_select,),
    LOGICAL_NOT: (_logical_not,),
    LOGICAL_AND: (_logical_and,),
    LESS: (_less,),
    LESS_EQUAL: (_equal,),
    EQUAL: (_equal,),
    CAST: (_cast,),
    DETACH: (_detach,),
}


# Reduction ------------------------------------------------------------------------------------------------------------


def _of_one_element(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    before = around.type(inputs[0])
    if before.dtype != out.dtype or not all(is_one(before.shape[axis]) for axis in static["axes"]):
        return None
    return around.bind(RESHAPE, *inputs, shape=out.shape)


def _sum(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    axes = tuple(range(len(around.shape(inputs[0]))))
    return around.bind(REDUCE_SUM, *inputs, axes=axes, keepdims=False)


REDUCTION: dict[Primitive, tuple[Rule, ...]] = {
    SUM: (_sum,),
    REDUCE_SUM: (_of_one_element,),
    REDUCE_MEAN: (_of_one_element,),
    REDUCE_MAX: (_of_one_element,),
}


RULES: Mapping[Primitive, tuple[Rule, ...]] = ARITHMETIC | LOGIC | LAYOUT | REDUCTION  # disjoint primitives


def simplify(body: Body) -> Body:
    """Apply all identities that hold in IEEE arithmetic, for zeros of either sign, infinities and nan.

    Payloads of nan are not preserved, nor is the sign of a sum of the single element -0.0. Identities of real numbers
    that do not hold for floats, such as x - x = 0, are not applied.

    Layout ops with a fixed permutation or change of shape become `permute` and `reshape`, so that they combine.
    """
    rewrite = Rewrite(body)
    surroundings = Surroundings(rewrite, RULES)
    for equation in body.equations:
        inputs = rewrite.inputs(equation)
        if equation.primitive in RULES:
            surroundings.place = equation
            types = rewrite.types
            (result,) = equation.outputs
            slot = surroundings.simpler(equation.primitive, inputs, equation.static, types[result])
            if slot is not None:
                rewrite.replace((result,), (slot,))
                continue
        surroundings.see(rewrite.keep(equation, inputs))
    return rewrite.close()
