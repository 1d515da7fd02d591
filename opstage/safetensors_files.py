"""Files in the safetensors format: tensor data after a JSON header. Reading one never executes code. A file that is
mapped comes into memory tensor by tensor as they are used, without a copy.

Source: the format's description, github.com/huggingface/safetensors: 8 bytes with the length of the header,
little-endian; the header, a JSON object of name -> dtype, shape and offsets; the tensors' bytes without gaps.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from .files import require_file
from .ops.errors import UsageError, brief

Array = npt.NDArray[Any]

HEADER_LIMIT = 100_000_000
"""The format allows no longer header; a longer one is rejected before memory is allocated for it."""

_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


class TensorHeader(NamedTuple):
    """The header of a tensor in a file: its dtype, in the format's own notation (`F32`), and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Return `f` for floats, `i` for integers, `b` for masks."""
        return {"F": "f", "B": "f", "I": "i", "U": "i"}.get("b" if self.dtype == "BOOL" else self.dtype[:1], "b")


class TensorLike(Protocol):
    """An array, or an object that becomes one when it is read, such as a tensor in another file."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __array__(self) -> Array: ...


def encode(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the file's bytes. Raises UsageError for a dtype that the format does not have (exact fractions)."""
    for name, array in tensors.items():
        _format_dtype(name, array)
    plain = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    return save(plain, None if metadata is None else dict(metadata))


def in_order(tensors: Mapping[str, TensorLike]) -> list[str]:
    """Return the names in the order of the file that `stream` writes, which depends only on names and dtypes."""
    return sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, _format_dtype(name, tensors[name]), name))


def stream(tensors: Mapping[str, TensorLike], read: Callable[[str], Array]) -> Iterator[bytes | memoryview]:
    """Return the bytes of a file of these tensors, in pieces; each tensor is read when its turn comes, and then
    released.

    Raises UsageError as `encode` does, before anything is read.
    """
    kinds = {name: _format_dtype(name, tensor) for name, tensor in tensors.items()}
    order = in_order(tensors)
    entries: dict[str, Any] = {}
    end = 0
    for name in order:
        begin, shape = end, tuple(map(int, tensors[name].shape))
        end += math.prod(shape) * _DTYPES[kinds[name]]().itemsize
        entries[name] = {"dtype": kinds[name], "shape": shape, "data_offsets": (begin, end)}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors begin at a multiple of 8 bytes
    yield len(header).to_bytes(8, "little") + header
    for name in order:
        kind = np.dtype(_DTYPES[kinds[name]]).newbyteorder("<")
        array = np.asarray(read(name), kind, order="C")
        assert array.shape == tuple(entries[name]["shape"]), name
        yield array.reshape(-1).view(np.uint8).data


def _format_dtype(name: str, tensor: TensorLike) -> str:
    """Return the format's name of a tensor's dtype. Raises UsageError where there is none."""
    for kind, known in _DTYPES.items():
        if tensor.dtype.type is known:
            return kind
    raise UsageError(f"{name}: {tensor.dtype} values cannot be stored as tensors; cast them to float64 first")


def decode(data: bytes, path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the tensors in a file's bytes, in order of their names, as writable copies.

    bfloat16 is widened to float32, exactly.

    Raises UsageError, naming `path`, for a header that is too long or invalid, for offsets that lie outside the file or
    overlap, and for dtypes that NumPy does not have.
    """
    _check_header(data[:8], len(data), path)
    try:
        entries = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise UsageError(f"{path}: not a safetensors file that can be read: {error}") from error
    found = {}
    for name, entry in sorted(entries, key=lambda item: str(item[0])):
        array = view_tensor(entry["data"], name, TensorHeader(entry["dtype"], tuple(entry["shape"])), path)
        found[name] = array if array.flags.writeable else array.copy()
    return found


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the tensors of a safetensors file by name, see `decode`."""
    data = read_bytes(Path(path))
    return decode(data, path)


def decode_metadata(data: bytes, path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata, texts by name, in the header of a file's bytes; raises as `decode` does."""
    _check_header(data[:8], len(data), path)
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a safetensors file: its header is not JSON") from error
    return _metadata(header, path)


def read_header(path: str | os.PathLike[str]) -> dict[str, TensorHeader]:
    """Return the dtype and shape of every tensor of a safetensors file by name; only the header is read.

    Raises UsageError, naming the file, as `decode` does for an invalid header.
    """
    return {name: header for name, (header, _) in read_places(path)[0].items()}


def read_places(path: str | os.PathLike[str]) -> tuple[dict[str, tuple[TensorHeader, slice]], dict[str, str]]:
    """Return the header of every tensor by name, with its range of bytes in the file, and the metadata.

    Raises as `read_header`. The tensors must fill the file up to its end without gaps; whether each has as many bytes
    as its shape needs is not checked.
    """
    try:
        require_file(path)
        with open(path, "rb") as file:
            prefix = file.read(8)
            size = os.fstat(file.fileno()).st_size
            _check_header(prefix, size, path)
            data = file.read(int.from_bytes(prefix, "little"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    first = 8 + len(data)
    try:
        header = json.loads(data)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        read = {
            name: (TensorHeader(str(entry["dtype"]), _naturals(entry["shape"])), _place(entry, first))
            for name, entry in entries.items()
        }
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}: not a safetensors file: its header does not list tensors") from error
    end = max((place.stop for _, place in read.values()), default=first)
    if end != size:
        raise UsageError(f"{path}: truncated or altered: its tensors would end at byte {end:,} of {size:,}")
    reached = first
    for name, (_, place) in sorted(read.items(), key=lambda item: (item[1][1].start, item[1][1].stop)):
        if place.start != reached or place.stop < reached:
            raise UsageError(f"{path}: not a safetensors file: {brief(name)} overlaps another tensor or follows a gap")
        reached = place.stop
    return dict(sorted(read.items())), _metadata(header, path)


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file. Raises UsageError if it is missing or cannot be read."""
    try:
        require_file(path)
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


def file_size(path: Path) -> int:
    """Return the size of a file in bytes. Raises UsageError if it is missing."""
    try:
        require_file(path)
        return path.stat().st_size
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


def _naturals(numbers: Any) -> tuple[int, ...]:
    """Return the sizes or offsets in a header. Raises ValueError unless they are integers from 0 to 2^63 - 1."""
    if not (isinstance(numbers, list) and all(type(n) is int and 0 <= n < 2**63 for n in numbers)):
        raise ValueError("not natural numbers")
    return tuple(numbers)


def _place(entry: Any, first: int) -> slice:
    """Return the byte range of a tensor in a file whose tensors begin at byte `first`."""
    begin, end = _naturals(entry["data_offsets"])
    return slice(first + begin, first + end)


def _metadata(header: Any, path: str | os.PathLike[str]) -> dict[str, str]:
    metadata = header.get("__metadata__", {}) if isinstance(header, dict) else {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise UsageError(f"{path}: not a safetensors file: the metadata in its header are not strings by name")
    return metadata


def _check_header(prefix: bytes, size: int, path: str | os.PathLike[str]) -> None:
    length = int.from_bytes(prefix, "little")
    if size < 8 or length < 2:
        raise UsageError(f"{path}: not a safetensors file: its header is missing")
    if length > size - 8 and prefix.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        raise UsageError(
            f"{path}: not a safetensors file but a pickle, which could run code; in PyTorch, save it again with "
            "safetensors.torch.save_file(model.state_dict(), …)"
        )
    if length > HEADER_LIMIT:
        raise UsageError(
            f"{path}: not a safetensors file: its header would have {length:,} bytes, and {HEADER_LIMIT:,} are allowed"
        )
    if length > size - 8:
        raise UsageError(f"{path}: truncated: its header has {length:,} bytes, but only {size - 8:,} are there")


def view_tensor(data: Any, name: str, header: TensorHeader, path: str | os.PathLike[str]) -> Array:
    """Return a tensor as a view of its bytes in a file, of which there are enough; bfloat16 becomes a float32 copy.

    Raises UsageError, naming `path`, for an impossible shape and for dtypes that NumPy does not have.
    """
    shape = header.shape
    if len(shape) > 64 or math.prod([size for size in shape if size]) >= 2**63:
        raise UsageError(f"{path}: {brief(name)} has the shape {brief(shape)}, which no array has")
    if header.dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if header.dtype not in _DTYPES:
        raise UsageError(f"{path}: {name} holds {header.dtype} values; expected one of {', '.join(_DTYPES)}, BF16")
    return np.frombuffer(data, _DTYPES[header.dtype]).reshape(shape)


def map_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors of a safetensors file by name, as read-only arrays, and its metadata.

    Only bfloat16 tensors (to float32) and tensors at unaligned addresses are copied. While one of the arrays is in use,
    the file may be replaced or removed, but must not be truncated. Raises UsageError, naming the file, as
    `read_tensors` does.
    """
    places, metadata = read_places(path)
    whole = memoryview(b"")
    if any(place.start < place.stop for _, place in places.values()):
        try:
            with open(path, "rb") as file:
                whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot be mapped: {error}") from error
    found = {}
    for name, (header, place) in places.items():
        try:
            array = view_tensor(whole[place], name, header, path)
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(
                f"{path}: {brief(name)} of shape {brief(header.shape)} holds {header.dtype} values, which "
                f"{place.stop - place.start:,} bytes cannot be"
            ) from error
        if not array.flags.aligned:
            array = array.copy()
        array.flags.writeable = False
        found[name] = array
    return found, metadata
