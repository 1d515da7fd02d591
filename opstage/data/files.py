"""Datasets from NumPy's files. Pickled objects in a file are refused: reading them would run its code."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ops.errors import UsageError, nearest
from .dataset import Dataset

_UNREADABLE = (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error)


def from_npy(**paths: str | os.PathLike[str]) -> Dataset:
    """A dataset with one .npy file per array: `from_npy(x="images.npy", y="labels.npy")`.

    Raises `UsageError`, naming the file, where one is missing or is no .npy file, and as `Dataset` does.
    """
    arrays = [_load(path, "npy") for path in paths.values()]
    return Dataset(tuple(paths), tuple(arrays), tuple(str(path) for path in paths.values()))


def from_npz(path: str | os.PathLike[str], keys: Sequence[str] | None = None) -> Dataset:
    """A dataset of the arrays `keys` of one .npz file, in that order; None takes all in the file's own order.

    Raises `UsageError`, naming the file and the key, where the file is missing or is no .npz file, where it lacks a key
    or has none at all, and as `Dataset` does.
    """
    with _load(path, "npz") as archive:
        names = tuple(archive.files if keys is None else keys)
        if not names:
            raise UsageError(
                f"{path}: the dataset is empty: "
                + ("no array was asked for" if keys is not None else "the file has no array")
            )
        arrays = []
        for name in names:
            if name not in archive.files:
                has = ", ".join(archive.files) or "none"
                raise UsageError(f"{path}: no array {name!r}{nearest(name, archive.files)}; the file has {has}")
            try:
                arrays.append(archive[name])
            except _UNREADABLE as error:
                raise UsageError(f"{path}: cannot read {name!r}: {error}") from error
    return Dataset(names, tuple(arrays), tuple(f"{path}: {name}" for name in names))


def _load(path: str | os.PathLike[str], kind: str) -> Any:
    """The array of a .npy file, or the open archive of a .npz file."""
    try:
        loaded = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file") from error
    except _UNREADABLE as error:
        # NumPy takes whatever it does not know for a pickle, and advises to load it unsafely
        why = "it begins like none" if str(error).startswith("This file contains pickled") else error
        raise UsageError(f"{path}: not a .{kind} file that can be read: {why}") from error
    found = "npy" if isinstance(loaded, np.ndarray) else "npz"
    if found != kind:
        if found == "npz":
            loaded.close()
        raise UsageError(f"{path}: is a .{found} file; expected a .{kind} file")
    return loaded
