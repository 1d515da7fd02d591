"""Functions shared by entries of the kernel tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....ops.types import DType, TensorType
from ...gpu.buffer import DeviceBuffer

Kernel = Callable[..., None]
Entry = Callable[..., tuple[DeviceBuffer, ...]]
Types = tuple[TensorType, ...]


def scalar(value: Any, dtype: DType) -> Any:
    """Convert a static number to a kernel argument, rounded once to the dtype of its tensor."""
    if dtype.kind == "f":
        return dtype.type(float(value))
    return dtype.type(int(value)) if dtype.kind != "b" else np.uint8(bool(value))
