"""Choice of the algorithm that computes a convolution, for eager and compiled kernels alike, from sizes alone.

With AVX-512 the sums of a tile stay in registers: the lanes of its vectors are output channels, or adjacent windows,
whichever leaves fewer of them idle. Otherwise a convolution is a matrix product with the matrix of its windows.
Eager kernels compute small convolutions in NumPy, and those of which each image is one window by a single product.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import lru_cache

from ....compiler.native import find_blas
from .channel_steps import tile_vectors
from .direct_convolution import has_registers
from .direct_steps import copied_share, reaches_all_cells, window_share
from .geometry import ConvGeometry


class Pass(Enum):
    """The op: conv(kernel, bias, x), its adjoint in x, which is conv_transpose, or the gradient of its kernel."""

    FORWARD = "conv"
    ADJOINT = "conv_transpose"
    KERNEL_GRAD = "conv_kernel_grad"


class Algorithm(Enum):
    """An algorithm, by what it holds in vectors or multiplies."""

    NUMPY = "a product with the matrix of windows, in NumPy"
    WHOLE_IMAGES = "a product with the matrix of images, each of which is its only window"
    DEPTHWISE = "vectors of channels, each with windows of its own"
    CHANNELS = "vectors of output channels; all cells of the kernel read a padded copy"
    CELLS = "vectors of output channels; each cell of the kernel lists the elements that it reads"
    DIRECT = "vectors of adjacent windows"
    IM2COL = "a product with the matrix of windows"
    FLIPPED = "the adjoint by IM2COL with the flipped kernel"
    COL2IM = "the adjoint by a product whose columns are added to their cells"


_WORTH_A_CALL = 1 << 14  # multiplications above which the pool is faster than NumPy
_RANK = 3
_FULL_ENOUGH = 0.75  # the fraction of lanes with a channel
_GRAD_FULL_ENOUGH = 0.8  # where windows could fill them as well
_INSIDE_ENOUGH = 0.7  # the fraction of cells of windows that are not padding, for copies to pay
_GRAD_INSIDE_ENOUGH = 0.8
_MANY_PRODUCTS = 64  # in a sum, so that it costs little to write it
_SOME_CHANNELS, _MANY_CHANNELS = 16, 32  # of the source, so that it costs little to load and store sums for each cell
_WINDOWS_FULL_ENOUGH = 0.6  # the fraction of lanes with a window for a tile to beat a matrix product
_LINE_FULL_ENOUGH = 0.8
_MOST_COPIED = 2.8  # times the cells of an image, including padding, or
_CHANNELS_A_COPY = 8  # of the result, for each copy
_FEW_CHANNELS = 4  # of a result, for which a matrix product is slow
_WINDOW_CHANNELS = 32  # for which copying windows takes a good part of the time of a matrix product


@lru_cache(4096)
def choose_eager_algorithm(which: Pass, g: ConvGeometry) -> Algorithm:
    """Return the algorithm of an eager convolution or derivative with the geometry of conv."""
    if g.cells == g.kernel and max(g.counts) == 1 and g.groups == 1 and not any(g.padding):
        return Algorithm.WHOLE_IMAGES
    worth = g.multiplications >= _WORTH_A_CALL and is_supported(g)
    return choose_algorithm(which, g) if worth else Algorithm.NUMPY


def is_supported(g: ConvGeometry) -> bool:
    """Return whether there is machine code for it."""
    return 1 <= len(g.cells) <= _RANK and g.dtype in ("float32", "float64") and find_blas() is not None


@lru_cache(4096)
def choose_algorithm(which: Pass, g: ConvGeometry) -> Algorithm:
    """Return the algorithm of a convolution or derivative with the geometry of conv."""
    back = which is Pass.ADJOINT
    product = Algorithm.IM2COL if not back else Algorithm.COL2IM if flipped(g) is None else Algorithm.FLIPPED
    if not has_registers() or 0 in (g.images, g.channels_in, g.channels_out, *g.cells, *g.counts):
        return product
    sources, targets = g.channels(back)
    share, has_cells = _lane_share(targets, g), math.prod(g.kernel) > 1
    if not _is_flat(g):
        by_cells = share >= _FULL_ENOUGH and has_cells and sources >= _SOME_CHANNELS
        return Algorithm.CELLS if by_cells else product
    if g.groups == g.channels_in == g.channels_out and _lane_share(g.groups, g) >= _FULL_ENOUGH:
        return Algorithm.DEPTHWISE
    direct = _is_direct(which, g)
    if share >= _FULL_ENOUGH and which is Pass.KERNEL_GRAD:
        inside = _share_inside(g)
        if has_cells and sources >= _SOME_CHANNELS and inside < _GRAD_INSIDE_ENOUGH:
            return Algorithm.CELLS
        if inside >= _INSIDE_ENOUGH and (share >= _GRAD_FULL_ENOUGH or not direct):
            return Algorithm.CHANNELS
    elif share >= _FULL_ENOUGH and has_cells:
        better = not direct or share >= window_share(g, back)
        many = sources >= _MANY_CHANNELS and not (back and tile_vectors(g, back) == 1)
        if (better and many) or (back and not direct):
            return Algorithm.CELLS
        pays = not direct or (better and g.depth >= _MANY_PRODUCTS)
        if pays and not back and _share_inside(g) >= _INSIDE_ENOUGH:
            return Algorithm.CHANNELS
    return Algorithm.DIRECT if direct else product


def _is_flat(g: ConvGeometry) -> bool:
    """Return whether it has two axes at most: kernels with copies support no more."""
    return len(g.cells) < 3 or (g.cells[0] == g.kernel[0] == g.counts[0] == 1 and g.padding[0] == 0)


def _is_direct(which: Pass, g: ConvGeometry) -> bool:
    """Return whether most lanes of vectors of windows have one, and lines are copied few times; or channels are few."""
    back, grad = which is Pass.ADJOINT, which is Pass.KERNEL_GRAD
    _, targets = g.channels(back)
    if targets == 1 or (grad and targets < _FEW_CHANNELS):
        return True
    full = math.prod(g.kernel) > 1 and window_share(g, back) >= _WINDOWS_FULL_ENOUGH
    if not full or copied_share(g, back) > max(_MOST_COPIED, targets / _CHANNELS_A_COPY):
        return False
    filled = g.stride[-1] == 1 and _lane_share(g.counts[-1], g) >= _LINE_FULL_ENOUGH
    return not grad or targets <= _WINDOW_CHANNELS or filled or not reaches_all_cells(g)


def _lane_share(size: int, g: ConvGeometry) -> float:
    """Return the fraction of lanes used by vectors of `size` numbers."""
    return size / (-(-size // g.lanes) * g.lanes)


def _share_inside(g: ConvGeometry) -> float:
    """Return the fraction of cells of windows that are not padding."""
    share = 1.0
    for n, k, count, s, p, d in zip(g.cells, g.kernel, g.counts, g.stride, g.padding, g.dilation):
        inside = sum(0 <= o * s - p + j * d < n for j in range(k) for o in range(count))
        share *= inside / (k * count)
    return share


@lru_cache(1024)
def flipped(g: ConvGeometry) -> ConvGeometry | None:
    """Return the conv with the flipped kernel that is the adjoint in x, if there is one without many more products."""
    border = tuple(d * (k - 1) - p for k, p, d in zip(g.kernel, g.padding, g.dilation))
    reached = tuple(n + 2 * p - d * (k - 1) for n, k, p, d in zip(g.cells, g.kernel, g.padding, g.dilation))
    if max(g.stride) > 1 or min(border) < 0 or reached != g.counts or g.channels_out > 2 * g.channels_in:
        return None
    return g._replace(
        channels_in=g.channels_out, channels_out=g.channels_in, cells=g.counts, counts=g.cells, padding=border
    )
