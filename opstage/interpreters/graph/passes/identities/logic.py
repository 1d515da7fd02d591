"""Identities of masks, selections and casts."""

from __future__ import annotations

from .....ops.catalogue.logic import CAST, DETACH, EQUAL, FULL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, SELECT
from .....ops.primitive import Primitive, Static
from .....ops.types import BOOL, DTYPES, FLOAT32, FLOAT64, INT32, INT64, DType, TensorType, dtype_name
from .surroundings import Inputs, Rule, Surroundings

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


RULES: dict[Primitive, tuple[Rule, ...]] = {
    SELECT: (_select,),
    LOGICAL_NOT: (_logical_not,),
    LOGICAL_AND: (_logical_and,),
    LESS: (_less,),
    LESS_EQUAL: (_equal,),
    EQUAL: (_equal,),
    CAST: (_cast,),
    DETACH: (_detach,),
}
