"""Packed arrays as values of kernels: `x[i, j]`, `x.shape`, `x.size`, `x.dtype`.

An array is a tuple of its `Packed` description, its address and its sizes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import access
from .arithmetic import converted
from .kinds import INT64, Value


class Packed(NamedTuple):
    """An array in row-major order: its dtype's name, and the scope of its memory (see `native.access`)."""

    dtype: str
    scope: str


def is_array(value: Any) -> bool:
    return type(value) is tuple and bool(value) and isinstance(value[0], Packed)


def attribute(builder: Any, array: Any, name: str) -> Any:
    """Return `shape`, `size` or `dtype`; None for any other."""
    packed, _, *shape = array
    if name == "shape":
        return tuple(shape)
    if name == "size":
        size = shape[0]
        for extent in shape[1:]:
            size = Value(INT64, builder.mul(size.ir, extent.ir))
        return size
    return np.dtype(packed.dtype) if name == "dtype" else None


def place(builder: Any, array: Any, index: Any) -> Any:
    """Return the row-major position of the element at an index, an integer per axis; None for other indices."""
    _, _, *shape = array
    indices = index if type(index) is tuple else (index,)
    if len(indices) != len(shape) or not all(isinstance(i, Value) for i in indices):
        return None
    if not all(i.kind.whole for i in indices):
        return None
    first, *rest = [converted(builder, i, INT64).ir for i in indices]  # type: ignore[union-attr]
    for extent, i in zip(shape[1:], rest):
        first = builder.add(builder.mul(first, extent.ir), i)
    return first


def load(builder: Any, array: Any, at: Any) -> Value:
    packed, address, *_ = array
    read = access.load(packed.dtype, packed.scope)
    return Value(read.result, read.build(builder, address.ir, at))


def store(builder: Any, array: Any, at: Any, value: Any) -> bool:
    """Store a number; return False if it cannot be an element of the array."""
    packed, address, *_ = array
    write = access.store(packed.dtype, packed.scope)
    of = write.operands[-1]
    fits = isinstance(value, Value) and not (value.kind.family == "float" and of.whole)
    number = converted(builder, value, of) if fits else None
    if number is not None:
        write.build(builder, address.ir, at, number.ir)
    return number is not None
