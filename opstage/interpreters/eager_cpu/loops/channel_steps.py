"""Steps for convolutions in vectors of channels: their choice, workspace and arguments."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ...native import KernelCall
from .channel_convolution import ROWS, WORDS, channel_kernel
from .direct_steps import fullness, is_direct, is_flat, is_grad_direct
from .geometry import IMAGES, ConvGeometry, ConvTiling, Words, in_plane, kernel_words, rounded_up

_BLOCK_BYTES = 384 << 10  # of lines and sums of a block; weights also fit in a cache of 1 MB
_PANEL_BYTES = 128 << 10  # of weights of a pass, which all tiles of a block read
_VECTOR_BYTES = 64
_FULL_ENOUGH = 0.75  # the fraction of lanes with a channel
_GRAD_FULL_ENOUGH = 0.8  # where windows could fill them as well
_INSIDE_ENOUGH = 0.7  # the fraction of cells of windows that are not padding
_MANY_PRODUCTS = 64  # in a sum, so that it costs little to write it
_WINDOWS = 96  # of a block, so that few of its tiles are repetitions


class _Blocking(NamedTuple):
    """A division: vectors of channels of a tile, lines and images of a block, whether x is read in place."""

    vectors: int
    lines: int
    images: int
    in_place: bool


def _panels(channels: int, lanes: int) -> int:
    return -(-channels // lanes)


def channel_vectors(channels: int, lanes: int) -> int:
    """Return the vectors of channels of a tile: as many as leave the fewest without channels."""
    panels = _panels(channels, lanes)
    return min(ROWS, key=lambda many: (-(-panels // many) * many, -many))


def _lanes(g: ConvGeometry) -> int:
    return _VECTOR_BYTES // g.itemsize


def _grouped(g: ConvGeometry) -> tuple[int, int]:
    """Return the channels of x and of the result, per group."""
    return g.channels_in // g.groups, g.channels_out // g.groups


@lru_cache(1024)
def is_by_channels(g: ConvGeometry) -> bool:
    """Whether conv is computed this way: if channels fill vectors better than windows do. A kernel of one cell is a
    product of matrices that need not be copied."""
    if math.prod(g.kernel) == 1 or not _is_possible(g):
        return False
    if not is_direct(g):
        return True
    channels, lanes = _grouped(g)[1], _lanes(g)
    return g.depth >= _MANY_PRODUCTS and channels / (_panels(channels, lanes) * lanes) >= fullness(g)


@lru_cache(1024)
def is_grad_by_channels(g: ConvGeometry) -> bool:
    """Whether the kernel's gradient is computed this way."""
    channels, lanes = _grouped(g)[1], _lanes(g)
    return _is_possible(g) and (
        channels >= _GRAD_FULL_ENOUGH * _panels(channels, lanes) * lanes or not is_grad_direct(g)
    )


def _is_possible(g: ConvGeometry) -> bool:
    channels, lanes = _grouped(g)[1], _lanes(g)
    return (
        is_flat(g) and channels >= _FULL_ENOUGH * _panels(channels, lanes) * lanes and share_inside(g) >= _INSIDE_ENOUGH
    )


def share_inside(g: ConvGeometry) -> float:
    """Return the fraction of cells of windows that are not padding; all are computed."""
    share = 1.0
    for n, k, count, s, p, d in zip(g.cells, g.kernel, g.counts, g.stride, g.padding, g.dilation):
        inside = sum(0 <= o * s - p + j * d < n for j in range(k) for o in range(count))
        share *= inside / (k * count)
    return share


def _row_bytes(g: ConvGeometry) -> int:
    return channel_vectors(_grouped(g)[1], _lanes(g)) * _VECTOR_BYTES


def _axes(g: ConvGeometry) -> list[tuple[tuple[int, ...], int]]:
    return [(g.cells, 1), (g.kernel, 1), (g.counts, 1), (g.stride, 1), (g.padding, 0), (g.dilation, 1)]


@lru_cache(1024)
def _block(g: ConvGeometry, beside: int) -> _Blocking:
    """Return the block of conv or of the kernel's gradient; `beside` bytes per window stand beside the lines."""
    cells, kernel, counts, stride, padding, dilation = (in_plane(each, i) for each, i in _axes(g))
    vectors = channel_vectors(_grouped(g)[1], _lanes(g))
    in_place, (all_lines, width) = not any(padding), counts
    reach, pitch = (kernel[0] - 1) * dilation[0], cells[1] + 2 * padding[1]
    line_bytes = _grouped(g)[0] * pitch * g.itemsize

    def bytes_of(lines: int) -> int:
        return ((lines - 1) * stride[0] + 1 + reach) * line_bytes + lines * width * beside

    lines = all_lines if g.images >= IMAGES else -(-all_lines // IMAGES)
    while lines > 1 and bytes_of(lines) > _BLOCK_BYTES and lines * width > ROWS[vectors]:
        lines = -(-lines // 2)
    images = 1
    if lines == all_lines:
        most = min(-(-g.images // IMAGES), _BLOCK_BYTES // bytes_of(lines))
        images = max(1, min(most, -(-_WINDOWS // (lines * width))))
    return _Blocking(vectors, lines, images, in_place)


def _words(g: ConvGeometry, block: _Blocking, most: int, own: int, pitch: int, lines: int) -> Words:
    cells, kernel, counts, stride, padding, dilation = (in_plane(each, i) for each, i in _axes(g))
    channels_in, channels_out = _grouped(g)
    channel, groups = lines * pitch * g.itemsize, 1
    if block.in_place:
        channel, groups = cells[0] * cells[1] * g.itemsize, g.groups
    step_bytes = block.vectors * _VECTOR_BYTES * math.prod(kernel)
    return kernel_words(
        [
            *(0,) * 4, own, g.images, g.groups, channels_in, channels_out, *cells, *kernel, *counts, 0, 0, 1, 1,
            *padding, *dilation, pitch, lines, 1, 1, groups * channels_in * channel, channel, 0, most, 0, 0, 0, 0, 0,
            (kernel[0] - 1) * dilation[0], block.lines, block.images, *(0,) * 6, *stride, block.in_place,
            max(1, _PANEL_BYTES // step_bytes),
        ],
        WORDS,
    )  # fmt: skip


def _copied(g: ConvGeometry, block: _Blocking) -> tuple[int, int, int]:
    """Return the lines and the cells of a line of the copy of a plane, and the bytes of a block's copy."""
    cells, kernel, _, stride, padding, dilation = (in_plane(each, i) for each, i in _axes(g))
    lines = (block.lines - 1) * stride[0] + 1 + (kernel[0] - 1) * dilation[0]
    if block.in_place:
        return lines, cells[1], 0
    pitch = cells[1] + 2 * padding[1]
    return lines, pitch, block.images * _grouped(g)[0] * lines * pitch * g.itemsize + 2 * _VECTOR_BYTES


def _most(g: ConvGeometry, block: _Blocking) -> int:
    """Return the windows of a block, in whole tiles."""
    rows = ROWS[block.vectors]
    return -(-block.images * block.lines * in_plane(g.counts, 1)[1] // rows) * rows


@lru_cache(1024)
def channel_plan(g: ConvGeometry) -> ConvTiling:
    block = _block(g, _row_bytes(g))
    lines, pitch, copied = _copied(g, block)
    most = _most(g, block)
    own = rounded_up(16 * most + 8 * math.prod(g.kernel) + 64) + most * block.vectors * _VECTOR_BYTES
    own = rounded_up(own + copied)
    tasks = -(-g.images // block.images) * -(-in_plane(g.counts, 1)[0] // block.lines)
    # The last tile may have more vectors than there are panels.
    panels = g.groups * _panels(_grouped(g)[1], _lanes(g)) + max(ROWS) - 1
    return ConvTiling(own, panels * (g.depth + 1) * _VECTOR_BYTES, tasks, _words(g, block, most, own, pitch, lines))


def channel_steps(
    g: ConvGeometry, x: int, kernel: int, bias: int, result: int, workspace: int, panels: int
) -> tuple[KernelCall, ...]:
    """Return the steps of conv(kernel, bias, x) at `result`."""
    plan, vectors = channel_plan(g), channel_vectors(_grouped(g)[1], _lanes(g))
    words = plan.words.copy()
    words[:4] = x, panels, result, workspace
    words[31], words[33] = bias, kernel
    return (
        KernelCall(channel_kernel("pack", g.dtype, vectors), g.groups * _panels(_grouped(g)[1], _lanes(g)), words),
        KernelCall(channel_kernel("forward", g.dtype, vectors), plan.tasks, words),
    )


# The kernel's gradient ------------------------------------------------------------------------------------------------


def _grad_row(g: ConvGeometry) -> int:
    """Return the bytes of all channels of the result, in whole tiles."""
    vectors = channel_vectors(_grouped(g)[1], _lanes(g))
    return -(-_panels(_grouped(g)[1], _lanes(g)) // vectors) * vectors * _VECTOR_BYTES


@lru_cache(1024)
def channel_grad_plan(g: ConvGeometry) -> ConvTiling:
    depth, row = math.prod(g.kernel) * _grouped(g)[0], _grad_row(g)
    block = _block(g, row)
    lines, pitch, copied = _copied(g, block)
    most = _most(g, block)
    own = rounded_up(16 * (depth + max(ROWS.values())) + 8 * most + 64) + most * row
    own = rounded_up(own + copied)
    parts = g.grad_parts(-(-g.images // block.images) * -(-in_plane(g.counts, 1)[0] // block.lines))
    words = _words(g, block, most, own, pitch, lines).copy()
    words[35] = parts
    words.flags.writeable = False
    return ConvTiling(own, parts * g.groups * depth * row, parts, words)


def channel_grad_steps(
    g: ConvGeometry, x: int, cotangent: int, out: int, workspace: int, partial: int
) -> tuple[KernelCall, ...]:
    """Return the steps of conv_kernel_grad(x, cotangent) at `out`."""
    plan, vectors = channel_grad_plan(g), channel_vectors(_grouped(g)[1], _lanes(g))
    words = plan.words.copy()
    words[:4] = x, partial, cotangent, workspace
    words[33] = out
    blocks = g.groups * -(-_panels(_grouped(g)[1], _lanes(g)) // vectors)
    runs = -(-math.prod(g.kernel) * _grouped(g)[0] // _lanes(g))
    return (
        KernelCall(channel_kernel("grad", g.dtype, vectors), plan.tasks, words),
        KernelCall(channel_kernel("collect", g.dtype, vectors), blocks * runs, words),
    )
