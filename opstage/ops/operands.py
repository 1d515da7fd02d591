"""Numbers as tensor operands: `ops.maximum(x, 0)`, `ops.select(mask, x, 0.0)`.

A number becomes a tensor with the shape and dtype of the other operands. An integer next to floats is lossless; a float
next to integers is not, and is an error of the op.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from .arguments import InvalidStatic, plain
from .dims import DimExpr, DimFloat
from .errors import DtypeError
from .infix import scalar_dtype
from .types import BOOL, INT64, DType, dtype_name, is_float, require_value

NUMBERS = frozenset(
    {
        *(bool, int, float, Fraction),
        *(np.dtype(code).type for code in "?" + np.typecodes["AllInteger"] + "efd"),
        *(kind for base in (DimExpr, DimFloat) for kind in (base, *base.__subclasses__())),  # numbers of a run
    }
)
"""The types of numbers accepted as operands. Exact types in a set, since every operand is looked up."""


def with_numbers(ops: Any, op: str, names: tuple[str, ...], operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands with numbers replaced by tensors of the first tensor's shape and dtype.

    If there is no tensor, the operands are returned unchanged, and the op reports what it needs.
    """
    found = next((i for i, operand in enumerate(operands) if type(operand) not in NUMBERS), None)
    like = None if found is None else operands[found]
    if found is None or not hasattr(like, "dtype") or not hasattr(like, "shape"):
        return operands
    return tuple(
        _tensor(ops, op, name, operand, names[found], like) if type(operand) in NUMBERS else operand
        for name, operand in zip(names, operands)
    )


def chosen_numbers(ops: Any, mask: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return both operands of a select as tensors; two numbers get the mask's shape, and floats the program's dtype."""
    if type(x) not in NUMBERS or type(y) not in NUMBERS:
        return with_numbers(ops, "select", ("x", "y"), (x, y))
    if not hasattr(mask, "shape"):
        return x, y
    x, y = plain(x), plain(y)
    dtype = BOOL if type(x) is type(y) is bool else INT64
    for value in (x, y):
        dtype = scalar_dtype(dtype, value, ops.dtype)
    return tuple(ops.full(shape=mask.shape, value=value, dtype=dtype) for value in (x, y))


def _tensor(ops: Any, op: str, name: str, value: Any, other: str, like: Any) -> Any:
    value, dtype = plain(value), like.dtype
    if isinstance(value, bool) and dtype.kind != "b":
        value = int(value)
    if not _holds(dtype, value):
        # still bound, so that the error is located, and a check can continue after it
        cure = "or write an integer that it holds" if dtype.kind in "iu" else "or write True or False"
        reason = f"{name} is the number {value} but {other} is {dtype_name(dtype)}; cast {other} with ops.cast, {cure}"
        value = InvalidStatic(reason, op, DtypeError)
    return ops.full(shape=like.shape, value=value, dtype=dtype)


def _holds(dtype: DType, value: Any) -> bool:
    if is_float(dtype):
        return True
    if dtype.kind == "b" or isinstance(value, (float, Fraction, DimFloat)):
        return dtype.kind == "b" and isinstance(value, bool)
    try:
        require_value(value, dtype)
    except DtypeError:
        return False
    return True
