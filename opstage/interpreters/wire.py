"""The form of host arrays in the memory of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ops.errors import UsageError
from ..ops.types import DType, as_dtype, dtype_name
from .host import as_array

Array = npt.NDArray[Any]

DEVICE_DTYPES: tuple[DType, ...] = tuple(np.dtype(t) for t in (np.float32, np.int32, np.int64, np.bool_))
"""The dtypes that devices hold."""

_FORMATS: dict[DType, Callable[[Array], Array]] = {}


def register_wire_format(dtype: str, encode: Callable[[Array], Array]) -> None:
    """Upload arrays of a dtype without a device form as the result of `encode(array)`, whose dtype has one.

    dtype   such as "float64" or "exact"
    encode  array -> array of the same shape, float32, int32, int64 or bool

    So arguments, parameters and optimizer state are uploaded. Programs compute in the device's dtype, which constants
    and results have too; on the host, parameters and state keep `dtype`.

    Raises:
        UsageError: no such dtype, or one that a device has.
    """
    source = as_dtype(dtype)
    if source in DEVICE_DTYPES:
        raise UsageError(f"{dtype_name(source)} has a device form already; a wire format is for a dtype without one")
    _FORMATS[source] = encode


def has_wire_form(dtype: DType) -> bool:
    """Whether arrays of a dtype can be uploaded."""
    return dtype in DEVICE_DTYPES or dtype in _FORMATS


def wire_dtype(dtype: DType) -> DType:
    """The dtype that arrays of `dtype` have on the device; the same if it has a form there, or none is registered."""
    return to_wire(as_array(0, dtype, force=True)).dtype if dtype in _FORMATS else dtype


def no_wire_form(dtype: DType) -> str:
    """The error for a dtype that cannot be uploaded, with advice."""
    names = ", ".join(map(dtype_name, DEVICE_DTYPES))
    return (
        f"a tensor of {dtype_name(dtype)} has no form on the device, which holds {names}; use "
        "Options(dtype='float32'), or opstage.register_wire_format to say what it becomes"
    )


def to_wire(array: Array) -> Array:
    """The array in its uploaded form. Raises UsageError for a dtype without a device form."""
    if array.dtype in DEVICE_DTYPES:
        return np.ascontiguousarray(array).reshape(array.shape)
    encode = _FORMATS.get(array.dtype)
    if encode is None:
        raise UsageError(no_wire_form(array.dtype))
    encoded = np.asarray(encode(array))
    if encoded.shape != array.shape or encoded.dtype not in DEVICE_DTYPES:
        raise UsageError(
            f"the wire format of {dtype_name(array.dtype)} made {encoded.dtype} of shape {encoded.shape} from shape "
            f"{array.shape}; it must keep the shape and give one of the device's dtypes"
        )
    return np.ascontiguousarray(encoded).reshape(array.shape)
