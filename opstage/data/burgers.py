"""Burgers' equation: its solution by the Cole-Hopf transformation, and training points."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..ops.splitmix import site_of, stream_key, uniform_bits
from .dataset import Dataset, from_arrays

Floats = npt.NDArray[np.float64]

VISCOSITY = 0.01 / math.pi
_SITE = site_of((("opstage.burgers", 0),), 0)
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
    u = uniform_bits(stream_key(seed, 0, _SITE), 2 * count, np.float64).reshape(2, count)
    x = 2 * u[0] - 1
    x[: round(near * count)] *= width
    return _dataset(x, u[1])


def _dataset(x: Floats, t: Floats) -> Dataset:
    return from_arrays(x=x, t=t, u=solution(x, t))
