"""The signature of a launch: the type of each argument, by name.

A buffer is a pointer, `float32*`, a tuple of buffers a pointer to pointers, `float32**`, a NumPy number its dtype,
`int32`. A kernel is compiled once per signature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ....ops.types import DType
from ..buffer import DeviceBuffer


class Pointers(NamedTuple):
    """The addresses of buffers of one dtype, on the device: the device form of a tuple of buffers."""

    table: DeviceBuffer
    dtype: DType


Kernel = Callable[..., None]
Signature = tuple[str, ...]

_POINTERS = {
    np.dtype(np.float32): "float32*",
    np.dtype(np.int32): "int32*",
    np.dtype(np.int64): "int64*",
    np.dtype(np.bool_): "uint8*",
}
_NUMBERS = {t: np.dtype(t).name for t in (np.float32, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.float64)}


def signature_of(arguments: tuple[Any, ...]) -> Signature:
    """Return the type of each argument of a launch: buffers, tuples of buffers, and NumPy numbers."""
    return tuple(
        [_POINTERS[a.dtype] if type(a) is DeviceBuffer else _NUMBERS.get(type(a)) or _table(a) for a in arguments]
    )


def _table(argument: Any) -> str:
    return f"{_POINTERS[(argument[0] if type(argument) is tuple else argument).dtype]}*"


def show(kernel: Kernel, signature: Signature) -> str:
    """Format a kernel with its signature: `max_pool_kernel(int32, float32*)`."""
    return f"{kernel.__name__}({', '.join(signature)})"
