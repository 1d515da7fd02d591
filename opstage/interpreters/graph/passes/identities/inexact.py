"""Identities of the real numbers that floats do not keep: a zero may change its sign, nan become a number, the last
bit differ. They are applied only when asked for.
"""

from __future__ import annotations

from typing import Any

from .....ops.catalogue.elementwise import ADD, DIV, EXP, INV, LOG, MUL, NEG, SCALE, SUB
from .....ops.catalogue.layout import BROADCAST_TO, RESHAPE
from .....ops.catalogue.logic import FULL
from .....ops.catalogue.reduction import REDUCE_SUM
from .....ops.dims import prod, ratio
from .....ops.primitive import Primitive, Static
from .....ops.types import TensorType, dtype_name
from .arithmetic import plain, rounded
from .surroundings import Inputs, Rule, Surroundings, is_one


def _filled(around: Surroundings, out: TensorType, value: Any) -> int:
    return around.bind(FULL, shape=out.shape, value=value, dtype=dtype_name(out.dtype))


def _is(around: Surroundings, slot: int, value: int) -> bool:
    number = around.number(slot)
    return number is not None and bool(number == value)


def _add(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    """x + 0 = x"""
    x, y = inputs
    return x if _is(around, y, 0) else y if _is(around, x, 0) else None


def _sub(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    """x - 0 = x, 0 - y = -y, x - x = 0"""
    x, y = inputs
    if _is(around, y, 0):
        return x
    if _is(around, x, 0):
        return around.bind(NEG, y)
    return _filled(around, out, 0) if x == y else None


def _mul(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    """x · 0 = 0"""
    return _filled(around, out, 0) if any(_is(around, slot, 0) for slot in inputs) else None


def _div(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    """x / x = 1, x / c = (1/c) · x"""
    x, y = inputs
    if x == y:
        return _filled(around, out, 1)
    number = around.number(y)
    return around.bind(SCALE, x, c=1 / plain(number)) if number is not None and number != 0 else None


def _neg(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    """-(x - y) = y - x"""
    difference = around.made(inputs[0], SUB)
    return around.bind(SUB, *difference.inputs[::-1]) if difference else None


def _scale(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    """0 · x = 0, a · (b · x) = (a·b) · x"""
    c = static["c"]
    if rounded(c, out.dtype) is None:
        return None
    if c == 0:
        return _filled(around, out, 0)
    inner = around.made(inputs[0], SCALE)
    if inner is None or rounded(inner.static["c"], out.dtype) is None:
        return None
    return around.bind(SCALE, *inner.inputs, c=c * inner.static["c"])


def _inv(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    """1 / (1 / x) = x"""
    inner = around.made(inputs[0], INV)
    return inner.inputs[0] if inner else None


def _log(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    """log eˣ = x"""
    inner = around.made(inputs[0], EXP)
    return inner.inputs[0] if inner else None


def _reduce_sum(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    """The sum of n copies is n times the one that was repeated; a sum of sums is one sum."""
    (x,), axes, keepdims = inputs, static["axes"], static["keepdims"]
    if out.dtype != around.type(x).dtype or out.dtype.kind == "i":
        return None
    if inner := around.made(x, REDUCE_SUM):
        if inner.static["keepdims"] != keepdims:
            return None
        kept = [a for a in range(len(around.shape(inner.inputs[0]))) if keepdims or a not in inner.static["axes"]]
        every = {*inner.static["axes"], *[kept[axis] for axis in axes]}
        return around.bind(REDUCE_SUM, *inner.inputs, axes=tuple(sorted(every)), keepdims=keepdims)
    repeated = around.made(x, BROADCAST_TO)
    if repeated is None:
        return None
    (source,) = repeated.inputs
    shape, before = around.shape(x), around.shape(source)
    added = len(shape) - len(before)
    if not all(axis < added or is_one(before[axis - added]) for axis in axes):
        return None
    left = tuple([size for axis, size in enumerate(shape) if axis not in axes])
    rest = tuple([size for axis, size in enumerate(before) if axis + added not in axes])
    one = around.bind(BROADCAST_TO, around.bind(RESHAPE, source, shape=rest), shape=left)
    total = around.bind(SCALE, one, c=ratio(prod(shape[axis] for axis in axes), 1))
    return around.bind(RESHAPE, total, shape=out.shape)


RULES: dict[Primitive, tuple[Rule, ...]] = {
    ADD: (_add,),
    SUB: (_sub,),
    MUL: (_mul,),
    DIV: (_div,),
    NEG: (_neg,),
    SCALE: (_scale,),
    INV: (_inv,),
    LOG: (_log,),
    REDUCE_SUM: (_reduce_sum,),
}
