"""Depthwise convolution in vectors of channels: a copy interleaves the planes of adjacent channels.

The lanes of a vector are channels with different weights, so none is idle at the end of a line, whatever the stride
and however small the map. Lines are transposed on the way in, with padding around them, and results on the way
out. The sums of some windows, or of some cells of the kernel for its gradient, stay in registers. The adjoint is one
such convolution for each remainder of its result's cells modulo the stride, as in `direct_convolution`.
"""

from __future__ import annotations

import inspect
import math
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ....compiler.native import KernelCall
from ....compiler.native.access import vector_functions
from ....compiler.native.compiler import Kernel, compile_kernel
from .direct_steps import PlaneGeometry, plane_geometry
from .geometry import IMAGES, VECTOR_BYTES, ConvGeometry, ConvTiling, Words, in_plane, kernel_words, round_up

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


TILE = 8
"""The windows of a tile, as many vectors as hide the time of a product."""
GRAD_TILE = 9
"""The cells of the kernel of a tile of its gradient."""
WORDS = 30
"""The words of every kernel here. The *source* is what is copied, conv's x or its adjoint's operand, the *target* the
result, or conv's cotangent for its kernel's gradient.

0 source, 1 kernel or its gradient, 2 target, 3 workspace, 4 bytes of it that a worker has, 5 images, 6 channels, 7 … 8
the source's cells, 9 … 10 the kernel's, 11 … 12 the target's, 13 … 14 the stride of the target, 15 … 16 of the source,
17 … 18 padding before the source, 19 … 20 dilation; 21 cells of a line of the copy, 22 its lines, 23 lines of the
target a block, 24 bias or 0, 25 … 26 what the adjoint's cells are counted from, 27 its flags, one for each vector of
channels, 1 if some weight is not finite, or 0; 28 the sums of the gradient, 29 their parts
"""


@cache
def depthwise_kernel(name: str, dtype: str) -> Kernel:
    """Return `convolve`, `grad` or `collect`, for float32 or float64."""
    factory = {"convolve": _convolve, "grad": _grad, "collect": _collect}[name]
    return compile_kernel(
        f"depthwise_{name}_{dtype}", inspect.getsource(factory) + f"{dtype} {TILE} {GRAD_TILE}", lambda: factory(dtype)
    )


def _modules(dtype: str, rows: int) -> tuple[Any, Any, Any, Any, Any]:
    """Return the functions for vectors, for rows, for tiles, those which transpose, and that which reads words."""
    from ....compiler.native.tiles import outer, transposition

    r, v, words = vector_functions(dtype)
    return r, v, outer(dtype, rows, 1), transposition(dtype), words


@cache
def _shared(dtype: str) -> Any:
    """Return `place` and `bring`, which the kernels share."""
    _, v, _, turns, words = _modules(dtype, TILE)
    turn_to, clear_row, lanes, size, row = turns.turn_to, v.clear_row, v.lanes, v.size, v.lanes * v.size

    def place(at, count, width, step_y, step_x):
        """Write offsets of `count` places, `width` of a line, in bytes of vectors."""
        table = words(at, count)
        line, column = 0, 0
        for i in range(count):
            table[i] = (line * step_y + column * step_x) * row
            column += 1
            if column == width:
                line, column = line + 1, 0

    def bring(to, places, planes, plane, first, count, present):
        """Transpose `count` cells of planes from `first` on; offsets are those from there."""
        for j in range(0, count, lanes):
            source = planes + (first + j) * size
            turn_to(to, source, plane * size, present, places + 8 * j, min(lanes, count - j))

    def bring_lines(copied, places, w, first_line, n, channel, present, cleared):
        """Copy the lines of the source that a block reads. What is padding stays so for all images and channels."""
        top = first_line * w[15] - w[17]
        y0, y1 = max(top, 0), min(top + w[22], w[7])
        if cleared != first_line:
            clear_row(copied, w[22] * w[21] * lanes)
        planes = w[0] + (n * w[6] + channel) * w[7] * w[8] * size
        to = copied + ((y0 - top) * w[21] + w[18]) * row
        bring(to, places, planes, w[7] * w[8], y0 * w[8], (y1 - y0) * w[8], present)
        return first_line

    return place, bring, bring_lines


def _convolve(dtype: str) -> Any:
    """Convolve. A task is a block of lines of the target in a vector of channels of an image."""
    rows, word_count = TILE, WORDS
    r, v, t, turns, words = _modules(dtype, rows)
    at_places, start, store_tile, step, turn, load, store = (
        t.places, t.start, t.store, t.pair, turns.turn, v.load, v.store
    )  # fmt: skip
    lanes, size, row, between = v.lanes, v.size, v.lanes * v.size, v.between
    splat, fma, total, load_some = r.splat, r.fma, r.total, r.load_some
    zero, one = getattr(np, dtype)(0), getattr(np, dtype)(1)
    place, _, bring_lines = _shared(dtype)

    def pack(to, w, first, present):
        """Lay out the biases of some channels, and then their weights for each cell of the kernel."""
        cells = w[9] * w[10]
        for i in range(present):
            store(to + i * size, load(w[24] + (first + i) * size) if w[24] != 0 else zero)
        weights = w[1] + first * cells * size
        for k in range(0, cells, lanes):
            turn(to + (k + 1) * row, weights + k * size, cells * size, present, row, min(lanes, cells - k))
        if w[27] != 0:
            nothing = splat(zero)
            for i in range(0, present * cells, lanes):
                some = between(0, present * cells - i)
                nothing = fma(load_some(weights + i * size, some), splat(zero), nothing)
            store(w[27] + first // lanes * size, one if total(nothing) != zero else zero)

    def cell_of(k, rest, step, counted_from, apart, back):
        """Return the cell of the copy that windows of a remainder read through a cell of the kernel; -1 if none."""
        if back == 0:
            return k * apart
        reached = rest + counted_from - k * apart
        return reached // step if reached % step == 0 else -1

    def place_cells(at, w, ry, rx):
        """Write the read offset and that of the weights of each cell of the kernel that windows have; returns their
        number."""
        table, count = words(at, 2 * w[9] * w[10]), 0
        for k in range(w[9] * w[10]):
            y = cell_of(k // w[10], ry, w[13], w[25], w[19], w[27])
            x = cell_of(k % w[10], rx, w[14], w[26], w[20], w[27])
            if y >= 0 and x >= 0:
                table[2 * count] = (y * w[21] + x) * row
                table[2 * count + 1] = (k + 1) * row
                count += 1
        return count

    def place_windows(reads, writes, w, ry, rx):
        """Write the offsets of a block's windows, in whole tiles, with the last one repeated; returns their number,
        with repetitions."""
        columns, lines = (w[12] - rx + w[14] - 1) // w[14], (w[23] + w[13] - 1) // w[13]
        count = lines * columns
        padded = (count + rows - 1) // rows * rows
        of_reads, of_writes = words(reads, padded), words(writes, padded)
        a, b = 0, 0
        for i in range(padded):
            of_reads[i] = (a * w[15] * w[21] + b * w[16]) * row
            of_writes[i] = ((a * w[13] + ry) * w[12] + b * w[14] + rx) * row
            if i < count - 1:
                b += 1
                if b == columns:
                    a, b = a + 1, 0
        return padded

    def compute(sums, writes, reads, lines, cells, count, weights):
        places, table = at_places(reads), words(cells, 2 * count)
        tile = start(weights, row)
        for i in range(count):
            tile = step(tile, lines + table[2 * i], places, weights + table[2 * i + 1])
        store_tile(tile, sums, at_places(writes))

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        own, images, channels = w[3] + worker * w[4], w[5], w[6]
        cells, remainders, all_lines, plane = w[9] * w[10], w[13] * w[14], w[11], w[11] * w[12]
        # Of each remainder: the numbers of its windows and cells, their offsets, and those of windows in the sums.
        most = ((w[23] + w[13] - 1) // w[13] * ((w[12] + w[14] - 1) // w[14]) + rows - 1) // rows * rows
        told, brought = 8 * (2 + 2 * most + 2 * cells), own
        described = own + 8 * (w[22] * w[8] + lanes)
        weights = (described + remainders * told + 63) // 64 * 64
        copied = weights + (cells + 1) * row
        sums = copied + w[22] * w[21] * row
        place(brought, w[22] * w[8] + lanes, w[8], w[21], 1)
        for r in range(remainders):
            at = described + r * told
            counts = words(at, 2)
            counts[0] = place_windows(at + 16, at + 16 + 8 * most, w, r // w[14], r % w[14])
            counts[1] = place_cells(at + 16 + 16 * most, w, r // w[14], r % w[14])
        panels, packed, cleared = (channels + lanes - 1) // lanes, -1, -1
        for task in range(lo, hi):
            l0, first = task // images // panels * w[23], task // images % panels * lanes
            l1, n, present = min(l0 + w[23], all_lines), task % images, min(lanes, channels - first)
            if packed != first:
                pack(weights, w, first, present)
                packed = first
            cleared = bring_lines(copied, brought, w, l0 // w[13], n, first, present, cleared)
            for r in range(remainders):
                at = described + r * told
                counts = words(at, 2)
                columns = (w[12] - r % w[14] + w[14] - 1) // w[14]
                count = min(counts[0], (l1 - l0 + w[13] - 1) // w[13] * columns)
                for i in range(0, count, rows):
                    reads = at + 16 + 8 * i
                    compute(sums, reads + 8 * most, reads, copied, at + 16 + 16 * most, counts[1], weights)
            into = w[2] + ((n * channels + first) * plane + l0 * w[12]) * size
            run = (l1 - l0) * w[12]
            for j in range(0, run, lanes):
                turn(into + j * size, sums + j * row, row, min(lanes, run - j), plane * size, present)

    return kernel


def _grad(dtype: str) -> Any:
    """Sum the gradient. A task is a part of the blocks of windows; its sums are [vector of channels, cell, channel]."""
    rows, word_count = GRAD_TILE, WORDS
    _, v, t, _, words = _modules(dtype, rows)
    at_places, load_tile, store_tile, step, clear_row = t.places, t.load, t.store, t.pair, v.clear_row
    lanes, size, row = v.lanes, v.size, v.lanes * v.size
    place, bring, bring_lines = _shared(dtype)

    def compute(sums, after, of_cells, lines, of_windows, count, operand):
        places, into, offsets = at_places(of_cells), at_places(after), words(of_windows, count)
        tile = load_tile(sums, into)
        for i in range(count):
            tile = step(tile, lines + offsets[i], places, operand)
            operand += row
        store_tile(tile, sums, into)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        own, images, channels = w[3] + worker * w[4], w[5], w[6]
        cells, all_lines, plane = w[9] * w[10], w[11], w[11] * w[12]
        padded, most = (cells + rows - 1) // rows * rows, w[23] * w[12] + lanes
        brought, windows = own, own + 8 * (w[22] * w[8] + lanes)
        laid, of_cells = windows + 8 * most, windows + 16 * most
        after = of_cells + 8 * padded
        operand = (after + 8 * rows + 63) // 64 * 64
        copied = operand + most * row
        place(brought, w[22] * w[8] + lanes, w[8], w[21], 1)
        place(windows, most, w[12], w[15] * w[21], w[16])
        place(laid, most, most, 0, 1)
        place(of_cells, cells, w[10], w[19] * w[21], w[20])
        place(after, rows, rows, 0, 1)
        beyond = words(of_cells, padded)
        for k in range(cells, padded):
            beyond[k] = 0
        panels, blocks = (channels + lanes - 1) // lanes, (all_lines + w[23] - 1) // w[23]
        for task in range(lo, hi):
            result, cleared = w[28] + task * panels * padded * row, -1
            clear_row(result, panels * padded * lanes)
            for p in range(panels):
                first, present = p * lanes, min(lanes, channels - p * lanes)
                for item in range(blocks * images * task // w[29], blocks * images * (task + 1) // w[29]):
                    l0, n = item // images * w[23], item % images
                    l1 = min(l0 + w[23], all_lines)
                    cleared = bring_lines(copied, brought, w, l0, n, first, present, cleared)
                    planes, count = w[2] + (n * channels + first) * plane * size, (l1 - l0) * w[12]
                    bring(operand, laid, planes, plane, l0 * w[12], count, present)
                    for k in range(0, cells, rows):
                        sums = result + (p * padded + k) * row
                        compute(sums, after, of_cells + 8 * k, copied, windows, count, operand)

    return kernel


def _collect(dtype: str) -> Any:
    """Add up the parts of the kernel's gradient, in order, and write it by channel; a task is a vector of channels."""
    rows, word_count = GRAD_TILE, WORDS
    _, v, _, turns, words = _modules(dtype, rows)
    lanes, size, row, add_row, turn = v.lanes, v.size, v.lanes * v.size, v.add_row, turns.turn

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        channels, cells = w[6], w[9] * w[10]
        panels, padded = (channels + lanes - 1) // lanes, (cells + rows - 1) // rows * rows
        for p in range(lo, hi):
            sums, present = w[28] + p * padded * row, min(lanes, channels - p * lanes)
            for part in range(1, w[29]):
                add_row(sums, sums + part * panels * padded * row, cells * lanes)
            for k in range(0, cells, lanes):
                to = w[1] + (p * lanes * cells + k) * size
                turn(to, sums + k * row, row, min(lanes, cells - k), cells * size, present)

    return kernel


# Workspace and arguments ---------------------------------------------------------------------------------------------

_BLOCK_BYTES = 256 << 10  # of the copy and the sums of a block, in a cache of 1 MB


def _panels(g: ConvGeometry) -> int:
    return -(-g.groups // g.lanes)


def _side(g: ConvGeometry, back: bool) -> PlaneGeometry:
    """Return the geometry of a plane, whose copy has its cells in order; `beyond` are those that windows reach beyond
    the first."""
    side = plane_geometry(g, back)
    reach = tuple((k - 1) * d for k, d in zip(in_plane(g.kernel, 1), in_plane(g.dilation, 1)))
    return side if back else side._replace(beyond=reach)


class _LineBlock(NamedTuple):
    """Lines of a block and of the copy, cells of a line of the copy, and bytes of a worker."""

    lines: int
    copied: int
    pitch: int
    own: int


def _block(g: ConvGeometry, side: PlaneGeometry) -> _LineBlock:
    """Return the largest block that fits in the cache."""
    remainders, cells = math.prod(side.target_step), -(-math.prod(g.kernel) // GRAD_TILE) * GRAD_TILE
    width = -(-side.target[1] // side.target_step[1])
    pitch = max((width - 1) * side.source_step[1] + side.beyond[1] + 1, side.before[1] + side.source[1])

    def of(lines: int) -> _LineBlock:
        steps = -(-lines // side.target_step[0])
        copied, windows = (steps - 1) * side.source_step[0] + side.beyond[0] + 1, steps * width + VECTOR_BYTES
        places = copied * side.source[1] + remainders * 2 * (1 + windows + cells) + 2 * VECTOR_BYTES
        vectors = copied * pitch + windows * remainders + cells + 1
        return _LineBlock(lines, copied, pitch, round_up(8 * places) + vectors * VECTOR_BYTES)

    lines = side.target[0] if g.images * _panels(g) >= IMAGES else -(-side.target[0] // IMAGES)
    while lines > 1 and of(lines).own > _BLOCK_BYTES:
        lines = -(-lines // 2)
    return of(-(-lines // side.target_step[0]) * side.target_step[0])


def _words(g: ConvGeometry, side: PlaneGeometry, block: _LineBlock, parts: int) -> Words:
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
    return ConvTiling(block.own, depthwise_flags(g) * g.itemsize if back else 0, tasks, _words(g, side, block, 0))


def depthwise_flags(g: ConvGeometry) -> int:
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
    sums = _panels(g) * -(-math.prod(g.kernel) // GRAD_TILE) * GRAD_TILE * VECTOR_BYTES
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
