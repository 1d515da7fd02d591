"""Datasets and the loader that cuts them into batches."""

from .dataset import Dataset, from_arrays, train_test_split
from .embedded import digits
from .files import from_npy, from_npz
from .loader import Batches, Loader

__all__ = ["Batches", "Dataset", "Loader", "digits", "from_arrays", "from_npy", "from_npz", "train_test_split"]
