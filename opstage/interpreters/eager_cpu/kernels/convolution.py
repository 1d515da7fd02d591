"""Kernels: convolutions as matrix products.

The windows of a few images, or of a few rows of one, are copied into the columns of a matrix (im2col): as many as stay
in the cache. They are multiplied by the kernel, whose rows are its output channels. The kernel's gradient is
the product with the transposed columns; the adjoint computes columns by a product and adds them to their sources
(col2im). The fast kernels do the same in machine code, above a size at which that pays off. Chellapilla et al., High
performance convolutional neural networks for document processing, 2006.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from ....compiler.native import KernelCall, KernelSequence, multiply, workers
from ....ops.convolution import CONV, CONV_KERNEL_GRAD, CONV_TRANSPOSE
from ....ops.host_arrays import address_of, packed
from ....ops.primitive import Primitive
from ..loops.convolution_choice import Algorithm, Pass, choose_eager_algorithm
from ..loops.convolution_steps import convolution_steps, plan_convolution
from ..loops.geometry import ConvGeometry, conv_geometry
from ..memory import Workspace, workspace
from .reduction import only_numbers

# Windows --------------------------------------------------------------------------------------------------------------

Array = npt.NDArray[Any]
Sizes = tuple[int, ...]
Reach = tuple[slice, slice]


def zeros(shape: Sizes, dtype: np.dtype[Any]) -> Array:
    """Return zeros to accumulate into: fractions if the dtype is exact."""
    return np.full(shape, Fraction(0), dtype=dtype) if dtype.kind == "O" else np.zeros(shape, dtype)


def window_counts(spatial: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Sizes:
    """Return the number of windows along each axis."""
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(spatial, kernel, stride, padding, dilation)
    )


def reach(offset: int, cells: int, windows: int, stride: int, padding: int) -> Reach:
    """Return the windows along an axis whose cell `offset` is not padding, and those cells."""
    first = max(0, -((offset - padding) // stride))
    last = min(windows - 1, (cells - 1 + padding - offset) // stride)
    if last < first:
        return slice(0, 0), slice(0, 0)
    start = first * stride + offset - padding
    return slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)


def reaches(
    spatial: Sizes, counts: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Yield for each cell of the kernel, in row-major order, the windows in which it is not padding, and those
    cells."""
    along = [
        [reach(j * d, n, count, s, p) for j in range(k)]
        for n, count, k, s, p, d in zip(spatial, counts, kernel, stride, padding, dilation)
    ]
    for axes in product(*along):
        yield (..., *(windows for windows, _ in axes)), (..., *(cells for _, cells in axes))


# Convolutions ---------------------------------------------------------------------------------------------------------


_COLUMN_BYTES = 1 << 20  # limit of the columns of one product; about the cache of a core


def _images(x: Array, rank: int) -> Array:
    """Return (N, C, *S), with N = 1 for a single image."""
    return x if x.ndim == rank + 2 else x[np.newaxis]


class _Blocks(NamedTuple):
    """The images and rows of windows of one product: all rows, unless one image is too large."""

    images: list[slice]
    rows: list[slice]


def _blocks(images: int, counts: Sizes, depth: int, kernel_bytes: int, itemsize: int) -> _Blocks:
    """Return blocks whose columns, `depth` numbers per window, fit in the cache or are no larger than the kernel."""
    room = _room(kernel_bytes)
    row_bytes = depth * math.prod(counts[1:]) * itemsize
    return _Blocks(_runs(images, counts[0] * row_bytes, room), _runs(counts[0], row_bytes, room))


def _room(kernel_bytes: int) -> int:
    return max(_COLUMN_BYTES, kernel_bytes)


def _runs(count: int, bytes_each: int, room: int) -> list[slice]:
    length = max(1, room // max(1, bytes_each))
    return [slice(start, min(start + length, count)) for start in range(0, count, length)]


def _windows(x: Array, kernel: Sizes, counts: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Array:
    """Return a view (C, *k, N, *O) of the windows of x (N, C, *S), padded with zeros."""
    if any(padding):
        padded = zeros((*x.shape[:2], *(n + 2 * p for n, p in zip(x.shape[2:], padding))), x.dtype)
        inside: tuple[Any, ...] = (..., *(slice(p, p + n) for n, p in zip(x.shape[2:], padding)))
        padded[inside] = x
        x = padded
    per_image, per_channel, *steps = x.strides
    return as_strided(
        x,
        (x.shape[1], *kernel, x.shape[0], *counts),
        (
            per_channel,
            *(step * d for step, d in zip(steps, dilation)),
            per_image,
            *(step * s for step, s in zip(steps, stride)),
        ),
        writeable=False,
    )


def _columns(windows: Array, images: slice, rows: slice) -> Array:
    """Copy the windows (C, *k, n, *O) of a block."""
    at: tuple[Any, ...] = (*(slice(None),) * (windows.ndim // 2), images, rows)
    return np.ascontiguousarray(windows[at])


def _channels_first(x: Array, images: slice, rows: slice) -> Array:
    """Copy a block of (N, C, *S) to (C, n, *S)."""
    return np.ascontiguousarray(x[images, :, rows].swapaxes(0, 1))


def _split(operands: tuple[Array, ...], has_bias: bool) -> tuple[Array | None, Array]:
    """Return the bias, or None, and x."""
    return (operands[0], operands[1]) if has_bias else (None, operands[0])


def _place(out: Array, result: Array, bias: Array | None) -> None:
    """Write a result (C, n, *S) with its bias to a range of images (n, C, *S)."""
    images_first = result.swapaxes(0, 1)
    if bias is None:
        out[...] = images_first
    else:
        np.add(images_first, bias.reshape(-1, *(1,) * (out.ndim - 2)), out=out)


def conv(
    kernel: Array, *operands: Array, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int, has_bias: bool
) -> Array:
    bias, x = _split(operands, has_bias)
    sizes, channels = kernel.shape[2:], kernel.shape[0]
    images = _images(x, len(sizes))
    counts = window_counts(images.shape[2:], sizes, stride, padding, dilation)
    windows = _windows(images, sizes, counts, stride, padding, dilation)
    depth = math.prod(kernel.shape[1:])
    weight = kernel.reshape(groups, channels // groups, depth)
    out = np.empty((len(images), channels, *counts), x.dtype)
    blocks = _blocks(len(images), counts, groups * depth, kernel.nbytes, x.itemsize)
    for run, rows in product(*blocks):
        place = out[run, :, rows]
        length = len(place) * math.prod(place.shape[2:])
        columns = _columns(windows, run, rows).reshape(groups, depth, length)
        _place(place, np.matmul(weight, columns).reshape(channels, len(place), *place.shape[2:]), bias)
    return out if images is x else out[0]


def conv_kernel_grad(
    x: Array, g: Array, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Array:
    images, cotangents = _images(x, len(kernel)), _images(g, len(kernel))
    counts = g.shape[-len(kernel) :]
    windows = _windows(images, kernel, counts, stride, padding, dilation)
    channels_in, channels = images.shape[1] // groups, cotangents.shape[1]
    depth = channels_in * math.prod(kernel)
    out = zeros((groups, channels // groups, depth), x.dtype)
    blocks = _blocks(len(images), counts, groups * depth, out.nbytes, x.itemsize)
    for run, rows in product(*blocks):
        left = _channels_first(cotangents, run, rows)
        length = math.prod(left.shape[1:])
        columns = _columns(windows, run, rows).reshape(groups, depth, length)
        out += np.matmul(left.reshape(groups, channels // groups, length), columns.swapaxes(1, 2))
    return out.reshape(channels, channels_in, *kernel)


def _adjoint_cells(
    spatial: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, output_padding: Sizes, dilation: Sizes
) -> Sizes:
    """Return the spatial sizes of the result of conv_transpose."""
    return tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + extra + 1
        for n, k, s, p, extra, d in zip(spatial, kernel, stride, padding, output_padding, dilation)
    )


def conv_transpose(
    kernel: Array,
    *operands: Array,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int,
    has_bias: bool,
) -> Array:
    bias, x = _split(operands, has_bias)
    sizes, channels = kernel.shape[2:], kernel.shape[1] * groups
    by_group = kernel.reshape(groups, kernel.shape[0] // groups, *kernel.shape[1:])
    border = tuple(d * (k - 1) - p for k, p, d in zip(sizes, padding, dilation))
    turns = max(stride) == 1 and not any(output_padding) and min(border) >= 0 and kernel.shape[0] <= 2 * channels
    if turns and only_numbers(kernel):
        # Without strides the adjoint is a conv with the flipped kernel. It moves more cells if x has more channels than
        # the result, but copying windows is about twice as fast as adding them. Its padding consists of zeros, which
        # the adjoint does not have, and a weight that is not finite would turn them into nan.
        turned = np.flip(by_group, tuple(range(3, by_group.ndim))).swapaxes(1, 2)
        turned = turned.reshape(channels, kernel.shape[0] // groups, *sizes)
        return conv(
            turned, *operands, stride=stride, padding=border, dilation=dilation, groups=groups, has_bias=has_bias
        )
    images = _images(x, len(sizes))
    spatial = images.shape[2:]
    counts = _adjoint_cells(spatial, sizes, stride, padding, output_padding, dilation)
    depth = math.prod(kernel.shape[1:])
    weight = np.ascontiguousarray(by_group.reshape(groups, kernel.shape[0] // groups, depth).swapaxes(1, 2))
    out = np.empty((len(images), channels, *counts), x.dtype)
    blocks = _blocks(len(images), spatial, groups * depth, kernel.nbytes, x.itemsize)
    # Rows from r on, counted from 0, are windows with r·stride less of padding before them.
    cells = [
        list(
            reaches(
                counts,
                (rows.stop - rows.start, *spatial[1:]),
                sizes,
                stride,
                (padding[0] - rows.start * stride[0], *padding[1:]),
                dilation,
            )
        )
        for rows in blocks.rows
    ]
    for run in blocks.images:
        total = zeros((channels, run.stop - run.start, *counts), x.dtype)
        for rows, reached in zip(blocks.rows, cells):
            right = _channels_first(images, run, rows)
            length = math.prod(right.shape[1:])
            columns = np.matmul(weight, right.reshape(groups, weight.shape[2], length))
            columns = columns.reshape(channels, len(reached), *right.shape[1:])
            for i, (windows, cell) in enumerate(reached):
                part = total[cell]
                np.add(part, columns[:, i][windows], out=part)
        _place(out[run], total, bias)
    return out if images is x else out[0]


# In machine code ------------------------------------------------------------------------------------------------------


def _fast(which: Pass, g: ConvGeometry, kernel: Array, bias: Array | None, images: Array, shape: Sizes) -> Array | None:
    """Return conv or its adjoint, of this shape; None if NumPy is faster."""
    algorithm = choose_eager_algorithm(which, g)
    if algorithm is Algorithm.NUMPY:
        return None
    if algorithm is Algorithm.WHOLE_IMAGES:
        weight = packed(kernel).reshape(len(kernel), g.depth)
        rows = images.reshape(len(images), math.prod(images.shape[1:]))
        out = multiply(rows, weight if which is Pass.ADJOINT else weight.T).reshape(shape)
        if bias is not None:
            out += bias.reshape(-1, *(1,) * (len(shape) - 2))
        return out
    out = np.empty(shape, images.dtype)
    _run(which, g, images, packed(kernel), None if bias is None else packed(bias), out)
    return out


def _run(which: Pass, g: ConvGeometry, images: Array, other: Array, bias: Array | None, out: Array) -> None:
    plan = plan_convolution(which, g)
    own = workers() * plan.workspace
    memory = workspace(own + plan.partial)
    at = address_of(images), address_of(other), 0 if bias is None else address_of(bias), address_of(out)
    _do(convolution_steps(which, g, *at, memory.address, memory.address + own), memory)


def _do(steps: tuple[KernelCall, ...], _memory: Workspace) -> None:
    KernelSequence(steps).run()


@lru_cache(1024)
def _geometry(
    dtype: np.dtype[Any],
    images: Sizes,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    output_padding: Sizes | None = None,
) -> ConvGeometry:
    """Return the geometry of the conv of images (N, C, *S), or with `output_padding` of that whose adjoint takes
    them, from shapes."""
    spatial, sizes = images[2:], kernel[2:]
    if output_padding is None:
        inside = images
        outside = (images[0], kernel[0], *window_counts(spatial, sizes, stride, padding, dilation))
    else:
        outside = images
        cells = _adjoint_cells(spatial, sizes, stride, padding, output_padding, dilation)
        inside = (images[0], kernel[1] * groups, *cells)
    return conv_geometry(dtype, inside, sizes, outside, stride, padding, dilation, groups)


def fast_conv(
    kernel: Array, *operands: Array, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int, has_bias: bool
) -> Array:
    bias, x = _split(operands, has_bias)
    images = packed(_images(x, kernel.ndim - 2))
    g = _geometry(x.dtype, images.shape, kernel.shape, stride, padding, dilation, groups)
    out = _fast(Pass.FORWARD, g, kernel, bias, images, (len(images), len(kernel), *g.counts))
    if out is None:
        return conv(
            kernel, *operands, stride=stride, padding=padding, dilation=dilation, groups=groups, has_bias=has_bias
        )
    return out if x.ndim == images.ndim else out[0]


def fast_conv_transpose(
    kernel: Array,
    *operands: Array,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int,
    has_bias: bool,
) -> Array:
    bias, x = _split(operands, has_bias)
    images = packed(_images(x, kernel.ndim - 2))
    g = _geometry(x.dtype, images.shape, kernel.shape, stride, padding, dilation, groups, output_padding)
    out = _fast(Pass.ADJOINT, g, kernel, bias, images, (len(images), g.channels_in, *g.cells))
    if out is None:
        return conv_transpose(
            kernel, *operands, stride=stride, padding=padding, output_padding=output_padding, dilation=dilation,
            groups=groups, has_bias=has_bias,
        )  # fmt: skip
    return out if x.ndim == images.ndim else out[0]


def fast_conv_kernel_grad(
    x: Array, g: Array, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Array:
    images, cotangents = packed(_images(x, len(kernel))), packed(_images(g, len(kernel)))
    shape = (cotangents.shape[1], images.shape[1] // groups, *kernel)
    # The cotangent may have fewer windows than fit into x: cells behind the last may be as many as another window has.
    geometry = conv_geometry(x.dtype, images.shape, kernel, cotangents.shape, stride, padding, dilation, groups)
    algorithm = choose_eager_algorithm(Pass.KERNEL_GRAD, geometry)
    if algorithm is Algorithm.WHOLE_IMAGES:
        rows = cotangents.reshape(len(cotangents), geometry.channels_out)
        return multiply(rows.T, images.reshape(len(images), geometry.depth)).reshape(shape)
    if algorithm is Algorithm.NUMPY:
        return conv_kernel_grad(x, g, kernel=kernel, stride=stride, padding=padding, dilation=dilation, groups=groups)
    out = np.empty(shape, x.dtype)
    _run(Pass.KERNEL_GRAD, geometry, images, cotangents, None, out)
    return out


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Callable[..., Any]] = {
    CONV: conv,
    CONV_TRANSPOSE: conv_transpose,
    CONV_KERNEL_GRAD: conv_kernel_grad,
}

FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    CONV: fast_conv,
    CONV_TRANSPOSE: fast_conv_transpose,
    CONV_KERNEL_GRAD: fast_conv_kernel_grad,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = KERNELS
