"""Datasets, the file formats that they are read from, and loaders that split them into batches."""

from .any_file import from_file
from .binding import bind
from .csv_file import from_csv
from .dataset import Dataset, from_arrays, train_test_split
from .embedded import digits
from .files import from_npy, from_npz, map_files
from .idx_file import from_idx, idx_images
from .image_folder import from_images
from .loader import Batches, Loader
from .noise import noisy
from .parquet_file import from_parquet
from .prefetch import Prefetch
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
