"""Read datasets from IDX files, plain or gzipped: the format of MNIST.

Source: Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST database of handwritten digits": two bytes 0, a byte for the
numbers' type, a byte for the number of axes, the size of each axis as four bytes, most significant first, and the
numbers in row-major order, most significant byte first.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from ..ops.errors import UsageError
from ..ops.tracebacks import called_by_users
from ..ops.untrusted import brief
from .dataset import Array, Dataset

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
    arrays = tuple(read_idx(path) for path in paths.values())
    return Dataset(tuple(paths), arrays, tuple(str(path) for path in paths.values()))


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


def labels_beside(images: Path) -> Path:
    """Return the labels file of an images file that is named like MNIST's: `train-images-idx3-ubyte.gz`."""
    if "images" not in images.name:
        raise UsageError(
            f"{images}: no labels are known for it: expected a name with 'images', whose labels are beside it under "
            "the name with 'labels'"
        )
    return images.with_name(images.name.replace("images", "labels").replace("idx3", "idx1"))
