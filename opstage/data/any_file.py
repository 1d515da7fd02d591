"""A dataset with inputs x and labels y from a file of any format, told by its name."""

from __future__ import annotations

import os
from pathlib import Path

from ..ops.errors import UsageError
from .csv_file import from_csv
from .dataset import Dataset
from .files import from_npz
from .idx_file import idx_images, labels_beside


def from_file(path: str | os.PathLike[str]) -> Dataset:
    """x and y of a file of any format.

    .npz: its arrays x and y. .csv: y is the column of that name, else the last one, and x the others; see `from_csv`.
    MNIST's images, with their labels beside them.

    IDX files are known by `idx` or `ubyte` in their names; see `labels_beside` for those of the labels.
    """
    file = Path(path)
    if file.suffix == ".npz":
        return from_npz(file, keys=("x", "y"))
    if file.suffix == ".csv":
        return from_csv(file)
    if "idx" in file.name or "ubyte" in file.name:
        return idx_images(file, labels_beside(file))
    raise UsageError(f"{file}: of no known format; expected a name such as data.npz, data.csv or images-idx3-ubyte.gz")
