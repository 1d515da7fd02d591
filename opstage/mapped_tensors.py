"""Safetensors files that are memory-mapped: tensors are read into memory when used, without a copy."""

from __future__ import annotations

import mmap
import os

from .ops.errors import UsageError, brief
from .tensors import Array, array_of, read_places


def map_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors of a safetensors file by name, as read-only arrays, and its metadata.

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
            array = array_of(whole[place], name, header, path)
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
