"""Guess the result types of a rejected call, so that a check can continue to the next error."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from ...ops.dims import UNKNOWN
from ...ops.invalid_static import InvalidStatic
from ...ops.primitive import Primitive, Static
from ...ops.types import FLOAT32, DType, TensorType


def guess_types(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> tuple[TensorType, ...]:
    """Return result types of unknown dims for a failed call.

    They are the results of the op's rule for operands of unknown dims, if needed with another dtype and with axis 0 for
    an invalid axis; else the last operand's type (x is last in linear and conv).
    """
    model = next((t for t in reversed(types) if t.dtype.kind in "fO"), types[-1] if types else None)
    if model is None:
        model = TensorType((), np.dtype(np.float32))
    guess = _unknown(model)
    valid = {name: _valid(value) for name, value in static.items()}
    for operands in (tuple(map(_unknown, types)), (guess,) * len(types), (_unknown(model, FLOAT32),) * len(types)):
        with suppress(Exception):  # the rule was not written for invalid operands
            return tuple(map(_unknown, primitive.infer(operands, valid)))
    return (guess,) * (len(primitive.outputs) + len(primitive.residuals))


def _unknown(type_: TensorType, dtype: DType | None = None) -> TensorType:
    return TensorType((UNKNOWN,) * len(type_.shape), type_.dtype if dtype is None else dtype)


def _valid(value: Any) -> Any:
    """Return a static argument, with the first axis instead of an invalid one."""
    if isinstance(value, InvalidStatic):
        return 0
    return (0,) if isinstance(value, tuple) and any(isinstance(v, InvalidStatic) for v in value) else value
