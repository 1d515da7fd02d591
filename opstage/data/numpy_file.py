"""Read NumPy's files with a limit on unpacked size, and never with pickles.

`np.load` trusts the header: it may allocate terabytes, unpack anything in an archive, and return the bytes of a member
that is not an array. Here the header is checked against the available bytes before an array is allocated.

Source: "NEP 1: a simple file format for NumPy arrays"; an .npz file is a zip archive of such files.
"""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from ..ops.errors import UsageError, nearest
from ..ops.types import DType
from ..ops.untrusted import brief, shown

Array = npt.NDArray[Any]

_MAGIC = b"\x93NUMPY"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # differs only in the names of fields, which no dataset has
}
# The errors of zipfile and zlib for damaged or unsupported archives, and of NumPy for invalid headers.
_UNREADABLE = (
    *(ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError),
    *(SyntaxError, TypeError, IndexError, KeyError, AttributeError, MemoryError, tokenize.TokenError),
)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_PIECE = 1 << 20

UNPACKED_AT_LEAST = 100 * 2**20
UNPACKED_AT_MOST = 100
"""An archive may unpack to this multiple of its length, or to `UNPACKED_AT_LEAST` bytes. Measured data shrink to a
tenth, masks to a hundredth; zeros, of which zip bombs are made, to a thousandth."""


class ArrayHeader(NamedTuple):
    """The shape and dtype of an array, without its values."""

    shape: tuple[int, ...]
    dtype: DType


@final
class NpzFile:
    """An open .npz file; see `open_npz`."""

    def __init__(self, path: str | os.PathLike[str], archive: zipfile.ZipFile, size: int):
        self._path = path
        self._archive = archive
        self._most = max(UNPACKED_AT_LEAST, UNPACKED_AT_MOST * size)
        self._unpacked = 0
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in self._members:
                raise UsageError(f"{path}: holds two arrays of the name {brief(name)}")
            self._members[name] = member

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its arrays, in file order."""
        return tuple(self._members)

    def header(self, name: str) -> ArrayHeader:
        """Return shape and dtype of an array, reading only its header. Raises UsageError."""
        with self._opened(name) as file:
            return _read_header(file)[0]

    def read(self, name: str) -> Array:
        """Read an array. Raises UsageError."""
        with self._opened(name) as file:
            return _read_array(file, self._members[name].file_size)

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        if name not in self._members:
            has = shown(self.names) or "none"
            raise UsageError(f"{self._path}: no array {name!r}{nearest(name, self.names)}; the file has {has}")
        member = self._members[name]
        try:
            if member.flag_bits & _ENCRYPTED:
                raise ValueError("it is encrypted; write the archive anew without a password")
            if member.compress_type not in _METHODS:
                raise ValueError(
                    f"it is packed by method {member.compress_type} of zip archives; NumPy writes methods 0 and 8"
                )
            self._unpacked += member.file_size
            if self._unpacked > self._most:
                raise ValueError(
                    f"the file of {os.path.getsize(self._path):,} bytes would unpack to {self._unpacked:,} bytes or "
                    f"more, and {self._most:,} are allowed; where that is right, write it with np.savez"
                )
            with self._archive.open(member) as file:
                yield file
        except UsageError:
            raise
        except _UNREADABLE as error:
            raise UsageError(f"{self._path}: cannot read {brief(name)}: {_said(error)}") from error


@contextmanager
def open_npz(path: str | os.PathLike[str]) -> Iterator[NpzFile]:
    """Open the arrays of a .npz file.

    Raises UsageError, naming the file, if it is missing or not an archive; for an array that is encrypted, damaged, or
    compressed by a method that NumPy does not use; and for an archive that unpacks to far more than its length.
    """
    with _opened(path, "npz") as file:
        kind = _kind(file)
        if kind != "npz":
            why = (
                "is a .npy file; expected a .npz file"
                if kind
                else "not a .npz file that can be read: it has no .npz header"
            )
            raise UsageError(f"{path}: {why}")
        try:
            archive = zipfile.ZipFile(file)
        except _UNREADABLE as error:
            raise UsageError(f"{path}: not a .npz file that can be read: {_said(error)}") from error
        with archive:
            yield NpzFile(path, archive, os.fstat(file.fileno()).st_size)


def read_npy(path: str | os.PathLike[str]) -> Array:
    """Read the array of a .npy file. Raises UsageError, naming the file."""
    with _opened(path, "npy") as file:
        if _kind(file) == "npz":
            raise UsageError(f"{path}: is a .npz file; expected a .npy file")
        try:
            return _read_array(file, os.fstat(file.fileno()).st_size)
        except _UNREADABLE as error:
            raise UsageError(f"{path}: not a .npy file that can be read: {_said(error)}") from error


def npy_layout(path: str | os.PathLike[str]) -> tuple[ArrayHeader, bool, int]:
    """Return (header, whether in Fortran order, offset of the data) of a complete .npy file.

    Raises UsageError, naming the file.
    """
    with _opened(path, "npy") as file:
        try:
            return _complete_header(file, os.fstat(file.fileno()).st_size)
        except _UNREADABLE as error:
            raise UsageError(f"{path}: not a .npy file that can be read: {_said(error)}") from error


def _opened(path: str | os.PathLike[str], kind: str) -> IO[bytes]:
    why: object = "it is a folder or a device"
    try:
        if Path(path).is_file():
            return open(path, "rb")
        if not Path(path).exists():
            raise UsageError(f"{path}: no such file")
    except OSError as error:
        why = _said(error)
    raise UsageError(f"{path}: not a .{kind} file that can be read: {why}")


def _kind(file: IO[bytes]) -> str:
    start = file.read(len(_MAGIC))
    file.seek(0)
    return "npy" if start == _MAGIC else "npz" if start.startswith(_ZIP) else ""


def _read_header(file: IO[bytes]) -> tuple[ArrayHeader, bool, int]:
    """Return (header, whether in Fortran order, size of the header in bytes)."""
    start = file.read(len(_MAGIC) + 2)
    if start[: len(_MAGIC)] != _MAGIC or len(start) < len(_MAGIC) + 2:
        raise ValueError("not an .npy header")
    version = (start[-2], start[-1])
    if version not in _READERS:
        raise ValueError(f"of version {version[0]}.{version[1]} of the format; expected {_VERSIONS}")
    shape, fortran, dtype = _READERS[version](file)
    if dtype.hasobject:
        raise ValueError("Object arrays are pickles, which could run code; write arrays of numbers")
    if dtype.subdtype is not None:
        raise ValueError(f"its elements are arrays, {dtype}; write one array of numbers")
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"its shape is {brief(shape)}; sizes are integers that are at least 0")
    return ArrayHeader(shape, dtype), fortran, file.tell()


_VERSIONS = ", ".join(f"{major}.{minor}" for major, minor in _READERS)


def _complete_header(file: IO[bytes], size: int) -> tuple[ArrayHeader, bool, int]:
    """Do the same for a file of `size` bytes, as on disk or as declared by an archive, which must hold the array."""
    (shape, dtype), fortran, start = _read_header(file)
    expected = math.prod(shape) * dtype.itemsize
    if expected > size - start:
        raise ValueError(f"its header names {brief(shape)} {dtype}, {expected:,} bytes, but it has {size - start:,}")
    return ArrayHeader(shape, dtype), fortran, start


def _read_array(file: IO[bytes], size: int) -> Array:
    """Read the array of a file of `size` bytes; see `_complete_header`."""
    shape = _complete_header(file, size)[0].shape
    if len(shape) > 64:
        raise ValueError(f"its header names {len(shape)} axes, and NumPy has at most 64")
    file.seek(0)
    array: Array = np.lib.format.read_array(file, allow_pickle=False)
    while file.read(_PIECE):  # to the end, where an archive has its checksum
        pass
    return array


def _said(error: BaseException) -> str:
    """Return the first line of a library's error, shortened, since it may quote any part of the file."""
    first = (str(error).splitlines() or [""])[0] or type(error).__name__
    return first if len(first) <= 300 else f"{first[:297]}..."
