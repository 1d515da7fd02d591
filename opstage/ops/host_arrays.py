"""Host arrays for all interpreters: conversion, rounding, layout, addresses, and their form on a device."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from operator import and_
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .array_conversion import as_numpy
from .dims import DimExpr, DimFloat
from .errors import UsageError
from .static_arguments import plain
from .types import EXACT, DType, as_dtype, dtype_name, require_value

Array: TypeAlias = npt.NDArray[Any]

_LARGEST = np.iinfo(np.int64).max
_fractions = np.frompyfunc(lambda v: v if isinstance(v, Fraction) else Fraction(v), 1, 1)


def as_array(value: Any, dtype: DType, *, force: bool = False) -> Array:
    """Return a host array with a dtype of Opstage: floats in `dtype`, integers as int32 or int64, booleans unchanged.

    With `force` everything is converted to `dtype`. Raises UsageError for values that are not numeric, and DtypeError
    for a number that an integer `dtype` cannot represent.
    """
    if type(value) is np.ndarray and not force:  # none of the questions below is about these
        kind = value.dtype.kind
        if kind == "f" and dtype.kind == "f":
            return value.astype(dtype, copy=False)
        if kind == "i" and value.dtype.itemsize >= 4 and value.dtype.isnative:
            return value
    is_objects = type(value) is np.ndarray and value.dtype.kind == "O"  # its numbers are floats or fractions
    array = require_numbers(value if is_objects else as_numpy(value))
    kind = array.dtype.kind
    if not force and not (kind == "O" and dtype == EXACT):
        _require_int64(array)
    if force or kind in "fO":
        if dtype == EXACT:
            return _exact(array)
        return _integers(array, dtype) if dtype.kind == "i" else array.astype(dtype, copy=False)
    if kind == "u" or array.dtype.itemsize < 4:
        return array if kind == "b" else array.astype(np.int64)
    return array


def require_numbers(array: Array) -> Array:
    """Return the array. Raises UsageError for one of anything but numbers, such as None or text."""
    kind = array.dtype.kind
    odd = [v for v in array.flat if not isinstance(v, (Fraction, int, float))] if kind == "O" else []
    if odd and isinstance(odd[0], (DimExpr, DimFloat)):
        raise UsageError(
            f"a constant is a number but {odd[0]} stands for every allowed size; write "
            'ops.full(shape=(), value=size, dtype="int64") for a tensor with this value, and ops.stack for several'
        )
    if odd:
        raise UsageError(f"a tensor must hold numbers; got an array of {type(odd[0]).__name__}")
    if kind not in "fiubO":
        raise UsageError(f"a tensor must hold numbers; got dtype {array.dtype}")
    return array


def _require_int64(array: Array) -> None:
    """Raise UsageError for integers that int64 cannot hold: NumPy would make them floats, or negative."""
    unsigned = array.dtype.kind == "u" and array.dtype.itemsize == 8
    if not array.size or not (unsigned or (array.dtype.kind == "O" and all(isinstance(v, int) for v in array.flat))):
        return
    largest = array.max() if unsigned else max(array.flat, key=abs)
    if not -_LARGEST - 1 <= largest <= _LARGEST:
        raise UsageError(f"integers are at most 2^63 - 1 (int64) but one is {largest}")


def _integers(array: Array, dtype: DType) -> Array:
    """Return the elements as integers, exactly: nothing is truncated or wrapped around."""
    if array.dtype == dtype:
        return array
    found = None
    with np.errstate(invalid="ignore"), contextlib.suppress(OverflowError, ValueError):  # integers and nan in objects
        found = array.astype(dtype, copy=False)
    if found is None or not np.array_equal(found, array):
        for value in array.flat:
            require_value(plain(value), dtype)
    assert found is not None
    return found


def _exact(array: Array) -> Array:
    """Return the fractions equal to the elements, which must be finite."""
    try:
        return np.asarray(_fractions(array), dtype=object)
    except (ValueError, OverflowError):  # nan and the infinities
        raise UsageError("dtype exact holds fractions alone, but an element is nan or infinite") from None


def number(value: Any, dtype: DType) -> Any:
    """Return a static number in the form that kernels use: a float, int or exact Fraction, which NumPy rounds once to
    `dtype`."""
    if dtype == EXACT:
        return Fraction(value)
    if type(value) is float or type(value) is int:
        return value
    return int(value) if np.dtype(dtype).kind in "iu" else float(value)


def packed(x: Array) -> Array:
    """Return x in the form that machine code reads: row-major and aligned, a copy if necessary."""
    flags = x.flags
    return x if flags.c_contiguous and flags.aligned and isinstance(x, np.ndarray) else np.array(x, order="C")


def all_packed(arrays: Sequence[Array]) -> list[Array]:
    """Apply `packed` to each array."""
    if _PLAIN.issuperset(map(type, arrays)) and reduce(and_, [x.flags.num for x in arrays], _PACKED) == _PACKED:
        return [*arrays]  # unlike list(…), which takes new memory for the list itself
    return [*map(packed, arrays)]


_PLAIN = {np.ndarray}
_PACKED = 0x101
"""NPY_ARRAY_C_CONTIGUOUS and NPY_ARRAY_ALIGNED."""


def find_owner(x: Array) -> Array:
    """Return the array that owns the memory of x: the last of the arrays that it is a view of."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


DATA = object.__basicsize__
"""The offset of the data pointer in an array object: NumPy's C interface puts it first."""


def _read_address(x: Array) -> int:
    return ctypes.c_void_p.from_address(id(x) + DATA).value or 0


def _ask_address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


def _words_of_memory(start: int) -> npt.NDArray[np.int64]:
    """Return all memory from an address on, as an array of words of 8 bytes."""
    buffer: Any = (ctypes.c_byte * (1 << 61)).from_address(start)
    return np.ndarray(1 << 58, np.int64, buffer)


def _read_addresses(arrays: Sequence[Array]) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = _POINTERS[np.fromiter(map(id, arrays), np.int64, len(arrays)) >> 3]
    return found


def _ask_addresses(arrays: Sequence[Array]) -> npt.NDArray[np.int64]:
    return np.array([_ask_address(x) for x in arrays], np.int64)


def _agree() -> bool:
    arrays: list[Array] = [np.zeros(3), np.zeros((4, 4), np.float32)[1:, 2:], np.zeros((), np.int64)]
    if sys.maxsize < 2**63 - 1 or not hasattr(ctypes, "pythonapi"):
        return False
    asked: list[int] = _ask_addresses(arrays).tolist()
    return all(found == asked for found in ([_read_address(x) for x in arrays], _read_addresses(arrays).tolist()))


_POINTERS = _words_of_memory(DATA) if sys.maxsize == 2**63 - 1 else np.zeros(0, np.int64)
"""The data pointer of the object in each word of memory."""

READABLE = _agree()
"""Whether an array's id is the address of its object, as in CPython on machines of 64 bits."""

address_of: Callable[[Array], int] = _read_address if READABLE else _ask_address
"""The address of an array's first element. Asking NumPy takes a microsecond and creates a dict; reading is ten times
faster."""

addresses_of: Callable[[Sequence[Array]], npt.NDArray[np.int64]] = _read_addresses if READABLE else _ask_addresses
"""The addresses of many arrays, read at once: a tenth of a microsecond each."""


# The form in the memory of a device -----------------------------------------------------------------------------------

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
    """Return whether arrays of a dtype can be uploaded."""
    return dtype in DEVICE_DTYPES or dtype in _FORMATS


def wire_dtype(dtype: DType) -> DType:
    """Return the dtype that arrays of `dtype` have on the device; the same if it has a form there, or none is
    registered."""
    return to_wire(as_array(0, dtype, force=True)).dtype if dtype in _FORMATS else dtype


def no_wire_form(dtype: DType) -> str:
    """Return the error for a dtype that cannot be uploaded, with advice."""
    names = ", ".join(map(dtype_name, DEVICE_DTYPES))
    return (
        f"a tensor of {dtype_name(dtype)} is not supported on the device, which holds {names}; use "
        "Options(dtype='float32'), or opstage.register_wire_format to say what it becomes"
    )


def to_wire(array: Array) -> Array:
    """Return the array in its uploaded form. Raises UsageError for a dtype without a device form."""
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
