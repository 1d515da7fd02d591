"""The torch library, imported when it is first needed."""

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
    """The package torch. Raises UsageError where it is not installed."""
    try:
        return import_module("torch")
    except ImportError:
        why = "PyTorch programs need the package torch, which is not installed; pip install 'opstage[torch]'"
        raise UsageError(why) from None


def dtype_of(dtype: Any) -> DType:
    """NumPy's dtype of one of PyTorch's; float32 with a mark for bfloat16. Raises UnsupportedError."""
    name = str(dtype).removeprefix("torch.")
    if name not in _NUMPY:
        raise UnsupportedError(f"elements of type {name} have no dtype here")
    return _NUMPY[name]


def part_dtype(dtype: Any) -> DType:
    """That of the real part of PyTorch's complex ones, and of others their own. Raises UnsupportedError."""
    return dtype_of(dtype.to_real() if dtype.is_complex else dtype)


def is_bfloat16(dtype: DType) -> bool:
    """Whether PyTorch calls this float32 bfloat16."""
    return dict(dtype.metadata or {}) == {"torch": "bfloat16"}


def array_of(tensor: Any) -> Any:
    """A tensor's elements as an array of their own memory. Raises UnsupportedError for elements without a dtype."""
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
    """The same, of complex tensors too."""
    if not tensor.is_complex():
        return array_of(tensor)
    real, imaginary = (array_of(each) for each in (tensor.real, tensor.imag.resolve_neg()))
    return real + 1j * imaginary
