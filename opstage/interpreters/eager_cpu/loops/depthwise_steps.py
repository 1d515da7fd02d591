"""Steps for depthwise convolutions in vectors of channels: their choice, workspace and arguments."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ....compiler.native import KernelCall
from .depthwise_convolution import GRAD_TILE, WORDS, depthwise_kernel
from .direct_steps import is_flat
from .geometry import IMAGES, ConvGeometry, ConvTiling, Sizes, Words, in_plane, kernel_words, rounded_up

_VECTOR_BYTES = 64
_FULL_ENOUGH = 0.75  # the fraction of lanes with a channel
_BLOCK_BYTES = 256 << 10  # of the copy and the sums of a block, in a cache of 1 MB


@lru_cache(1024)
def is_depthwise(g: ConvGeometry) -> bool:
    """Whether conv and its derivatives are computed this way: each channel by itself, in vectors that are full."""
    lanes = _VECTOR_BYTES // g.itemsize
    alone = g.groups == g.channels_in == g.channels_out
    return alone and is_flat(g) and g.groups >= _FULL_ENOUGH * _panels(g) * lanes


def _panels(g: ConvGeometry) -> int:
    return -(-g.groups // (_VECTOR_BYTES // g.itemsize))


class _Edges(NamedTuple):
    """The geometry of a convolution or its adjoint along the last two axes: the kernel arguments of the same names."""

    source: Sizes
    target: Sizes
    target_step: Sizes
    source_step: Sizes
    before: Sizes
    counted_from: Sizes
    beyond: Sizes
    """Cells of the copy that windows reach beyond the first."""


def _side(g: ConvGeometry, back: bool) -> _Edges:
    cells, kernel, counts, stride, dilation = (
        in_plane(s, 1) for s in (g.cells, g.kernel, g.counts, g.stride, g.dilation)
    )
    padding, none, once = in_plane(g.padding, 0), (0, 0), (1, 1)
    reach = tuple((k - 1) * d for k, d in zip(kernel, dilation))
    if not back:
        return _Edges(cells, counts, once, stride, padding, none, reach)
    # Cell a·s + r of the result has the windows a + (r + p - k·d)/s, for the k for which that is an integer.
    before = tuple(max(0, -((p - r) // s)) for r, s, p in zip(reach, stride, padding))
    counted_from = tuple(p + b * s for p, b, s in zip(padding, before, stride))
    beyond = tuple((s - 1 + c) // s for s, c in zip(stride, counted_from))
    return _Edges(counts, cells, stride, once, before, counted_from, beyond)


class _LineBlock(NamedTuple):
    """Lines of a block and of the copy, cells of a line of the copy, and bytes of a worker."""

    lines: int
    copied: int
    pitch: int
    own: int


def _block(g: ConvGeometry, side: _Edges) -> _LineBlock:
    """Return the largest block that fits in the cache."""
    remainders, cells = math.prod(side.target_step), -(-math.prod(g.kernel) // GRAD_TILE) * GRAD_TILE
    width = -(-side.target[1] // side.target_step[1])
    pitch = max((width - 1) * side.source_step[1] + side.beyond[1] + 1, side.before[1] + side.source[1])

    def of(lines: int) -> _LineBlock:
        steps = -(-lines // side.target_step[0])
        copied, windows = (steps - 1) * side.source_step[0] + side.beyond[0] + 1, steps * width + _VECTOR_BYTES
        places = copied * side.source[1] + remainders * 2 * (1 + windows + cells) + 2 * _VECTOR_BYTES
        vectors = copied * pitch + windows * remainders + cells + 1
        return _LineBlock(lines, copied, pitch, rounded_up(8 * places) + vectors * _VECTOR_BYTES)

    lines = side.target[0] if g.images * _panels(g) >= IMAGES else -(-side.target[0] // IMAGES)
    while lines > 1 and of(lines).own > _BLOCK_BYTES:
        lines = -(-lines // 2)
    return of(-(-lines // side.target_step[0]) * side.target_step[0])


def _words(g: ConvGeometry, side: _Edges, block: _LineBlock, parts: int) -> Words:
    return kernel_words(
        [
            *(0,) * 4, block.own, g.images, g.groups, *side.source, *in_plane(g.kernel, 1), *side.target,
            *side.target_step, *side.source_step, *side.before, *in_plane(g.dilation, 1), block.pitch, block.copied,
            block.lines, 0, *side.counted_from, 0, 0, parts,
        ],
        WORDS,
    )  # fmt: skip


@lru_cache(1024)
def depthwise_plan(g: ConvGeometry, back: bool = False) -> ConvTiling:
    """Plan conv or its adjoint in x; that has a flag for each vector of channels in `partial`."""
    side = _side(g, back)
    block = _block(g, side)
    tasks = -(-side.target[0] // block.lines) * _panels(g) * g.images
    return ConvTiling(block.own, depthwise_notes(g) * g.itemsize if back else 0, tasks, _words(g, side, block, 0))


def depthwise_notes(g: ConvGeometry) -> int:
    """Return the number of flags of the adjoint, 1 if a weight is not finite: its padding consists of zeros."""
    return _panels(g)


def depthwise_step(
    g: ConvGeometry, source: int, kernel: int, bias: int, target: int, workspace: int, notes: int = 0
) -> KernelCall:
    """Return the step of conv(kernel, bias, source) at `target`; with `notes` that of its adjoint in x."""
    plan = depthwise_plan(g, notes != 0)
    words = plan.words.copy()
    words[:4] = source, kernel, target, workspace
    words[24], words[27] = bias, notes
    return KernelCall(depthwise_kernel("convolve", g.dtype), plan.tasks, words)


@lru_cache(1024)
def depthwise_grad_plan(g: ConvGeometry) -> ConvTiling:
    side = _side(g, False)
    block = _block(g, side)
    parts = g.grad_parts(-(-side.target[0] // block.lines) * g.images)
    sums = _panels(g) * -(-math.prod(g.kernel) // GRAD_TILE) * GRAD_TILE * _VECTOR_BYTES
    return ConvTiling(block.own, parts * sums, parts, _words(g, side, block, parts))


def depthwise_grad_steps(
    g: ConvGeometry, x: int, cotangent: int, out: int, workspace: int, partial: int
) -> tuple[KernelCall, ...]:
    """Return the steps of conv_kernel_grad(x, cotangent) at `out`."""
    plan = depthwise_grad_plan(g)
    words = plan.words.copy()
    words[:4] = x, out, cotangent, workspace
    words[28] = partial
    return (
        KernelCall(depthwise_kernel("grad", g.dtype), plan.tasks, words),
        KernelCall(depthwise_kernel("collect", g.dtype), _panels(g), words),
    )
