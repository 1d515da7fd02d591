"""Noisy copies of a dataset's samples, to learn to remove the noise from."""

from __future__ import annotations

import math

import numpy as np

from ..ops.errors import UsageError
from ..ops.splitmix import normal_bits, require_seed, site_of, stream_key
from .dataset import Dataset

_SITE = site_of((("opstage.noise", 0),), 0)


def noisy(dataset: Dataset, *, deviation: float, copies: int = 1, seed: int = 0, part: int = 0) -> Dataset:
    """x: every sample of `dataset`, `copies` times over, with Gaussian noise of that standard deviation; y: without.

    The noise is a function of `seed`, `part` and the position alone; parts of one split take numbers of their own.
    Raises `UsageError` for a deviation that is no finite number above 0 and for fewer copies than 1.
    """
    require_seed(seed)
    if not (math.isfinite(deviation) and deviation > 0):
        raise UsageError(f"deviation={deviation} is not a standard deviation; expected a finite number > 0")
    if copies < 1:
        raise UsageError(f"copies={copies} leaves no sample; expected an integer > 0")
    clean = np.tile(dataset["x"], (copies, *(1,) * (dataset["x"].ndim - 1)))
    noise = normal_bits(stream_key(seed, part, _SITE), clean.size, np.float64).reshape(clean.shape)
    return Dataset(("x", "y"), ((clean + deviation * noise).astype(clean.dtype), clean))
