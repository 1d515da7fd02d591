"""Read datasets from NumPy's files. Pickled objects in a file are rejected, since reading them would run code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ..ops.errors import UsageError
from ..ops.tracebacks import called_by_users
from .dataset import Array, Dataset
from .mapped import map_npy
from .numpy_file import open_npz, read_npy


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
