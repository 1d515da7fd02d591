"""Keys for lookup by meaning: static parameters by type and bits, arrays by bytes.

Python's equality identifies 0.0 with -0.0 and 1 with True, and distinguishes a nan from itself.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.closed import Body
from ....ops.primitive import Static


def static_key(static: Static) -> Hashable:
    """Return a key that is equal for static parameters with the same names, types and bits; bodies are compared by
    content."""
    return tuple([(name, value_key(value)) for name, value in sorted(static.items())]) if static else ()


def value_key(value: Any) -> Hashable:
    """Return the key of one static parameter."""
    kind = type(value)
    if isinstance(value, str):
        return value
    if kind is float:
        return struct.pack("<d", value)
    if kind is tuple:
        return tuple([value_key(entry) for entry in value])
    if kind is Body:
        return body_key(value)
    return kind, value


def array_key(array: npt.NDArray[Any]) -> Hashable:
    """Return a key that is equal for arrays with the same shape, dtype and bits."""
    if array.dtype == object:
        return array.shape, "exact", tuple([(type(value), value) for value in array.flat])
    return array.shape, array.dtype.str, np.ascontiguousarray(array).tobytes()


def body_key(body: Body) -> Hashable:
    """Return a key of a body's computation, equal for bodies with the same equations between the same slots."""
    return (
        body.inputs,
        tuple([(constant.slot, array_key(constant.value)) for constant in body.constants]),
        tuple([(e.primitive, static_key(e.static), e.inputs, e.outputs) for e in body.equations]),
        body.outputs,
        tuple([(len(type_.shape), *type_.shape, type_.dtype.str) for type_ in body.types]),
    )
