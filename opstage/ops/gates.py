"""Elementwise functions with additional inputs: nan replacement, learned slopes, gating."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .arguments import Number
from .dims import exact_div
from .primitive import R
from .tools import axis_of, equal_sizes, error, placed, zeros
from .types import EXACT, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


def nan_to_num(
    ops: Ops[R], x: R, /, *, nan: Number = 0.0, posinf: Number | None = None, neginf: Number | None = None
) -> R:
    """x with nan, inf and -inf replaced; None means the largest and the smallest finite number.

    Replaced elements have no gradient. Integers are returned unchanged. PyTorch: torch.nan_to_num. NumPy:
    np.nan_to_num.

    Raises:
        ShapeError: an invalid argument.
    """
    if x.dtype.kind != "f" or x.dtype == EXACT:
        return x
    most = float(np.finfo(np.dtype(str(x.dtype))).max)

    def full(value: Number) -> R:
        return ops.full(shape=x.shape, value=value, dtype=x.dtype)

    out = ops.select(ops.isnan(x), full(nan), x)
    out = ops.select(ops.equal(x, full(math.inf)), full(most if posinf is None else posinf), out)
    return ops.select(ops.equal(x, full(-math.inf)), full(-most if neginf is None else neginf), out)


def prelu(ops: Ops[R], x: R, weight: R, /, *, axis: int = 1) -> R:
    """x where x > 0, else weight·x; the derivative at 0 is the weight.

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
        axis = axis_of(ops, op, axis, rank)
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
    """a·σ(b) for the halves a and b of an axis of even size; the result is half as long.

    PyTorch: torch.nn.functional.glu. Source: Dauphin et al. 2017.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: no such axis; operands that do not fit each other.
    """
    op = "glu"
    axis = axis_of(ops, op, axis, len(x.shape))
    half = x.shape[axis]

    def message() -> str:
        return f"x is {show_shape(x.shape)}: axis {axis} has two halves, so its size must be even"

    size = []
    placed(ops, op, lambda: size.append(exact_div(half, 2, message)))
    a, b = ops.split(x, sizes=(size[0], size[0]), axis=axis)
    return ops.mul(a, ops.sigmoid(b))
