"""Datasets, the file formats that they are read from, and loaders that split them into batches."""

from .array_files import from_idx, from_npy, from_npz, idx_images, map_files
from .builtin_datasets import digits, noisy
from .csv_and_parquet import from_csv, from_parquet
from .dataset import Dataset, from_arrays, train_test_split
from .file import from_file
from .image_folder import from_images
from .loader import Batches, Loader, Prefetch, bind
from .table import from_frame

__all__ = [
    "Batches",
    "Dataset",
    "Loader",
    "Prefetch",
    "bind",
    "digits",
    "from_arrays",
    "from_csv",
    "from_file",
    "from_frame",
    "from_idx",
    "from_images",
    "from_npy",
    "from_npz",
    "from_parquet",
    "idx_images",
    "map_files",
    "noisy",
    "train_test_split",
]
__dir__ = __all__.copy
