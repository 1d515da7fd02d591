"""The torch library, imported lazily."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ..ops.errors import UnsupportedError, UsageError
from ..ops.types import DType

_BFLOAT16 = np.dtype(np.float32, metadata={"torch": "bfloat16"})

_NUMPY: dict[str, DType] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": _BFLOAT16,
    "int64": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}


@cache
def library() -> Any:
    """Return the package torch. Raises UsageError if it is not installed."""
    try:
        return import_module("torch")
    except ImportError:
        why = "PyTorch programs need the package torch, which is not installed; pip install 'opstage[torch]'"
        raise UsageError(why) from None


def dtype_of(dtype: Any) -> DType:
    """Return NumPy's dtype for one of PyTorch; marked float32 for bfloat16. Raises UnsupportedError."""
    name = str(dtype).removeprefix("torch.")
    if name not in _NUMPY:
        raise UnsupportedError(f"elements of type {name} have no dtype here")
    return _NUMPY[name]


def part_dtype(dtype: Any) -> DType:
    """Return the dtype of the real part of a complex dtype, or any other dtype itself. Raises UnsupportedError."""
    return dtype_of(dtype.to_real() if dtype.is_complex else dtype)


def is_bfloat16(dtype: DType) -> bool:
    """Whether PyTorch declares this float32 as bfloat16."""
    return dict(dtype.metadata or {}) == {"torch": "bfloat16"}


def array_of(tensor: Any) -> Any:
    """Return a tensor's elements as an array that owns its memory. Raises UnsupportedError for elements without a
    dtype."""
    torch = library()
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"its tensor is {tensor.layout}; only dense ones are read")
    dtype = dtype_of(tensor.dtype)
    tensor = tensor.detach()
    if is_bfloat16(dtype):
        tensor = tensor.to(torch.float32)
    array = tensor.to("cpu", copy=True).contiguous().numpy()
    return array.astype(np.float32) if array.dtype == np.float16 else array


def constant_of(tensor: Any) -> Any:
    """Do the same as `array_of`, also for complex tensors."""
    if not tensor.is_complex():
        return array_of(tensor)
    real, imaginary = (array_of(each) for each in (tensor.real, tensor.imag.resolve_neg()))
    return real + 1j * imaginary
