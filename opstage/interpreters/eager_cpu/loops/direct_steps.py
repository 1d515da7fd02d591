"""Steps for convolutions without a matrix of windows: which there are, what they need of workspace, and their words."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...native import Step, workers
from .direct_convolution import WORDS, direct_kernel, has_registers
from .geometry import Geometry, Plan, Sizes, rounded_up

_BLOCK_BYTES = 512 << 10  # of the copied lines of a block; beside them panels and the result stay in a cache of 1 MB
_MANY_VECTORS = 12  # of an image; with fewer a block has more than one image
_FULL_ENOUGH = 0.6  # of the lanes have a window, for a tile to beat a product of matrices
_MOST_COPIED = 2.8  # times the cells of an image, padding among them


class _Side(NamedTuple):
    """What a convolution is along its last two axes, whichever way it goes: the words of the same names."""

    source: Sizes
    target: Sizes
    target_step: Sizes
    source_step: Sizes
    before: Sizes
    planes: Sizes
    beyond: Sizes
    counted_from: Sizes


def _two(sizes: Sizes, missing: int) -> Sizes:
    return ((missing,) * 2 + sizes)[-2:]


def _side(g: Geometry, back: bool) -> _Side:
    cells, kernel, counts, stride, dilation = (_two(s, 1) for s in (g.cells, g.kernel, g.counts, g.stride, g.dilation))
    padding = _two(g.padding, 0)
    if not back:
        planes = tuple(min(k, s // math.gcd(s, d)) for k, s, d in zip(kernel, stride, dilation))
        beyond = tuple((k - 1) * d // s for k, s, d in zip(kernel, stride, dilation))
        return _Side(cells, counts, (1, 1), stride, padding, planes, beyond, (0, 0))
    # Cell a·s + r of the result has the windows a + (r + p - k·d)/s, for the k for which that is a whole number.
    before = tuple(max(0, -((p - (k - 1) * d) // s)) for k, s, p, d in zip(kernel, stride, padding, dilation))
    counted_from = tuple(p + b * s for p, b, s in zip(padding, before, stride))
    beyond = tuple((s - 1 + c) // s for s, c in zip(stride, counted_from))
    return _Side(counts, cells, stride, (1, 1), before, (1, 1), beyond, counted_from)


@lru_cache(1024)
def _reached(g: Geometry) -> tuple[Geometry, Sizes]:
    """A conv with the cells of the kernel alone that are more than padding to some window, and the first of them."""
    kernel, padding, first = list(g.kernel), list(g.padding), [0] * len(g.kernel)
    for axis in range(max(0, len(kernel) - 2), len(kernel)):
        n, k, count = g.cells[axis], kernel[axis], g.counts[axis]
        s, p, d = g.stride[axis], g.padding[axis], g.dilation[axis]
        starts = [j for j in range(k) if any(0 <= o * s - p + j * d < n for o in range(count))]
        if starts:
            lo = min(starts[0], p // d)
            kernel[axis], padding[axis], first[axis] = starts[-1] + 1 - lo, p - lo * d, lo
    return g._replace(kernel=tuple(kernel), padding=tuple(padding)), _two(tuple(first), 0)


def _channels(g: Geometry, back: bool) -> Sizes:
    """Of a group: those of the source, and of the target."""
    channels = g.channels_in // g.groups, g.channels_out // g.groups
    return channels[::-1] if back else channels


def _rows(g: Geometry, back: bool) -> int:
    """The output channels of a tile: as few as need no more tiles than fewer would."""
    channels = _channels(g, back)[1]
    if channels == 1:
        return 1
    return 4 if channels <= 4 or (channels < 32 and 0 < channels % 8 <= 4) else 8


class _Block(NamedTuple):
    """Lines and images that are taken together, and the vectors of their windows."""

    lines: int
    images: int
    pitch: int
    flat: bool
    vectors: int


def _vectors(side: _Side, lines: int, pitch: int, lanes: int) -> tuple[bool, int]:
    """Whether vectors run on over the ends of lines, and how many they are."""
    width = -(-side.target[1] // side.target_step[1])
    in_lines, over_ends = lines * -(-width // lanes), -(-((lines - 1) * pitch + width) // lanes)
    flat = max(side.target_step) == 1 and over_ends < in_lines
    return flat, over_ends if flat else in_lines


@lru_cache(1024)
def _block(g: Geometry, back: bool) -> _Block:
    """Of a geometry that is `_reached`."""
    side, lanes = _side(g, back), 64 // g.itemsize
    all_lines, width = (-(-n // s) for n, s in zip(side.target, side.target_step))
    pitch = width + side.beyond[1]
    line_bytes = _channels(g, back)[0] * math.prod(side.planes) * pitch * g.itemsize
    # Lines are read by several windows, so a block that has not many more than those is mostly copies of them.
    lines = max(1, 2 * side.beyond[0], _BLOCK_BYTES // line_bytes - side.beyond[0])
    lines = min(lines, all_lines)
    if g.images < workers():
        lines = min(lines, -(-all_lines // workers()))
    flat, vectors = _vectors(side, lines, pitch, lanes)
    images = 1
    if lines == all_lines and vectors < _MANY_VECTORS:
        most = min(-(-g.images // workers()), _BLOCK_BYTES // (line_bytes * (lines + side.beyond[0])))
        images = max(1, min(most, -(-_MANY_VECTORS // vectors)))
    return _Block(lines, images, pitch, flat, vectors * images)


@lru_cache(1024)
def is_direct(g: Geometry, back: bool = False) -> bool:
    """Whether conv, or its adjoint in x, is computed so: where most lanes of vectors have a window."""
    channels = _channels(g, back)[1]
    is_flat = len(g.cells) < 3 or (g.cells[0] == g.kernel[0] == g.counts[0] == 1 and g.padding[0] == 0)
    if not has_registers() or not is_flat or 0 in (g.images, channels, *g.cells, *g.counts):
        return False
    if channels == 1:  # a product of a vector and a matrix
        return True
    side, lanes = _side(_reached(g)[0], back), 64 // g.itemsize
    lines, width = (-(-n // s) for n, s in zip(side.target, side.target_step))
    pitch = width + side.beyond[1]
    vectors = _vectors(side, lines, pitch, lanes)[1]
    copied = math.prod(side.planes) * (lines + side.beyond[0]) * pitch
    return (
        math.prod(g.kernel) > 1
        and lines * width >= _FULL_ENOUGH * vectors * lanes
        and copied <= _MOST_COPIED * math.prod(side.source)
    )


@lru_cache(1024)
def direct_plan(g: Geometry, back: bool = False) -> Plan:
    (reached, first), whole = _reached(g), _two(g.kernel, 1)
    side, block, rows = _side(reached, back), _block(reached, back), _rows(g, back)
    channels_in, channels_out = _channels(g, back)
    kernel, lanes_bytes = _two(reached.kernel, 1), 64
    cells, copied = math.prod(kernel), block.lines + side.beyond[0]
    channel = math.prod(side.planes) * copied * block.pitch * g.itemsize
    told = 8 * math.prod(side.target_step) * (2 + 3 * block.vectors + 2 * cells)
    own = rounded_up(rounded_up(told) + block.images * channels_in * channel + 2 * lanes_bytes)
    panels = direct_panels(g, back)
    all_lines = -(-side.target[0] // side.target_step[0])
    tasks = -(-g.images // block.images) * -(-all_lines // block.lines)
    words = np.array(
        [
            *(0,) * 4, own, g.images, g.groups, channels_in, channels_out, *side.source, *kernel, *side.target,
            *side.target_step, *side.source_step, *side.before, *_two(g.dilation, 1), block.pitch, copied,
            *side.planes, channels_in * channel, channel, block.flat, block.vectors, 0, back, *side.counted_from,
            0, side.beyond[0], block.lines, block.images, *whole, *first,
        ],
        np.uint64,
    )  # fmt: skip
    assert len(words) == WORDS
    words.flags.writeable = False
    blocks = g.groups * -(-channels_out // rows)
    return Plan(own, panels + blocks * g.itemsize, tasks, words)


def direct_panels(g: Geometry, back: bool) -> int:
    """Bytes of the kernel that is laid out; behind them stand the notes, one for each of `direct_notes`."""
    rows = _rows(g, back)
    channels_in, _ = _channels(g, back)
    return direct_notes(g, back) * (channels_in * math.prod(_reached(g)[0].kernel) + 1) * rows * g.itemsize


def direct_notes(g: Geometry, back: bool) -> int:
    return g.groups * -(-_channels(g, back)[1] // _rows(g, back))


def direct_steps(
    g: Geometry, source: int, kernel: int, bias: int, target: int, workspace: int, panels: int, back: bool = False
) -> tuple[Step, ...]:
    """conv(kernel, bias, source) at `target`, or its adjoint in x, of an operand `source`."""
    plan, rows = direct_plan(g, back), _rows(g, back)
    words = plan.words.copy()
    words[:4] = source, panels, target, workspace
    words[31], words[35] = bias, kernel
    return (
        Step(direct_kernel("lay_out", g.dtype, rows), direct_notes(g, back), words),
        Step(direct_kernel("direct", g.dtype, rows), plan.tasks, words),
    )
