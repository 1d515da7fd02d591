"""Kernels: scans, recurrences, sorting and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.fourier import FFT, IRFFT, RFFT
from ....ops.host_arrays import number, packed
from ....ops.primitive import Primitive
from ....ops.sequence import ARGSORT, CUMPROD, CUMSUM, LINEAR_RECURRENCE, REDUCE_PROD
from ..loops import arrays as loops

# Scans and sorting ----------------------------------------------------------------------------------------------------

Array = npt.NDArray[Any]

_product: Callable[..., Array] = np.multiply.reduce


def _in_order(x: Array, axis: int, reverse: bool) -> Array:
    """Return x with this axis in front, in the order of accumulation."""
    moved = np.swapaxes(x, 0, axis)
    return moved[::-1] if reverse else moved


def _accumulate(
    accumulate: Callable[..., Any], start: int, x: Array, axis: int, exclusive: bool, reverse: bool
) -> Array:
    """Accumulate into new memory with x's own layout, from either end."""
    dtype: Any = np.int64 if x.dtype.kind == "i" else x.dtype
    out = np.empty(x.shape, dtype)
    terms, results = _in_order(x, axis, reverse), _in_order(out, axis, reverse)
    if exclusive and len(terms):
        results[0] = number(start, out.dtype)
        terms, results = terms[:-1], results[1:]
    accumulate(terms, axis=0, dtype=dtype, out=results)
    return out


cumsum = partial(_accumulate, np.add.accumulate, 0)
cumprod = partial(_accumulate, np.multiply.accumulate, 1)


def argsort(x: Array, axis: int, descending: bool) -> Array:
    """Sort stably. In descending order the last of equal elements would come first, so the elements are reversed
    before."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    places = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.subtract(x.shape[axis] - 1, np.flip(places, axis))  # type: ignore[no-any-return]


def linear_recurrence(a: Array, b: Array, axis: int, reverse: bool) -> Array:
    out = np.empty(b.shape, b.dtype)
    factors, terms, values = (_in_order(x, axis, reverse) for x in (a, b, out))
    before: Any = number(0, b.dtype)
    for k in range(len(terms)):
        values[k] = np.add(np.multiply(factors[k], before), terms[k])
        before = values[k]
    return out


def fast_linear_recurrence(a: Array, b: Array, axis: int, reverse: bool) -> Array:
    """Compute `linear_recurrence` in machine code, without a Python call per step along the axis."""
    if b.dtype.kind != "f" or not b.size:
        return linear_recurrence(a, b, axis, reverse)
    out, (shape, together) = np.empty(b.shape, b.dtype), _rows(b.shape, axis)
    loops.linear_recurrence(
        int(reverse), together, packed(a).reshape(shape), packed(b).reshape(shape), out.reshape(shape)
    )
    return out


_CHAINS = 8  # sums made side by side, so that none waits for the one before it


def _rows(shape: tuple[int, ...], axis: int) -> tuple[tuple[int, int, int], int]:
    """Return a shape with all axes before this one as one, and all behind it, and the rows to accumulate together."""
    inner = math.prod(shape[axis + 1 :])
    return (math.prod(shape[:axis]), shape[axis], inner), max(1, _CHAINS // inner)


def _accumulate_floats(
    loop: Callable[..., None], plain: Callable[..., Array], x: Array, axis: int, exclusive: bool, reverse: bool
) -> Array:
    """Accumulate floats in machine code, anything else by the plain kernel."""
    if x.dtype.kind != "f" or not x.size:
        return plain(x, axis, exclusive, reverse)
    out, (shape, together) = np.empty(x.shape, x.dtype), _rows(x.shape, axis)
    loop(int(exclusive), int(reverse), together, packed(x).reshape(shape), out.reshape(shape))
    return out


def reduce_prod(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    dtype: Any = np.int64 if x.dtype.kind == "i" else x.dtype
    return _product(x, axis=axes, keepdims=keepdims, dtype=dtype)


# Fourier transforms ---------------------------------------------------------------------------------------------------


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


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Callable[..., Any]] = {
    CUMSUM: cumsum,
    CUMPROD: cumprod,
    LINEAR_RECURRENCE: linear_recurrence,
    REDUCE_PROD: reduce_prod,
    ARGSORT: argsort,
    FFT: fft,
    RFFT: rfft,
    IRFFT: irfft,
}

FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    CUMSUM: partial(_accumulate_floats, loops.cumsum, cumsum),
    CUMPROD: partial(_accumulate_floats, loops.cumprod, cumprod),
    LINEAR_RECURRENCE: fast_linear_recurrence,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {
    CUMSUM: cumsum,
    LINEAR_RECURRENCE: linear_recurrence,
    ARGSORT: argsort,
}
