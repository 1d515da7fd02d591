"""What a launch's arguments say of the kernel that it needs: a type for each, by name.

A buffer is a pointer, `float32*`, a number of NumPy's its dtype, `int32`. A kernel is compiled once for each signature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..buffer import DeviceBuffer

Kernel = Callable[..., None]
Signature = tuple[str, ...]

_POINTERS = {"f4": "float32*", "i4": "int32*", "i8": "int64*", "b1": "uint8*"}


def signature_of(arguments: tuple[Any, ...]) -> Signature:
    """The type of each argument of a launch: buffers, and numbers that have NumPy's types."""
    return tuple(
        [_POINTERS[a.dtype.str[1:]] if type(a) is DeviceBuffer else a.dtype.name for a in arguments],
    )


def show(kernel: Kernel, signature: Signature) -> str:
    """`max_pool_kernel(int32, float32*)`."""
    return f"{kernel.__name__}({', '.join(signature)})"
