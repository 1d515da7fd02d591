"""The embedded digits: 1,797 scans of handwritten digits, 8x8 each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .dataset import Dataset, train_test_split
from .files import from_npz

_FILE = Path(__file__).with_name("digits.npz")


def digits() -> Dataset:
    """Return x: float32 (1797, 1, 8, 8), ink from 0 (none) to 1 (full) in steps of 1/16; y: int64 (1797,), the digit.

    Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
    doi:10.24432/C50P49 (its test part); the file DIGITS.md beside this one says more.
    """
    stored = from_npz(_FILE, ["images", "labels"])
    images = stored["images"].astype(np.float32)[:, np.newaxis] / np.float32(16)
    return Dataset(("x", "y"), (images, stored["labels"].astype(np.int64)), ("digits: x", "digits: y"))


def held_out_digits(seed: int) -> tuple[Dataset, Dataset]:
    """Return the embedded digits with a stratified 20 % of them held out."""
    return train_test_split(digits(), seed=seed)
