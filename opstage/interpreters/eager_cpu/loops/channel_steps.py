"""Steps for convolutions in vectors of channels: their workspace and arguments."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ....compiler.native import KernelCall
from .channel_convolution import ROWS, WORDS, channel_kernel
from .geometry import IMAGES, VECTOR_BYTES, ConvGeometry, ConvTiling, in_volume, kernel_words, round_up

_BLOCK_BYTES = 384 << 10  # of lines and sums of a block; weights also fit in a cache of 1 MB
_CELL_BLOCK_BYTES = 256 << 10  # of sums or cotangents where cells list their elements
_PANEL_BYTES = 128 << 10  # of weights of a pass, which all tiles of a block read
_WINDOWS, _CELL_WINDOWS = 96, 128  # of a block, so that few of its tiles are repetitions


def _panels(channels: int, g: ConvGeometry) -> int:
    return -(-channels // g.lanes)


def tile_vectors(g: ConvGeometry, back: bool) -> int:
    """Return the vectors of channels of a tile: as many as leave the fewest without channels."""
    panels = _panels(g.channels(back)[1], g)
    return min(ROWS, key=lambda many: (-(-panels // many) * many, -many))


# The division ---------------------------------------------------------------------------------------------------------


class _Division(NamedTuple):
    """Lines and images of the target processed together, and their elements, in whole tiles; the lines of a copy, the
    cells of a line that is read, and the bytes of the copy."""

    lines: int
    images: int
    elements: int
    copied_lines: int
    pitch: int
    copy_bytes: int


def _division(g: ConvGeometry, back: bool, by_cells: bool, beside: int) -> _Division:
    """Return the largest block that fits, with `beside` bytes per element."""
    *outer, width = g.cells if back else g.counts
    all_lines, rows = math.prod(outer), ROWS[tile_vectors(g, back)]
    cells, kernel, stride, padding, dilation = (
        in_volume(sizes, i)[1:]
        for sizes, i in ((g.cells, 1), (g.kernel, 1), (g.stride, 1), (g.padding, 0), (g.dilation, 1))
    )
    copies = not by_cells and any(padding)
    pitch = g.counts[-1] if back else cells[1] + 2 * padding[1] * copies
    room, windows = (_CELL_BLOCK_BYTES, _CELL_WINDOWS) if by_cells else (_BLOCK_BYTES, _WINDOWS)

    def reached(lines: int) -> int:
        return (lines - 1) * stride[0] + 1 + (kernel[0] - 1) * dilation[0]

    def bytes_of(lines: int) -> int:
        read = 0 if by_cells else reached(lines) * g.channels(back)[0] * pitch * g.itemsize
        return read + lines * width * beside

    lines = all_lines if g.images >= IMAGES else -(-all_lines // IMAGES)
    while lines > 1 and bytes_of(lines) > room and (by_cells or lines * width > rows):
        lines = -(-lines // 2)
    images = 1
    if lines == all_lines:
        images = max(1, min(-(-g.images // IMAGES), room // bytes_of(lines), -(-windows // (lines * width))))
    elements = -(-images * lines * width // rows) * rows
    copy_bytes = images * g.channels(back)[0] * reached(lines) * pitch * g.itemsize + 2 * VECTOR_BYTES
    return _Division(lines, images, elements, reached(lines), pitch, copy_bytes if copies else 0)


def _plan(
    g: ConvGeometry, back: bool, by_cells: bool, d: _Division, own: int, partial: int, parts: int, units: int
) -> ConvTiling:
    """Return the plan; `parts` of the gradient's sum, or with 0 the convolution of `units` tiles' channels a task."""
    sources, channels = g.channels(back)
    axes = ((g.cells, 1), (g.kernel, 1), (g.counts, 1), (g.stride, 1), (g.padding, 0), (g.dilation, 1))
    cells, kernel, counts, stride, padding, dilation = (in_volume(sizes, i) for sizes, i in axes)
    read_from, in_place = math.prod(counts if back else cells), d.copy_bytes == 0
    channel = (read_from if in_place else d.copied_lines * d.pitch) * g.itemsize
    pass_bytes = tile_vectors(g, back) * VECTOR_BYTES * math.prod(kernel)
    apart = (1 if back else sources) * math.prod(kernel) * g.itemsize
    words = kernel_words(
        [
            *(0,) * 4, own, g.images, g.groups, sources, channels, *cells[1:], *kernel[1:], *counts[1:],
            cells[0], kernel[0], 1, 1, *padding[1:], *dilation[1:], d.pitch, d.copied_lines, 1, 1,
            (g.groups if in_place else 1) * sources * channel, channel, apart, d.elements, 0, 0, 0, back, parts,
            (kernel[1] - 1) * dilation[1], d.lines, d.images, stride[0], padding[0], dilation[0], counts[0], 0, 0,
            *stride[1:], in_place, max(1, _PANEL_BYTES // pass_bytes), _flags(g, back), units,
        ],
        WORDS,
    )  # fmt: skip
    return ConvTiling(own, partial, parts or _blocks(g, back, d) * _units(g, back) // units, words)


def _blocks(g: ConvGeometry, back: bool, d: _Division) -> int:
    lines = math.prod((g.cells if back else g.counts)[:-1])
    return -(-g.images // d.images) * -(-lines // d.lines)


def _units(g: ConvGeometry, back: bool) -> int:
    """Return the tiles' channels of all groups."""
    return g.groups * -(-_panels(g.channels(back)[1], g) // tile_vectors(g, back))


def _flags(g: ConvGeometry, back: bool) -> int:
    """Return where flags stand after the panels; the last tile may have more vectors than there are panels."""
    sources, channels = g.channels(back)
    panels = g.groups * _panels(channels, g) + max(ROWS) - 1
    return panels * (sources * math.prod(g.kernel) + 1) * VECTOR_BYTES


@lru_cache(1024)
def channel_plan(g: ConvGeometry, back: bool, by_cells: bool) -> ConvTiling:
    """Plan conv, or its adjoint in x; `by_cells` if each cell of the kernel lists its elements."""
    row = tile_vectors(g, back) * VECTOR_BYTES
    d = _division(g, back, by_cells, row)
    own = round_up(16 * d.elements + 8 * math.prod(g.kernel) + 64) + d.elements * row
    partial = _flags(g, back) + g.groups * _panels(g.channels(back)[1], g) * g.itemsize
    units = 1 if by_cells else _units(g, back)
    return _plan(g, back, by_cells, d, round_up(own + d.copy_bytes), partial, 0, units)


def channel_steps(
    g: ConvGeometry,
    back: bool,
    by_cells: bool,
    source: int,
    kernel: int,
    bias: int,
    target: int,
    workspace: int,
    panels: int,
) -> tuple[KernelCall, ...]:
    """Return the steps of conv(kernel, bias, source) at `target`, or of its adjoint in x."""
    plan, vectors = channel_plan(g, back, by_cells), tile_vectors(g, back)
    words = plan.words.copy()
    words[:4] = source, panels, target, workspace
    words[31], words[33] = bias, kernel
    return (
        KernelCall(
            channel_kernel("pack", g.dtype, vectors, by_cells), g.groups * _panels(g.channels(back)[1], g), words
        ),
        KernelCall(channel_kernel("convolve", g.dtype, vectors, by_cells), plan.tasks, words),
    )


@lru_cache(1024)
def channel_grad_plan(g: ConvGeometry, by_cells: bool) -> ConvTiling:
    depth, sources = g.depth, g.channels(False)[0]
    row = _units(g, False) // g.groups * tile_vectors(g, False) * VECTOR_BYTES
    d = _division(g, False, by_cells, row)
    listed = sources if by_cells else depth
    own = round_up(16 * (d.elements + listed + max(ROWS.values())) + 64) + d.elements * row
    parts = g.grad_parts(_blocks(g, False, d))
    return _plan(g, False, by_cells, d, round_up(own + d.copy_bytes), parts * g.groups * depth * row, parts, 1)


def channel_grad_steps(
    g: ConvGeometry, by_cells: bool, x: int, cotangent: int, out: int, workspace: int, partial: int
) -> tuple[KernelCall, ...]:
    """Return the steps of conv_kernel_grad(x, cotangent) at `out`."""
    plan, vectors = channel_grad_plan(g, by_cells), tile_vectors(g, False)
    words = plan.words.copy()
    words[:4] = x, partial, cotangent, workspace
    words[33] = out
    planes, run = (g.channels(False)[0], math.prod(g.kernel)) if by_cells else (1, g.depth)
    return (
        KernelCall(channel_kernel("grad", g.dtype, vectors, by_cells), plan.tasks, words),
        KernelCall(
            channel_kernel("collect", g.dtype, vectors, by_cells),
            _units(g, False) * planes * -(-run // g.lanes),
            words,
        ),
    )
