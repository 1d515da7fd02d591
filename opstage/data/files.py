"""Datasets from NumPy's files. Pickled objects in a file are refused: reading them would run its code."""

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
    """A dataset with one .npy file per array: `from_npy(x="images.npy", y="labels.npy")`.

    Raises `UsageError`, naming the file, where one is missing or is no .npy file, and as `Dataset` does.
    """
    return _dataset(paths, read_npy)


@called_by_users
def map_files(paths: Mapping[str, str | os.PathLike[str]]) -> Dataset:
    """The same for files of any size: from 64 MiB on their rows are read as they are needed.

    The files must stay as they are for as long as the dataset is used.
    """
    return _dataset(paths, map_npy)


def _dataset(paths: Mapping[str, str | os.PathLike[str]], read: Callable[[str | os.PathLike[str]], Array]) -> Dataset:
    arrays = [read(path) for path in paths.values()]
    return Dataset(tuple(paths), tuple(arrays), tuple(str(path) for path in paths.values()))


@called_by_users
def from_npz(path: str | os.PathLike[str], keys: Sequence[str] | None = None) -> Dataset:
    """A dataset of the arrays `keys` of one .npz file, in that order.

    None takes all of them, by name alone: the file's own order says nothing, so it is not one for batches. `fit` binds
    them to the arguments of the loss that have their names; elsewhere `dataset.only("x", "y")` puts them in order.

    Raises `UsageError`, naming the file and the key, where the file is missing or is no .npz file, where it lacks a key
    or has none at all, and as `Dataset` does.
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
