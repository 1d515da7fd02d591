"""Convolution in vectors of channels: a number of x times the weights that it has in adjacent output channels.

The sums of a tile, some windows by some vectors of channels, stay in registers. Windows read single numbers, so they
may lie anywhere: no lane is idle at the end of a line, and no stride needs a copy; only padding does. The kernel's
gradient has cells of the kernel in the place of windows, and adds up over those. What stands in memory by channel first
is transposed on the way, a block at a time. Georganas et al., Anatomy of high-performance deep learning
convolutions on SIMD architectures, 2018.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def"
from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ...native.compiler import Kernel, compile_kernel
from .direct_convolution import planes_copier

ROWS = {1: 8, 2: 6, 3: 8, 4: 6}
"""Maps the vectors of channels of a tile to its windows or cells."""
WORDS = 49
"""The words of every kernel here; they are those of `direct_convolution` where they mean the same, since both copy
lines with one function. x is conv's, also of its adjoint, which has it as its result; channels are those of a group.

0 x, 1 panels or sums, 2 conv's result or its cotangent, 3 workspace, 4 bytes of it that a
worker has, 5 images, 6 groups, 7 channels of x, 8 of the result, 9 … 10 cells of x, 11 … 12 of the kernel, 13 … 14
windows, 17 … 18 and 25 … 26 always 1, 19 … 20 padding, 21 … 22 dilation; of the copy 23 cells of a line, 24 lines of a
plane, 27 bytes of an image, 28 of a channel; 30 windows of a block at most, in whole tiles, 31 bias or 0, 32 always 0,
33 the kernel or its gradient, 35 parts of the gradient's sum, 36 lines that windows reach beyond the first, 37 lines of
windows a block, 38 images a block, 43 … 44 always 0, 45 … 46 stride, 47 whether x is read in place, 48 channels of x a
pass
"""


@cache
def channel_kernel(name: str, dtype: str, vectors: int) -> Kernel:
    """Return `pack`, `forward`, `grad` or `collect`, for float32 or float64."""
    factory = {
        "pack": _pack,
        "forward": _conv,
        "grad": _grad,
        "collect": _collect,
    }[name]
    return compile_kernel(
        f"channels_{name}_{dtype}_{vectors}",
        inspect.getsource(factory) + f"{dtype} {vectors} {ROWS[vectors]}",
        lambda: factory(dtype, vectors),
    )


def _modules(dtype: str, vectors: int) -> tuple[Any, Any, Any, Any]:
    """Return the functions for vectors, for tiles, that which transposes, and that which reads words."""
    native = "opstage.interpreters.native"
    outer = import_module(f"{native}.outer")
    return (
        import_module(f"{native}.vectors").vectors(dtype),
        outer.outer(dtype, ROWS[vectors], vectors),
        outer.transposition(dtype).turn,
        import_module(f"{native}.memory").int64s,
    )


def _pack(dtype: str, vectors: int) -> Any:
    """Lay out for a vector of conv's output channels its biases, then those of each weight; a task is one vector."""
    v, _, turn, words = _modules(dtype, vectors)
    lanes, size, load, store, row, word_count = v.lanes, v.size, v.load, v.store, v.lanes * v.size, WORDS
    zero = getattr(np, dtype)(0)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        depth, channels = w[7] * w[11] * w[12], w[8]
        panels = (channels + lanes - 1) // lanes
        for task in range(lo, hi):
            first = task % panels * lanes
            present, channel = min(lanes, channels - first), task // panels * channels + first
            to = w[1] + task * (depth + 1) * row
            for i in range(present):
                store(to + i * size, load(w[31] + (channel + i) * size) if w[31] != 0 else zero)
            source = w[33] + channel * depth * size
            for k in range(0, depth, lanes):
                turn(to + (k + 1) * row, source + k * size, depth * size, present, row, min(lanes, depth - k))

    return kernel


def _windows_of(dtype: str) -> Any:
    size, copy_planes = np.dtype(dtype).itemsize, planes_copier(dtype)

    def lines_of(x, copied, n0, n1, group, l0, l1, w):
        """Return where the first line is that windows of lines l0 … l1 read: in x, or in a copy with padding."""
        lines = copied
        if w[47]:
            lines = x + ((n0 * w[6] + group) * w[7] * w[9] + l0 * w[45]) * w[10] * size
        else:
            for n in range(n0, n1):
                for c in range(w[7]):
                    from_plane = x + ((n * w[6] + group) * w[7] + c) * w[9] * w[10] * size
                    at = copied + (n - n0) * w[27] + c * w[28]
                    copy_planes(at, from_plane, w, l0 * w[45], (l1 - l0 - 1) * w[45] + 1)
        return lines

    def place_windows(table, w, images, lines, rows):
        """Write the read offsets of the windows of a block, in bytes; whole tiles, with the last one repeated. Returns
        their number without repetitions."""
        count = 0
        for image in range(images):
            for line in range(lines):
                at = image * w[27] + line * w[45] * w[23] * size
                for j in range(w[14]):
                    table[count] = at + j * w[46] * size
                    count += 1
        for i in range(count, (count + rows - 1) // rows * rows):
            table[i] = table[count - 1]
        return count

    return lines_of, place_windows


def _conv(dtype: str, vectors: int) -> Any:
    v, t, turn, words = _modules(dtype, vectors)
    rows, many, word_count = ROWS[vectors], vectors, WORDS
    at_places, start, load_tile, store_tile, step = t.places, t.start, t.load, t.store, t.step
    lanes, size, row = v.lanes, v.size, v.lanes * v.size
    lines_of, place_windows = _windows_of(dtype)

    def compute(sums, reads, writes, lines, w, cells, c0, c1, panel, apart):
        """Add what channels c0 … c1 of x give to a tile."""
        of_cells, count = words(cells, w[11] * w[12]), w[11] * w[12]
        places, into = at_places(reads), at_places(writes)
        if c0 == 0:
            tile = start(panel, apart)
        else:
            tile = load_tile(sums, into)
        weights = panel + (c0 * count + 1) * row
        for c in range(c0, c1):
            channel = lines + c * w[28]
            for i in range(count):
                tile = step(tile, channel + of_cells[i], places, weights, apart)
                weights += row
        store_tile(tile, sums, into)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        x, panels_at, target, own = w[0], w[1], w[2], w[3] + worker * w[4]
        groups, channels_in, channels_out, cells = w[6], w[7], w[8], w[11] * w[12]
        plane, most, columns = w[13] * w[14], w[30], w[14]
        panels = (channels_out + lanes - 1) // lanes
        apart = (channels_in * cells + 1) * row
        reads, writes, cells_at = own, own + 8 * most, own + 16 * most
        sums = (cells_at + 8 * cells + 63) // 64 * 64
        copied = sums + most * many * row
        of_cells, of_reads, of_writes = words(cells_at, cells), words(reads, most), words(writes, most)
        for k in range(cells):
            of_cells[k] = (k // w[12] * w[21] * w[23] + k % w[12] * w[22]) * size
        line_blocks = (w[13] + w[37] - 1) // w[37]
        for task in range(lo, hi):
            n0, l0 = task // line_blocks * w[38], task % line_blocks * w[37]
            n1, l1 = min(n0 + w[38], w[5]), min(l0 + w[37], w[13])
            count, run = place_windows(of_reads, w, n1 - n0, l1 - l0, rows), (l1 - l0) * columns
            for i in range((count + rows - 1) // rows * rows):
                of_writes[i] = min(i, count - 1) * many * row
            for group in range(groups):
                lines = lines_of(x, copied, n0, n1, group, l0, l1, w)
                for p in range(0, panels, many):
                    panel = panels_at + (group * panels + p) * apart
                    for c0 in range(0, channels_in, w[48]):
                        c1 = min(c0 + w[48], channels_in)
                        for i in range(0, count, rows):
                            compute(sums, reads + 8 * i, writes + 8 * i, lines, w, cells_at, c0, c1, panel, apart)
                    for q in range(p, min(p + many, panels)):
                        present = min(lanes, channels_out - q * lanes)
                        for n in range(n0, n1):
                            into = (
                                target
                                + (((n * groups + group) * channels_out + q * lanes) * plane + l0 * columns) * size
                            )
                            source = sums + ((n - n0) * run * many + q - p) * row
                            for j in range(0, run, lanes):
                                some = min(lanes, run - j)
                                turn(into + j * size, source + j * many * row, many * row, some, plane * size, present)

    return kernel


def _grad(dtype: str, vectors: int) -> Any:
    """A task is a part of the blocks of windows; its sums are [group, tile's channels, cell, channel]."""
    v, t, turn, words = _modules(dtype, vectors)
    rows, many, word_count = ROWS[vectors], vectors, WORDS
    at_places, load_tile, store_tile, step, clear_row = t.places, t.load, t.store, t.step, v.clear_row
    lanes, size, row = v.lanes, v.size, v.lanes * v.size
    lines_of, place_windows = _windows_of(dtype)

    def compute(sums, reads, writes, lines, windows, count, panel, apart):
        places, into, of_windows = at_places(reads), at_places(writes), words(windows, count)
        tile = load_tile(sums, into)
        for i in range(count):
            tile = step(tile, lines + of_windows[i], places, panel, apart)
            panel += row
        store_tile(tile, sums, into)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        x, cotangent, own = w[0], w[2], w[3] + worker * w[4]
        groups, channels_out, cells = w[6], w[8], w[11] * w[12]
        plane, most, depth = w[13] * w[14], w[30], w[7] * w[11] * w[12]
        panels = (channels_out + lanes - 1) // lanes
        blocks, padded = (panels + many - 1) // many, (depth + rows - 1) // rows * rows
        reads, writes, windows = own, own + 8 * padded, own + 16 * padded
        laid = (windows + 8 * most + 63) // 64 * 64
        copied = laid + blocks * many * most * row
        of_reads, of_writes = words(reads, padded), words(writes, padded)
        for i in range(padded):
            k = min(i, depth - 1)
            y, z = k % cells // w[12] * w[21], k % w[12] * w[22]
            of_reads[i] = k // cells * w[28] + (y * w[23] + z) * size
            of_writes[i] = k * many * row
        line_blocks = (w[13] + w[37] - 1) // w[37]
        all_blocks = (w[5] + w[38] - 1) // w[38] * line_blocks
        part_bytes = groups * blocks * depth * many * row
        for task in range(lo, hi):
            result = w[1] + task * part_bytes
            clear_row(result, part_bytes // size)
            for block in range(all_blocks * task // w[35], all_blocks * (task + 1) // w[35]):
                n0, l0 = block // line_blocks * w[38], block % line_blocks * w[37]
                n1, l1 = min(n0 + w[38], w[5]), min(l0 + w[37], w[13])
                count, run = place_windows(words(windows, most), w, n1 - n0, l1 - l0, 1), (l1 - l0) * w[14]
                for group in range(groups):
                    for p in range(panels):
                        present = min(lanes, channels_out - p * lanes)
                        for n in range(n0, n1):
                            channel = (n * groups + group) * channels_out + p * lanes
                            source = cotangent + (channel * plane + l0 * w[14]) * size
                            to = laid + (p * count + (n - n0) * run) * row
                            for j in range(0, run, lanes):
                                some = min(lanes, run - j)
                                turn(to + j * row, source + j * size, plane * size, present, row, some)
                    lines = lines_of(x, copied, n0, n1, group, l0, l1, w)
                    for b in range(blocks):
                        sums = result + (group * blocks + b) * depth * many * row
                        panel = laid + b * many * count * row
                        for k in range(0, depth, rows):
                            compute(sums, reads + 8 * k, writes + 8 * k, lines, windows, count, panel, count * row)

    return kernel


def _collect(dtype: str, vectors: int) -> Any:
    """Add up the parts of the kernel's gradient, in order, and write it by channel; a task has as many cells as a
    vector has numbers, in the channels of a tile."""
    v, _, turn, words = _modules(dtype, vectors)
    many, word_count, lanes, size, row, add_row = vectors, WORDS, v.lanes, v.size, v.lanes * v.size, v.add_row

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        groups, channels, depth = w[6], w[8], w[7] * w[11] * w[12]
        panels = (channels + lanes - 1) // lanes
        blocks, runs = (panels + many - 1) // many, (depth + lanes - 1) // lanes
        part_bytes = groups * blocks * depth * many * row
        for task in range(lo, hi):
            group, p, k = task // runs // blocks, task // runs % blocks * many, task % runs * lanes
            sums, count = w[1] + (task // runs * depth + k) * many * row, min(lanes, depth - k)
            for part in range(1, w[35]):
                add_row(sums, sums + part * part_bytes, count * many * lanes)
            for q in range(p, min(p + many, panels)):
                to = w[33] + ((group * channels + q * lanes) * depth + k) * size
                turn(to, sums + (q - p) * row, many * row, count, depth * size, min(lanes, channels - q * lanes))

    return kernel
