"""ONNX's numbers for element types, as NumPy's dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops.errors import UnsupportedError
from ..ops.types import DType

NUMPY: dict[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
}
"""Element types by their number in the enumeration TensorProto.DataType."""

_BFLOAT16 = 16  # float32 represents all of its values, so it becomes float32 with a mark
_MARK: dict[str, Any] = {"onnx": "bfloat16"}

NAMES = {8: "string", 14: "complex64", 15: "complex128"}


def dtype_of(element: int) -> DType:
    """Return the dtype of an element type. Raises UnsupportedError."""
    if element == _BFLOAT16:
        return np.dtype(np.float32, metadata=_MARK)
    if element not in NUMPY:
        raise UnsupportedError(f"elements of type {NAMES.get(element, f'number {element}')} have no dtype here")
    return np.dtype(NUMPY[element])


def is_bfloat16(dtype: DType) -> bool:
    """Whether the file declares this float32 as bfloat16."""
    return dict(dtype.metadata or {}) == _MARK
