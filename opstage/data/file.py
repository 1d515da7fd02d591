"""Read data files of any format: their arrays by name, or x and y."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..files import suffix_of
from ..ops.errors import UsageError, nearest, shown
from ..ops.tracebacks import called_by_users
from .array_files import from_npz, idx_images, idx_x, map_files, mnist_labels_path, open_npz, read_idx
from .csv_and_parquet import from_csv, from_parquet
from .dataset import Dataset


@called_by_users
def from_file(path: str | os.PathLike[str]) -> Dataset:
    """Read x and y from a file in any supported format.

    .npz: its arrays x and y. .csv and .tsv, also gzipped as .csv.gz, and .parquet: y is the column of that name, else
    the last one, and x the others; see `from_csv`. MNIST's image files, with the labels file next to them.

    IDX files are recognised by `idx` or `ubyte` in their names; see `mnist_labels_path` for the labels file.

    Raises:
        UsageError: a file that is missing, damaged or of no known format.
    """
    file = Path(path)
    if suffix_of(file) == ".npz":
        return from_npz(file, keys=("x", "y"))
    if suffix_of(file) in (".csv", ".tsv"):
        return from_csv(file)
    if suffix_of(file) == ".parquet":
        return from_parquet(file)
    if _is_idx(file):
        return idx_images(file, mnist_labels_path(file))
    raise UsageError(f"{file}: unknown format; expected a name such as data.npz, data.csv or images-idx3-ubyte.gz")


def is_array_folder(path: Path) -> bool:
    """Return whether a folder holds .npy files, one per argument."""
    return path.is_dir() and any(path.glob("*.npy"))


def array_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the array names of a file that is not a table: its own for .npz, x and y for IDX; () for a single
    array."""
    file = Path(path)
    if suffix_of(file) == ".npz":
        with open_npz(file) as archive:
            return archive.names
    if is_array_folder(file):
        return tuple(sorted(inner.stem for inner in file.glob("*.npy")))
    return () if suffix_of(file) == ".npy" else ("x", "y")


def read_arrays(path: str | os.PathLike[str], names: Sequence[str]) -> Dataset:
    """Read the arrays in `names` from a file that is not a table, in that order; a .npy file has one, under any
    name."""
    file = Path(path)
    if suffix_of(file) == ".npz":
        return from_npz(file, keys=names)
    if is_array_folder(file):
        for name in names:
            if not (file / f"{name}.npy").exists():
                has = array_names(file)
                raise UsageError(f"{path}: file {name}.npy is missing{nearest(name, has)}; the folder has {shown(has)}")
        return map_files({name: file / f"{name}.npy" for name in names})
    if suffix_of(file) == ".npy" and len(names) == 1:
        return map_files({names[0]: file})
    if _is_idx(file) and tuple(names) == ("x",):
        return Dataset(("x",), (idx_x(file, read_idx(file)),), (str(file),))
    return from_file(file).only(*names)


def _is_idx(file: Path) -> bool:
    return "idx" in file.name or "ubyte" in file.name
