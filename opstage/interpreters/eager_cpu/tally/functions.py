"""NumPy's functions on phantoms: the shape of their results, and their temporary memory.

A function that a kernel uses but that is missing here raises NotImplementedError with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .phantom import Phantom, Sizes, computed, dense_strides, reduced, together


def _new(shape: Sizes, function: Callable[..., Any], *args: Any, **options: Any) -> Phantom:
    """Return a result of this shape, with the dtype and axis order of the result of `function` on a few elements."""
    few = computed(function, *args, **options)
    return Phantom.new(shape, few.dtype, dense_strides(few, shape, few.itemsize))


def _elementwise(function: Callable[..., Any]) -> Callable[..., Phantom]:
    return lambda *args: _new(together(*args), function, *args)


def _view(function: Callable[..., Any]) -> Callable[..., Phantom]:
    return lambda x, *args, **options: x.seen(function(x.carrier, *args, **options))


def _split(x: Phantom, sections: Any, axis: int = 0) -> list[Phantom]:
    return [x.seen(part) for part in np.split(x.carrier, sections, axis)]


def _concatenate(parts: Sequence[Phantom], axis: int = 0) -> Phantom:
    shape = list(parts[0].shape)
    shape[axis] = sum([part.shape[axis] for part in parts])
    return _new(tuple(shape), np.concatenate, parts, axis=axis)


def _stack(parts: Sequence[Phantom], axis: int = 0) -> Phantom:
    shape = list(parts[0].shape)
    shape.insert(axis % (len(shape) + 1), len(parts))
    return _new(tuple(shape), np.stack, parts, axis=axis)


def take(x: Any, indices: Any, axis: int | None = None) -> Phantom:
    """Take from a row-major copy, at indices in machine words."""
    rows = x if x.flags.c_contiguous else Phantom.new(x.shape, x.dtype)
    words = indices.astype(np.intp, copy=False)
    at = 0 if axis is None else axis
    shape = words.shape if axis is None else (*x.shape[:at], *words.shape, *x.shape[at + 1 :])
    return Phantom.new(shape, rows.dtype)


def _repeat(x: Phantom, repeats: int, axis: int) -> Phantom:
    rows = x if x.flags.c_contiguous else x.copy()
    return Phantom.new([n * repeats if i == axis else n for i, n in enumerate(x.shape)], rows.dtype)


def _take_along_axis(x: Phantom, indices: Phantom, axis: int) -> Phantom:
    return _new(indices.shape, np.take_along_axis, x, indices, axis=axis)


def _argmax(x: Phantom, axis: int, keepdims: bool = False) -> Phantom:
    """Return indices, after moving the axis to the end, with a copy unless it is already there."""
    last = axis % x.ndim == x.ndim - 1 and x.flags.c_contiguous
    rows = x if last else Phantom.new(x.shape, x.dtype)
    return Phantom.new(reduced(rows.shape, axis, keepdims), np.intp)


def _argsort(x: Phantom, axis: int, kind: str) -> Phantom:
    """Return indices in x's shape, and allocate a second buffer for the merges of a stable sort."""
    places = Phantom.new(x.shape, np.intp)
    Phantom.new(x.shape, np.intp)
    return places


def _solved(a: Phantom, b: Phantom) -> Phantom:
    return Phantom.new(b.shape, b.dtype)


def _number_each(x: Phantom) -> Phantom:
    return Phantom.new(x.shape[:-2], x.dtype)


def _factors(x: Phantom, dtype: np.dtype[Any], *shapes: Sizes) -> tuple[Phantom, ...]:
    """Return factors of each matrix of a stack, computed in float64, on a copy if x has another dtype, and rounded one
    by one."""
    copied = x.astype(np.float64, copy=False)
    factors = [Phantom.new((*x.shape[:-2], *shape), copied.dtype) for shape in shapes]
    del copied
    for i in range(len(factors)):
        factors[i] = factors[i].astype(dtype, copy=False)
    return tuple(factors)


def _singular_vectors(x: Phantom, full_matrices: bool) -> tuple[Phantom, ...]:
    m, n = x.shape[-2:]
    k = min(m, n)
    return _factors(x, x.dtype, (m, k), (k,), (k, n))


def _eigenvectors(x: Phantom) -> tuple[Phantom, ...]:
    n = x.shape[-1]
    return _factors(x, x.dtype, (n,), (n, n))


def _orthogonal_triangular(x: Phantom) -> tuple[Phantom, ...]:
    """Return factors of an overwritten copy, with a number per reflection."""
    m, n = x.shape[-2:]
    k = min(m, n)
    copied = x.astype(np.float64)
    numbers = Phantom.new((*x.shape[:-2], k), copied.dtype)
    factors = _factors(copied, x.dtype, (m, k), (k, n))
    del copied, numbers
    return factors


def _half(y: Phantom) -> Phantom:
    """Return a view of the real or imaginary parts."""
    return Phantom.on(y.memory, y.shape, y.strides, np.empty(0, y.dtype).real.dtype)


def _spectrum(x: Phantom, axis: int, norm: str) -> Phantom:
    return _new(x.shape, np.fft.fft, x, axis=axis, norm=norm)


def _half_spectrum(x: Phantom, axis: int, norm: str) -> Phantom:
    shape = [n // 2 + 1 if i == axis else n for i, n in enumerate(x.shape)]
    return _new(tuple(shape), np.fft.rfft, x, axis=axis, norm=norm)


def _from_half_spectrum(x: Phantom, n: int, axis: int, norm: str) -> Phantom:
    shape = [n if i == axis else size for i, size in enumerate(x.shape)]
    return _new(tuple(shape), np.fft.irfft, x, n=2, axis=axis, norm=norm)


def _mean(x: Phantom) -> Any:
    return np.divide(x.sum(), x.size)


def _einsum(text: str, *operands: Phantom) -> Phantom:
    """Handle operands with letters after an ellipsis."""
    inputs, output = text.split("->")
    sizes: dict[str, int] = {}
    for letters, x in zip(inputs.split(","), operands):
        sizes.update(zip(letters[3:], x.shape[x.ndim - len(letters) + 3 :]))
    leading = np.broadcast_shapes(*[x.shape[: x.ndim - len(s) + 3] for s, x in zip(inputs.split(","), operands)])
    return _new((*leading, *[sizes[letter] for letter in output[3:]]), np.einsum, text, *operands)


def _empty_like(x: Phantom) -> Phantom:
    return _new(x.shape, np.empty_like, x)


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.where: _elementwise(np.where),
    np.clip: _elementwise(np.clip),
    np.broadcast_to: _view(np.broadcast_to),
    np.expand_dims: _view(np.expand_dims),
    np.swapaxes: _view(np.swapaxes),
    np.flip: _view(np.flip),
    np.reshape: lambda x, shape: x.reshape(shape),
    np.split: _split,
    np.concatenate: _concatenate,
    np.stack: _stack,
    np.take: take,
    np.repeat: _repeat,
    np.take_along_axis: _take_along_axis,
    np.put_along_axis: lambda x, indices, values, axis: None,
    np.copyto: lambda x, values, where: None,
    np.argmax: _argmax,
    np.linalg.solve: _solved,
    np.linalg.cholesky: lambda x: Phantom.new(x.shape, x.dtype),
    np.linalg.det: _number_each,
    np.linalg.slogdet: lambda x: (_number_each(x), _number_each(x)),
    np.linalg.eigh: _eigenvectors,
    np.linalg.qr: _orthogonal_triangular,
    np.linalg.svd: _singular_vectors,
    np.real: _half,
    np.imag: _half,
    np.fft.fft: _spectrum,
    np.fft.ifft: _spectrum,
    np.fft.rfft: _half_spectrum,
    np.fft.irfft: _from_half_spectrum,
    np.argsort: _argsort,
    np.mean: _mean,
    np.count_nonzero: lambda x: 0,
    np.einsum: _einsum,
    np.empty_like: _empty_like,
}


# Functions that create arrays -----------------------------------------------------------------------------------------


def _shape(shape: Any) -> Sizes:
    return tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)


def _empty(shape: Any, dtype: Any = np.float64) -> Phantom:
    return Phantom.new(_shape(shape), dtype)


def _full(shape: Any, value: Any, dtype: Any = None) -> Phantom:
    return Phantom.new(_shape(shape), np.asarray(value).dtype if dtype is None else dtype)


def _arange(*args: Any, dtype: Any = np.int64) -> Phantom:
    return Phantom.new((len(range(*map(int, args))),), dtype)


def _array(x: Any, dtype: Any = None, order: str = "K", copy: bool = True) -> Phantom:
    if not isinstance(x, Phantom):
        array = np.asarray(x, dtype)
        return Phantom.new(array.shape, array.dtype)
    if not copy and (dtype is None or x.dtype == dtype) and (order == "K" or x.flags.c_contiguous):
        return x
    few = computed(np.array, x, dtype=dtype, order=order)
    return Phantom.new(x.shape, few.dtype, dense_strides(few, x.shape, few.itemsize))


def strided(x: Phantom, shape: Sizes, strides: Sizes, **options: Any) -> Phantom:
    return Phantom.on(x.memory, tuple(shape), tuple(strides), x.dtype)


MAKERS: dict[Any, Any] = {
    np.ndarray: Phantom,
    np.empty: _empty,
    np.zeros: _empty,
    np.ones: _empty,
    np.full: _full,
    np.arange: _arange,
    np.eye: lambda n, dtype: Phantom.new((n, n), dtype),
    np.tri: lambda n, m, k, dtype: Phantom.new((n, m), dtype),
    np.array: _array,
    np.asarray: lambda x, dtype=None: _array(x, dtype, copy=False),
    np.ascontiguousarray: lambda x: _array(x, order="C", copy=False),
}
"""The replacements of NumPy functions that create arrays."""
