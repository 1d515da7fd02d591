"""Read datasets from files of arrays: NumPy's, and IDX, the format of MNIST. Sizes are limited, pickles refused.

`np.load` trusts the header: it may allocate terabytes, unpack anything in an archive, and return the bytes of a member
that is not an array. Here the header is checked against the available bytes before an array is allocated.

Source: "NEP 1: a simple file format for NumPy arrays"; an .npz file is a zip archive of such files.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, final

import numpy as np

from ..ops.errors import UsageError, brief, nearest, shown
from ..ops.tracebacks import called_by_users
from ..ops.types import DType
from .dataset import Array, Dataset
from .memory_map import map_npy

# IDX files ------------------------------------------------------------------------------------------------------------

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"
_BEST_GZIP = 1032
"""The maximum expansion factor of deflate."""


@called_by_users
def from_idx(**paths: str | os.PathLike[str]) -> Dataset:
    """Read a dataset with one IDX file per array, with numbers as stored: `from_idx(x="images", y="labels")`.

    Raises UsageError, with the file, if it is missing, has a wrong magic number or sizes that exceed its length, and as
    `Dataset` does.

    Raises:
        UsageError: a file that is missing, damaged or no IDX.
    """
    return _dataset(paths, read_idx)


@called_by_users
def idx_images(images: str | os.PathLike[str], labels: str | os.PathLike[str]) -> Dataset:
    """Read x: float32 (n, 1, height, width), bytes 0 … 255 of `images` scaled to 0 … 1; y: int64 (n,), from
    `labels`.

    Raises:
        UsageError: a file that is missing, damaged or of no images or labels.
    """
    raw = from_idx(x=images, y=labels)
    x, y = idx_x(images, raw["x"]), raw["y"]
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise UsageError(f"{labels}: holds {y.dtype} of shape {y.shape}; expected labels, integers of (n,)")
    return Dataset(raw.names, (x, y.astype(np.int64)), raw.origins)


def idx_x(path: str | os.PathLike[str], images: Array) -> Array:
    """Return float32 (n, 1, height, width), 0 … 1, from the array of an IDX file. Raises UsageError if it is not
    images."""
    if images.ndim != 3 or images.dtype != np.uint8:
        raise UsageError(
            f"{path}: holds {images.dtype} of shape {images.shape}; expected images, bytes of (n, height, width)"
        )
    x: Array = images.astype(np.float32)[:, np.newaxis] / np.float32(255)
    return x


def read_idx(path: str | os.PathLike[str]) -> Array:
    """Read the array of one IDX file, in the machine's byte order."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise UsageError(f"{path}: cannot be read: it is a folder, a pipe or a device; expected a file")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            zipped = file.read(2) == _GZIP
            file.seek(0)
            if not zipped:
                return _read(path, file, size, "the file has")
            with gzip.GzipFile(fileobj=file) as unzipped:
                return _read(path, unzipped, size * _BEST_GZIP, "the file can unpack to")
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def _read(path: str | os.PathLike[str], file: IO[bytes] | io.BufferedIOBase, limit: int, limited: str) -> Array:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES:
        raise UsageError(
            f"{path}: wrong magic number {magic.hex(' ') or '(the file is empty)'}; an IDX file begins with 00 00, a "
            f"type from {', '.join(f'{code:02x}' for code in _TYPES)}, and the number of axes"
        )
    axes = magic[3]
    header = file.read(4 * axes)
    if axes == 0 or len(header) < 4 * axes:
        raise UsageError(f"{path}: its header ends too early: {axes} axes, and {len(header)} bytes for their sizes")
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4"))
    dtype = np.dtype(_TYPES[magic[2]])
    expected = math.prod(shape) * dtype.itemsize
    room = limit - 4 - 4 * axes
    if expected > room:
        raise UsageError(
            f"{path}: its header names sizes {brief(shape)}, which take {expected:,} bytes, but {limited} "
            f"{max(room, 0):,}"
        )
    if len(shape) > 64 or dtype.itemsize * math.prod([size for size in shape if size]) >= 2**63:
        raise UsageError(f"{path}: its header names sizes {brief(shape)}, which no array has")
    data = file.read(expected + 1)
    if len(data) != expected:
        found = f"only {len(data):,}" if len(data) < expected else "more"
        raise UsageError(
            f"{path}: its header names sizes {brief(shape)}, which take {expected:,} bytes, but it has {found}"
        )
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("=")).reshape(shape)


def mnist_labels_path(images: Path) -> Path:
    """Return the labels file of an images file that is named like MNIST's: `train-images-idx3-ubyte.gz`."""
    if "images" not in images.name:
        raise UsageError(
            f"{images}: its labels file is unknown: expected a name with 'images', next to a file of the "
            "same name with "
            "'labels'"
        )
    return images.with_name(images.name.replace("images", "labels").replace("idx3", "idx1"))


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
        """Return the names of its arrays, in file order."""
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
            raise UsageError(f"{self._path}: array {name!r} is missing{nearest(name, self.names)}; the file has {has}")
        member = self._members[name]
        try:
            if member.flag_bits & _ENCRYPTED:
                raise ValueError("it is encrypted; write the archive again without a password")
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
            raise UsageError(f"{self._path}: cannot read {brief(name)}: {_first_line(error)}") from error


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
            raise UsageError(f"{path}: not a .npz file that can be read: {_first_line(error)}") from error
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
            raise UsageError(f"{path}: not a .npy file that can be read: {_first_line(error)}") from error


def npy_layout(path: str | os.PathLike[str]) -> tuple[ArrayHeader, bool, int]:
    """Return (header, whether in Fortran order, offset of the data) of a complete .npy file.

    Raises UsageError, naming the file.
    """
    with _opened(path, "npy") as file:
        try:
            return _complete_header(file, os.fstat(file.fileno()).st_size)
        except _UNREADABLE as error:
            raise UsageError(f"{path}: not a .npy file that can be read: {_first_line(error)}") from error


def _opened(path: str | os.PathLike[str], kind: str) -> IO[bytes]:
    why: object = "it is a folder or a device"
    try:
        if Path(path).is_file():
            return open(path, "rb")
        if not Path(path).exists():
            raise UsageError(f"{path}: no such file")
    except OSError as error:
        why = _first_line(error)
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


def _first_line(error: BaseException) -> str:
    """Return the first line of a library's error, shortened, since it may quote any part of the file."""
    first = (str(error).splitlines() or [""])[0] or type(error).__name__
    return first if len(first) <= 300 else f"{first[:297]}..."


# Datasets from NumPy's files ------------------------------------------------------------------------------------------


@called_by_users
def from_npy(**paths: str | os.PathLike[str]) -> Dataset:
    """Read a dataset with one .npy file per array: `from_npy(x="images.npy", y="labels.npy")`.

    Raises `UsageError`, naming the file, if one is missing or not an .npy file, and as `Dataset` does.

    Raises:
        UsageError: a file that is missing, damaged or no .npy.
    """
    return _dataset(paths, read_npy)


@called_by_users
def map_files(paths: Mapping[str, str | os.PathLike[str]]) -> Dataset:
    """Do the same for files of any size: from 64 MiB on, rows are read when they are used.

    A file that is written to while the dataset is in use is a UsageError of whatever reads its rows then.

    Raises:
        UsageError: a file that is missing, damaged or no .npy.
    """
    return _dataset(paths, map_npy)


def _dataset(paths: Mapping[str, str | os.PathLike[str]], read: Callable[[str | os.PathLike[str]], Array]) -> Dataset:
    arrays = [read(path) for path in paths.values()]
    return Dataset(tuple(paths), tuple(arrays), tuple(str(path) for path in paths.values()))


@called_by_users
def from_npz(path: str | os.PathLike[str], keys: Sequence[str] | None = None) -> Dataset:
    """Read a dataset of the arrays `keys` from one .npz file, in that order.

    None selects all of them, identified by name only: the file's own order has no meaning, so it cannot be used for
    batches. `fit` binds them to the arguments of the loss with the same names; elsewhere `dataset.only("x", "y")` sets
    the order.

    Raises `UsageError`, naming the file and the key, if the file is missing or not an .npz file, lacks a key or has no
    arrays, and as `Dataset` does.

    Raises:
        UsageError: a file that is missing, damaged or no .npz; no such array.
    """
    with open_npz(path) as archive:
        names = tuple(archive.names if keys is None else keys)
        if not names:
            raise UsageError(
                f"{path}: the dataset is empty: "
                + ("no array was asked for" if keys is not None else "the file has no array")
            )
        arrays = [archive.read(name) for name in names]
    ordered = keys is not None or len(names) == 1
    return Dataset(names, tuple(arrays), tuple(f"{path}: {name}" for name in names), ordered)
