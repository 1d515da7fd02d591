"""Noisy copies of a dataset's samples, to train denoising."""

from __future__ import annotations

import math

import numpy as np

from ..ops.errors import UsageError
from ..ops.splitmix import normal_bits, require_seed, site_of, stream_key
from .dataset import Dataset

_SITE = site_of((("opstage.noise", 0),), 0)


def noisy(dataset: Dataset, *, deviation: float, copies: int = 1, seed: int = 0, part: int = 0) -> Dataset:
    """Return x: each sample of `dataset`, `copies` times, with Gaussian noise of this standard deviation; y: without
    noise.

    The noise is a function of `seed`, `part` and the position only; use another `part` for each part of a split. Raises
    `UsageError` for a deviation that is not finite and above 0, and for less than 1 copy.

    Raises:
        UsageError: a deviation that is no finite number > 0; no copies; another seed than an integer >= 0.
    """
    require_seed(seed)
    if not isinstance(deviation, int | float) or not (math.isfinite(deviation) and deviation > 0):
        raise UsageError(f"deviation={deviation} is not a standard deviation; expected a finite number > 0")
    if copies < 1:
        raise UsageError(f"copies={copies} leaves no sample; expected an integer > 0")
    clean = np.tile(dataset["x"], (copies, *(1,) * (dataset["x"].ndim - 1)))
    noise = normal_bits(stream_key(seed, part, _SITE), clean.size, np.float64).reshape(clean.shape)
    return Dataset(("x", "y"), ((clean + deviation * noise).astype(clean.dtype), clean))
