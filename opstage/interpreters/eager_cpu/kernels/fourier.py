"""Kernels: discrete Fourier transforms, with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.fourier import FFT, IRFFT, RFFT
from ....ops.primitive import Primitive

Array = npt.NDArray[Any]


def _complex(x: Array) -> Array:
    return np.add(x[..., 0], np.multiply(x[..., 1], 1j))


def _parts(y: Array, dtype: Any) -> Array:
    out = np.empty((*y.shape, 2), dtype)
    out[..., 0] = np.real(y)
    out[..., 1] = np.imag(y)
    return out


def _nan_unless_finite(out: Array, finite: Array) -> Array:
    """Return out with nan for each line that is not finite: which of its entries are nan depends on the algorithm."""
    return out if finite.all() else np.where(finite, out, np.full((), np.nan, out.dtype))


def _all(mask: Any, axis: int) -> Any:
    """Return whether all are true along an axis, which is kept with size 1."""
    return np.expand_dims(mask.all(axis=axis), axis)


def fft(x: Array, axis: int, inverse: bool, norm: Any) -> Array:
    finite = _all(_all(np.isfinite(x), -1), axis)
    transform: Any = np.fft.ifft if inverse else np.fft.fft
    return _nan_unless_finite(_parts(transform(_complex(x), axis=axis, norm=norm), x.dtype), finite)


def rfft(x: Array, axis: int, norm: Any) -> Array:
    finite = _all(np.isfinite(x), axis)
    return _nan_unless_finite(
        _parts(np.fft.rfft(x, axis=axis, norm=norm), x.dtype), np.expand_dims(finite, finite.ndim)
    )


def irfft(x: Array, n: int, axis: int, norm: Any) -> Array:
    mask: Any = np.isfinite(x)
    finite = _all(mask.all(axis=-1), axis)
    out = np.fft.irfft(_complex(x), n=n, axis=axis, norm=norm)
    return _nan_unless_finite(out.astype(x.dtype, copy=False), finite)


KERNELS: dict[Primitive, Callable[..., Any]] = {FFT: fft, RFFT: rfft, IRFFT: irfft}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
