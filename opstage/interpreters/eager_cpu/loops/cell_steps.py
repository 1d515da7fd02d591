"""Steps for convolutions cell by cell of the kernel: their choice, workspace and arguments."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ...native import KernelCall
from .cell_convolution import WORDS, cell_kernel
from .channel_convolution import ROWS
from .channel_steps import channel_vectors, share_inside
from .direct_steps import fullness, has_tiles, is_direct, is_flat
from .geometry import IMAGES, ConvGeometry, ConvTiling, Sizes, Words, in_volume, kernel_words, rounded_up

_VECTOR_BYTES = 64
_BLOCK_BYTES = 256 << 10  # of sums or cotangents; weights and what is read also fit in a cache of 1 MB
_FULL_ENOUGH = 0.75  # the fraction of lanes with a channel
_SOME_CHANNELS, _MANY_CHANNELS = 16, 32  # of the source, so that it costs little to load and store sums for each cell
_INSIDE_ENOUGH = 0.8  # the fraction of cells of windows that are not padding, for copies to pay
_WINDOWS = 128  # of a block, so that few pairs are repetitions


def _panels(channels: int, g: ConvGeometry) -> int:
    return -(-channels // (_VECTOR_BYTES // g.itemsize))


def _channels(g: ConvGeometry, back: bool) -> Sizes:
    """Return the channels per group of the source and of the target."""
    channels = g.channels_in // g.groups, g.channels_out // g.groups
    return channels[::-1] if back else channels


def _is_possible(g: ConvGeometry, back: bool) -> bool:
    """Whether channels fill vectors."""
    channels, lanes = _channels(g, back)[1], _VECTOR_BYTES // g.itemsize
    return has_tiles(g) and channels >= _FULL_ENOUGH * _panels(channels, g) * lanes and math.prod(g.kernel) > 1


@lru_cache(1024)
def is_by_cells(g: ConvGeometry, back: bool = False) -> bool:
    """Whether conv, or its adjoint in x, is computed this way: if sums have many terms for each cell of the kernel, and
    channels fill vectors better than windows do."""
    sources, channels = _channels(g, back)
    if not _is_possible(g, back):
        return False
    if not is_flat(g):
        return sources >= _SOME_CHANNELS
    if back and not is_direct(g, back):
        return True
    if sources < _MANY_CHANNELS or (back and _vectors(g, back) == 1):
        return False
    lanes = _VECTOR_BYTES // g.itemsize
    return not is_direct(g, back) or channels / (_panels(channels, g) * lanes) >= fullness(g, back)


@lru_cache(1024)
def is_grad_by_cells(g: ConvGeometry) -> bool:
    """Whether the kernel's gradient is computed this way: if there are three axes, or much padding."""
    few = share_inside(g) < _INSIDE_ENOUGH or not is_flat(g)
    return few and _is_possible(g, False) and _channels(g, False)[0] >= _SOME_CHANNELS


def _vectors(g: ConvGeometry, back: bool) -> int:
    return channel_vectors(_channels(g, back)[1], _VECTOR_BYTES // g.itemsize)


class _CellBlock(NamedTuple):
    """Lines and images of the target processed together, and their elements."""

    lines: int
    images: int
    elements: int


def _block(g: ConvGeometry, back: bool, vectors: int) -> _CellBlock:
    """Return the largest block whose elements, with some vectors each, fit."""
    *outer, width = g.cells if back else g.counts
    all_lines, room = math.prod(outer), max(1, _BLOCK_BYTES // (vectors * _VECTOR_BYTES))
    lines = all_lines if g.images >= IMAGES else -(-all_lines // IMAGES)
    while lines > 1 and lines * width > room:
        lines = -(-lines // 2)
    images = 1
    if lines == all_lines:
        images = max(1, min(-(-g.images // IMAGES), room // (lines * width), -(-_WINDOWS // (lines * width))))
    return _CellBlock(lines, images, lines * images * width)


def _blocks(g: ConvGeometry, back: bool, block: _CellBlock) -> int:
    lines = math.prod((g.cells if back else g.counts)[:-1])
    return -(-g.images // block.images) * -(-lines // block.lines)


def _words(g: ConvGeometry, back: bool, block: _CellBlock, own: int, parts: int) -> Words:
    apart = (1 if back else g.channels_in // g.groups) * math.prod(g.kernel) * g.itemsize
    return kernel_words(
        [
            *(0,) * 4, own, g.images, g.groups, *_channels(g, back), *in_volume(g.cells, 1), *in_volume(g.kernel, 1),
            *in_volume(g.counts, 1), *in_volume(g.stride, 1), *in_volume(g.padding, 0), *in_volume(g.dilation, 1), back,
            block.lines, block.images, block.elements, 0, 0, 0, parts, apart,
        ],
        WORDS,
    )  # fmt: skip


@lru_cache(1024)
def cell_plan(g: ConvGeometry, back: bool = False) -> ConvTiling:
    vectors, channels = _vectors(g, back), _channels(g, back)[1]
    block = _block(g, back, vectors)
    own = rounded_up(16 * (block.elements + ROWS[vectors]) + 64) + block.elements * vectors * _VECTOR_BYTES
    tasks = _blocks(g, back, block) * g.groups * -(-_panels(channels, g) // vectors)
    partial = _flags(g, back) + g.groups * _panels(channels, g) * g.itemsize
    return ConvTiling(own, partial, tasks, _words(g, back, block, own, 0))


def _flags(g: ConvGeometry, back: bool) -> int:
    """Return where flags stand after the panels; the last tile may have more vectors than there are panels."""
    sources, channels = _channels(g, back)
    panels = g.groups * _panels(channels, g) + max(ROWS) - 1
    return panels * (sources * math.prod(g.kernel) + 1) * _VECTOR_BYTES


def cell_steps(
    g: ConvGeometry, source: int, kernel: int, bias: int, target: int, workspace: int, panels: int, back: bool = False
) -> tuple[KernelCall, ...]:
    """Return the steps of conv(kernel, bias, source) at `target`, or of its adjoint in x."""
    plan, vectors = cell_plan(g, back), _vectors(g, back)
    words = plan.words.copy()
    words[:4] = source, panels, target, workspace
    words[31:34] = bias, kernel, _flags(g, back)
    return (
        KernelCall(cell_kernel("pack", g.dtype, vectors), g.groups * _panels(_channels(g, back)[1], g), words),
        KernelCall(cell_kernel("convolve", g.dtype, vectors), plan.tasks, words),
    )


# The kernel's gradient ------------------------------------------------------------------------------------------------


@lru_cache(1024)
def cell_grad_plan(g: ConvGeometry) -> ConvTiling:
    vectors, (sources, channels) = _vectors(g, False), _channels(g, False)
    row = -(-_panels(channels, g) // vectors) * vectors
    block = _block(g, False, row)
    own = rounded_up(16 * (block.elements + sources + 2 * ROWS[vectors]) + 64) + block.elements * row * _VECTOR_BYTES
    parts = g.grad_parts(_blocks(g, False, block))
    sums = parts * g.groups * math.prod(g.kernel) * sources * row * _VECTOR_BYTES
    return ConvTiling(own, sums, parts, _words(g, False, block, own, parts))


def cell_grad_steps(
    g: ConvGeometry, x: int, cotangent: int, out: int, workspace: int, partial: int
) -> tuple[KernelCall, ...]:
    """Return the steps of conv_kernel_grad(x, cotangent) at `out`."""
    plan, vectors, (sources, channels) = cell_grad_plan(g), _vectors(g, False), _channels(g, False)
    words = plan.words.copy()
    words[:4] = x, partial, cotangent, workspace
    words[32] = out
    tasks = g.groups * -(-_panels(channels, g) // vectors) * sources
    return (
        KernelCall(cell_kernel("grad", g.dtype, vectors), plan.tasks, words),
        KernelCall(cell_kernel("collect", g.dtype, vectors), tasks, words),
    )
