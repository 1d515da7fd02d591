"""Built-in data: digits, Burgers' equation, and noisy copies for denoising."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..ops.errors import UsageError
from ..ops.splitmix import draw_site, normal_bits, require_seed, stream_key, uniform_bits
from .array_files import from_npz
from .dataset import Dataset, from_arrays, train_test_split

Floats = npt.NDArray[np.float64]

VISCOSITY = 0.01 / math.pi
_POINTS = draw_site((("opstage.burgers", 0),), 0)
_NODES = 100
_CHUNK = 4096


def solution(x: npt.ArrayLike, t: npt.ArrayLike, *, viscosity: float = VISCOSITY) -> Floats:
    """Return u(x, t) of u_t + u·u_x = ν·u_xx with u(x, 0) = -sin(πx) and u(±1, t) = 0, for x in [-1, 1] and t >= 0.

    By the Cole-Hopf transformation u = -E[sin(π(x - η))·f(x - η)] / E[f(x - η)], f(y) = exp(-cos(πy)/(2πν)), η normal
    of variance 2νt; the expectations by Gauss-Hermite quadrature. Source: Basdevant et al. 1986, "Spectral and finite
    difference solutions of the Burgers equation", Computers & Fluids 14.
    """
    x, t = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(t, np.float64))
    nodes, weights = np.polynomial.hermite.hermgauss(_NODES)
    flat = np.empty(x.size)
    for start in range(0, x.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        y = x.ravel()[part, np.newaxis] - np.sqrt(4 * viscosity * t.ravel()[part])[:, np.newaxis] * nodes
        exponent = -np.cos(np.pi * y) / (2 * np.pi * viscosity)
        f = weights * np.exp(exponent - exponent.max(axis=1, keepdims=True))
        flat[part] = -(np.sin(np.pi * y) * f).sum(axis=1) / f.sum(axis=1)
    return flat.reshape(x.shape)


def grid(nx: int = 129, nt: int = 33) -> Dataset:
    """Return the solution on a regular grid of [-1, 1] × [0, 1]: float64 arrays x, t, u of nx·nt points each."""
    t, x = np.meshgrid(np.linspace(0, 1, nt), np.linspace(-1, 1, nx), indexing="ij")
    return _dataset(x.ravel(), t.ravel())


def points(count: int = 8192, *, near: float = 0.5, width: float = 0.1, seed: int = 0) -> Dataset:
    """Return `count` points: t uniform in [0, 1]; x uniform in [-1, 1], or for a fraction `near` of them in ±`width`.

    The solution steepens into a front at x = 0, with a width of about ν, which uniform points would rarely hit.
    """
    u = uniform_bits(stream_key(seed, 0, _POINTS), 2 * count, np.float64).reshape(2, count)
    x = 2 * u[0] - 1
    x[: round(near * count)] *= width
    return _dataset(x, u[1])


def _dataset(x: Floats, t: Floats) -> Dataset:
    return from_arrays(x=x, t=t, u=solution(x, t))


# Digits ---------------------------------------------------------------------------------------------------------------

_FILE = Path(__file__).with_name("digits.npz")


def digits() -> Dataset:
    """Return x: float32 (1797, 1, 8, 8), ink from 0 (none) to 1 (full) in steps of 1/16; y: int64 (1797,), the digit.

    Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
    doi:10.24432/C50P49 (its test part); see DIGITS.md in the same folder.
    """
    stored = from_npz(_FILE, ["images", "labels"])
    images = stored["images"].astype(np.float32)[:, np.newaxis] / np.float32(16)
    return Dataset(("x", "y"), (images, stored["labels"].astype(np.int64)), ("digits: x", "digits: y"))


def held_out_digits(seed: int) -> tuple[Dataset, Dataset]:
    """Return the embedded digits with a stratified 20 % of them held out."""
    return train_test_split(digits(), seed=seed)


# Noise ----------------------------------------------------------------------------------------------------------------

_NOISE = draw_site((("opstage.noise", 0),), 0)


def noisy(dataset: Dataset, *, deviation: float, copies: int = 1, seed: int = 0, part: int = 0) -> Dataset:
    """Return x: each sample of `dataset`, `copies` times, with Gaussian noise of this standard deviation; y: without
    noise.

    The noise is a function of `seed`, `part` and the position only; use another `part` for each part of a split. Raises
    `UsageError` for a deviation that is not finite and above 0, and for less than 1 copy.

    Raises:
        UsageError: a deviation that is not a finite number > 0; no copies; another seed than an integer >= 0.
    """
    require_seed(seed)
    if not isinstance(deviation, int | float) or not (math.isfinite(deviation) and deviation > 0):
        raise UsageError(f"deviation={deviation} is not a standard deviation; expected a finite number > 0")
    if copies < 1:
        raise UsageError(f"copies={copies} leaves no sample; expected an integer > 0")
    clean = np.tile(dataset["x"], (copies, *(1,) * (dataset["x"].ndim - 1)))
    noise = normal_bits(stream_key(seed, part, _NOISE), clean.size, np.float64).reshape(clean.shape)
    return Dataset(("x", "y"), ((clean + deviation * noise).astype(clean.dtype), clean))
