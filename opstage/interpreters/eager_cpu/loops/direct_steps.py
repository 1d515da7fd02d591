"""Steps for convolutions in vectors of windows: their workspace and arguments."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ....compiler.native import KernelCall
from .direct_convolution import COLUMNS, SCRATCH, WORDS, direct_grad_kernel, direct_kernel
from .geometry import IMAGES, VECTOR_BYTES, ConvGeometry, ConvTiling, Sizes, Words, in_plane, kernel_words, round_up

_BLOCK_BYTES = 512 << 10  # of the copied lines of a block; panels and the result also fit in a cache of 1 MB
_GRAD_BYTES = 640 << 10  # of data that the kernel's gradient reads repeatedly; more images mean fewer final sums
_GRAD_CHANNELS = 32  # of the cotangent, packed together
_GRAD_CELLS = 24  # of the kernel, in a few channels: enough to waste few of a tile's
_MANY_VECTORS = 12  # per image; with fewer, a block has more than one image
_CHANNELS_A_COPY = 8  # of the result, for each copy of a line
_FEW_VECTORS = 6  # per block, so that few of their lanes are unused


class PlaneGeometry(NamedTuple):
    """The geometry of a convolution or its adjoint along the last two axes: the kernel arguments of the same names."""

    source: Sizes
    target: Sizes
    target_step: Sizes
    source_step: Sizes
    before: Sizes
    planes: Sizes
    beyond: Sizes
    counted_from: Sizes
    own: tuple[bool, ...]


def plane_geometry(g: ConvGeometry, back: bool) -> PlaneGeometry:
    """Return the geometry of a convolution, or of its adjoint, along the last two axes."""
    cells, kernel, counts, stride, dilation = (
        in_plane(s, 1) for s in (g.cells, g.kernel, g.counts, g.stride, g.dilation)
    )
    padding = in_plane(g.padding, 0)
    reach = [(k - 1) * d for k, d in zip(kernel, dilation)]
    sources, targets = (counts, cells) if back else (cells, counts)
    # If a line would be mostly padding, the cells that windows read for each kernel cell are stored separately.
    worth = g.channels(back)[1] >= _CHANNELS_A_COPY
    own = tuple(
        worth and d > 2 and n <= 2 * (r // s) and (s == 1 or not back)
        for n, r, s, d in zip(targets, reach, stride, dilation)
    )
    once = (1, 1)
    if not back:
        planes = tuple(k if o else min(k, s // math.gcd(s, d)) for k, s, d, o in zip(kernel, stride, dilation, own))
        beyond = tuple(0 if o else r // s for r, s, o in zip(reach, stride, own))
        return PlaneGeometry(sources, targets, once, stride, padding, planes, beyond, (0, 0), own)
    # Cell a·s + r of the result has the windows a + (r + p - k·d)/s, for the k for which that is an integer.
    before = tuple(-p if o else max(0, -((p - r) // s)) for r, s, p, o in zip(reach, stride, padding, own))
    counted_from = tuple(0 if o else p + b * s for p, b, s, o in zip(padding, before, stride, own))
    beyond = tuple(0 if o else (s - 1 + c) // s for s, c, o in zip(stride, counted_from, own))
    planes = tuple(k if o else 1 for k, o in zip(kernel, own))
    return PlaneGeometry(sources, targets, stride, once, before, planes, beyond, counted_from, own)


@lru_cache(1024)
def _reached(g: ConvGeometry) -> tuple[ConvGeometry, Sizes]:
    """Return the conv without kernel cells that are padding for all windows, and the first of the remaining cells."""
    kernel, padding, first = list(g.kernel), list(g.padding), [0] * len(g.kernel)
    for axis in range(max(0, len(kernel) - 2), len(kernel)):
        n, k, count = g.cells[axis], kernel[axis], g.counts[axis]
        s, p, d = g.stride[axis], g.padding[axis], g.dilation[axis]
        starts = [j for j in range(k) if any(0 <= o * s - p + j * d < n for o in range(count))]
        if starts:
            lo = min(starts[0], p // d)
            kernel[axis], padding[axis], first[axis] = starts[-1] + 1 - lo, p - lo * d, lo
    return g._replace(kernel=tuple(kernel), padding=tuple(padding)), in_plane(tuple(first), 0)


def _rows(g: ConvGeometry, back: bool) -> int:
    """Return the output channels of a tile: the least that do not need more tiles."""
    channels = g.channels(back)[1]
    if channels == 1:
        return 1
    return 4 if channels <= 4 or (channels < 32 and 0 < channels % 8 <= 4) else 8


class _Tile(NamedTuple):
    """Lines and images processed together, and the vectors of their windows."""

    lines: int
    images: int
    pitch: int
    flat: bool
    vectors: int


def _vectors(side: PlaneGeometry, lines: int, pitch: int, lanes: int) -> tuple[bool, int]:
    """Return whether vectors extend over line ends, and their number."""
    width = -(-side.target[1] // side.target_step[1])
    in_lines, over_ends = lines * -(-width // lanes), -(-((lines - 1) * pitch + width) // lanes)
    flat = max(side.target_step) == 1 and over_ends < in_lines
    return flat, over_ends if flat else in_lines


@lru_cache(1024)
def _block(g: ConvGeometry, back: bool) -> _Tile:
    """Return the block of a geometry after `_reached`."""
    side, lanes = plane_geometry(g, back), g.lanes
    all_lines, width = (-(-n // s) for n, s in zip(side.target, side.target_step))
    pitch = width + side.beyond[1]
    line_bytes = g.channels(back)[0] * math.prod(side.planes) * pitch * g.itemsize
    # Lines are read by several windows, so a block with few lines consists mostly of copies.
    lines = max(2 * side.beyond[0], -(-_FEW_VECTORS * lanes // width), _BLOCK_BYTES // line_bytes - side.beyond[0])
    lines = min(lines, all_lines)
    if g.images < IMAGES:
        lines = min(lines, -(-all_lines // IMAGES))
    flat, vectors = _vectors(side, lines, pitch, lanes)
    images = 1
    if lines == all_lines and vectors < _MANY_VECTORS:
        most = min(-(-g.images // IMAGES), _BLOCK_BYTES // (line_bytes * (lines + side.beyond[0])))
        images = max(1, min(most, -(-_MANY_VECTORS // vectors)))
    return _Tile(lines, images, pitch, flat, vectors * images)


def copied_share(g: ConvGeometry, back: bool) -> float:
    """Return how many times the copy of an image has its cells, with padding."""
    side = plane_geometry(_reached(g)[0], back)
    lines, width = (-(-n // s) for n, s in zip(side.target, side.target_step))
    copied = math.prod(side.planes) * (lines + side.beyond[0]) * (width + side.beyond[1])
    return copied / math.prod(side.source)


def window_share(g: ConvGeometry, back: bool) -> float:
    """Return the fraction of lanes that have a window, of all vectors of windows."""
    side = plane_geometry(_reached(g)[0], back)
    lines, width = (-(-n // s) for n, s in zip(side.target, side.target_step))
    return lines * width / (_vectors(side, lines, width + side.beyond[1], g.lanes)[1] * g.lanes)


def reaches_all_cells(g: ConvGeometry) -> bool:
    """Return whether no cell of the kernel is padding for all windows."""
    return _reached(g)[0].kernel == g.kernel


@lru_cache(1024)
def direct_plan(g: ConvGeometry, back: bool = False) -> ConvTiling:
    reached, rows = _reached(g)[0], _rows(g, back)
    side, block = plane_geometry(reached, back), _block(reached, back)
    channels_in, channels_out = g.channels(back)
    told = 8 * math.prod(side.target_step) * (3 + 3 * block.vectors + 2 * math.prod(reached.kernel))
    own = round_up(told) + block.images * channels_in * _channel_bytes(reached, side, block)
    own = round_up(own + 2 * VECTOR_BYTES)
    panels = direct_panels(g, back)
    all_lines = -(-side.target[0] // side.target_step[0])
    tasks = -(-g.images // block.images) * -(-all_lines // block.lines)
    words = _words(g, back, block, own)
    blocks = g.groups * -(-channels_out // rows)
    return ConvTiling(own, panels + blocks * g.itemsize, tasks, words)


def _channel_bytes(g: ConvGeometry, side: PlaneGeometry, block: _Tile) -> int:
    """Return the bytes of the copy of a channel."""
    return math.prod(side.planes) * (block.lines + side.beyond[0]) * block.pitch * g.itemsize


def _words(g: ConvGeometry, back: bool, block: _Tile, own: int) -> Words:
    reached, first = _reached(g)
    side, channel = plane_geometry(reached, back), _channel_bytes(reached, plane_geometry(reached, back), block)
    channels_in, channels_out = g.channels(back)
    return kernel_words(
        [
            *(0,) * 4, own, g.images, g.groups, channels_in, channels_out, *side.source, *in_plane(reached.kernel, 1),
            *side.target, *side.target_step, *side.source_step, *side.before, *in_plane(g.dilation, 1), block.pitch,
            block.lines + side.beyond[0], *side.planes, channels_in * channel, channel, block.flat, block.vectors, 0,
            back, *side.counted_from, 0, side.beyond[0], block.lines, block.images, *in_plane(g.kernel, 1), *first,
            *side.own,
        ],
        WORDS,
    )  # fmt: skip


def direct_panels(g: ConvGeometry, back: bool) -> int:
    """Return the bytes of the packed kernel; after it come the flags, one for each of `direct_flags`."""
    rows = _rows(g, back)
    channels_in, _ = g.channels(back)
    return direct_flags(g, back) * (channels_in * math.prod(_reached(g)[0].kernel) + 1) * rows * g.itemsize


def direct_flags(g: ConvGeometry, back: bool) -> int:
    return g.groups * -(-g.channels(back)[1] // _rows(g, back))


def direct_steps(
    g: ConvGeometry, source: int, kernel: int, bias: int, target: int, workspace: int, panels: int, back: bool = False
) -> tuple[KernelCall, ...]:
    """Return the steps of conv(kernel, bias, source) at `target`, or of its adjoint in x for an operand `source`."""
    plan, rows = direct_plan(g, back), _rows(g, back)
    words = plan.words.copy()
    words[:4] = source, panels, target, workspace
    words[31], words[35] = bias, kernel
    return (
        KernelCall(direct_kernel("pack", g.dtype, rows), direct_flags(g, back), words),
        KernelCall(direct_kernel("direct", g.dtype, rows), plan.tasks, words),
    )


# The kernel's gradient ------------------------------------------------------------------------------------------------


def _grad_rows(g: ConvGeometry) -> int:
    return 1 if g.channels_out == g.groups else 4


class _GradBlock(NamedTuple):
    """A tile of the kernel's gradient: windows, channels of x, and channels of the cotangent."""

    windows: _Tile
    channels_in: int
    channels_out: int


@lru_cache(1024)
def _grad_block(g: ConvGeometry) -> _GradBlock:
    """Return the block of a geometry after `_reached`."""
    side, lanes = plane_geometry(g, False), g.lanes
    all_lines, width = side.target
    pitch, rows = width + side.beyond[1], _grad_rows(g)
    channels_in, channels_out = g.channels(False)
    channels_in = min(channels_in, -(-_GRAD_CELLS // math.prod(g.kernel)))
    channels_out = min(rows * -(-channels_out // rows), _GRAD_CHANNELS)
    line_bytes = channels_in * math.prod(side.planes) * pitch * g.itemsize

    def bytes_of(lines: int) -> int:
        vectors = _vectors(side, lines, pitch, lanes)[1]
        return (lines + side.beyond[0]) * line_bytes + vectors * VECTOR_BYTES * channels_out

    lines = all_lines if g.images >= IMAGES else -(-all_lines // IMAGES)
    while lines > max(1, 2 * side.beyond[0]) and bytes_of(lines) > _GRAD_BYTES:
        lines = -(-lines // 2)
    flat, vectors = _vectors(side, lines, pitch, lanes)
    images = 1
    if lines == all_lines:
        images = max(1, min(-(-g.images // IMAGES), _GRAD_BYTES // bytes_of(lines)))
    return _GradBlock(_Tile(lines, images, pitch, flat, vectors * images), channels_in, channels_out)


@lru_cache(1024)
def direct_grad_plan(g: ConvGeometry) -> ConvTiling:
    reached, rows = _reached(g)[0], _grad_rows(g)
    side, (block, channels_in, channels_out) = plane_geometry(reached, False), _grad_block(reached)
    cells, channel = math.prod(reached.kernel), _channel_bytes(reached, side, block)
    told = SCRATCH + 24 * block.vectors + 16 * cells + 16 * (channels_in * cells + COLUMNS[rows])
    copied = block.images * channels_in * channel
    laid = block.vectors * VECTOR_BYTES * channels_out
    own = round_up(told) + round_up(copied + 2 * VECTOR_BYTES) + round_up(laid)
    blocks = -(-g.images // block.images) * -(-side.target[0] // block.lines)
    parts = g.grad_parts(blocks)
    words = _words(g, False, block, own).copy()
    words[27], words[33], words[34], words[35] = channels_in * channel, channels_in, channels_out, parts
    words.flags.writeable = False
    return ConvTiling(own, (parts - 1) * g.channels_out * g.depth * g.itemsize, parts, words)


def direct_grad_step(g: ConvGeometry, x: int, cotangent: int, out: int, workspace: int, partial: int) -> KernelCall:
    """Return the step of conv_kernel_grad(x, cotangent) at `out`, with the sums of the plan's other parts at
    `partial`."""
    plan = direct_grad_plan(g)
    words = plan.words.copy()
    words[:4] = x, partial, cotangent, workspace
    words[31] = out
    return KernelCall(direct_grad_kernel(g.dtype, _grad_rows(g)), plan.tasks, words)
