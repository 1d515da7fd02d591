"""The kernel's gradient without a matrix of windows, where neighbouring windows lie one cell apart.

An element is the product of a plane of the cotangent with a plane of x, some cells away. A tile has some output
channels by some cells of the kernel; each of its sums is a vector that adds up neighbouring windows. It stays in
registers over as many images as stay in the cache, and only then are its lanes added up.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

from ...native.compiler import Kernel, compile_kernel
from .convolution import WORDS

ROWS = 4
"""Output channels of a tile."""
COLUMNS = 6
"""Cells of the kernel of a tile."""
SCRATCH = 256
"""Bytes at the start of a workspace, for the sums of a tile."""


def lines_copier(dtype: str) -> Any:
    """`copy(to, plane, first, rows, height, width, before, pitch)`: lines of a plane within their padding.

    A copied line has `pitch` cells, `before` of them zeros; lines that the plane has not are zeros.
    """
    v = import_module("opstage.interpreters.native.vectors").vectors(dtype)
    lanes, size, between, move, clear_row = v.lanes, v.size, v.between, v.move, v.clear_row

    @import_module("numba").njit
    def copy(to, plane, first, rows, height, width, before, pitch):
        for y in range(first, first + rows):
            if y >= 0 and y < height:
                source = plane + (y * width - before) * size
                for j in range(0, pitch, lanes):
                    cells = between(before - j, before + width - j)
                    move(to + j * size, source + j * size, cells, between(0, pitch - j))
            else:
                clear_row(to, pitch)
            to += pitch * size

    return copy


@cache
def direct_grad_kernel(dtype: str) -> Kernel:
    """For float32 or float64, with the words of `convolution`: word 8 is how many cells a copied line has, word 9 how
    many blocks, each of some lines of an image, are taken together."""
    return compile_kernel(
        f"direct_kernel_grad_{dtype}",
        inspect.getsource(_factory) + f"{dtype} {ROWS} {COLUMNS}",
        lambda: _factory(dtype),
    )


def _factory(dtype: str) -> Any:
    v = import_module("opstage.interpreters.native.vectors").vectors(dtype)
    words, word_count = import_module("opstage.interpreters.native.memory").int64s, WORDS
    t = import_module("opstage.interpreters.native.tiles").correlations(dtype, ROWS, COLUMNS)
    empty, correlate, totals, tile_rows, tile_columns, scratch_bytes = (
        t.empty, t.correlate, t.totals, ROWS, COLUMNS, SCRATCH
    )  # fmt: skip
    lanes, size, between, clear_row, load, store = v.lanes, v.size, v.between, v.clear_row, v.load, v.store
    move, copy_lines, every = v.move, lines_copier(dtype), (1 << v.lanes) - 1
    step_bytes = ROWS * lanes * size

    @import_module("numba").njit
    def cell_place(k, depth, w, rows):
        """Where cell k of the kernel stands relative to the first, in the copied lines."""
        k = min(k, depth - 1)
        kx, ky, c = k % w[21], k // w[21] % w[20], k // (w[21] * w[20])
        return ((c * rows + ky * w[32]) * w[8] + kx * w[33]) * size

    @import_module("numba").njit
    def along(tile, b, a, k0, k1, k2, k3, k4, k5, mask, count, to_next):
        """Adds the products of `count` lines."""
        for _ in range(count):
            tile = correlate(tile, b, (a + k0, a + k1, a + k2, a + k3, a + k4, a + k5), mask)
            a += to_next
            b += step_bytes
        return tile

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        x, cotangent = w[1], w[2]
        scratch = w[5] + worker * w[7]
        lines_at = scratch + scratch_bytes
        groups, channels_in, channels_out = w[13], w[14], w[15]
        height, width, rows_counted, counted = w[17], w[18], w[23], w[24]
        step_y, pitch, together, lines = w[26], w[8], w[9], w[35]
        rows = (lines - 1) * step_y + (w[20] - 1) * w[32] + 1
        depth, plane = channels_in * w[20] * w[21], rows_counted * counted
        total = groups * channels_out * depth
        line_blocks = (rows_counted + lines - 1) // lines
        blocks = w[12] * line_blocks
        block_bytes = channels_in * rows * pitch * size
        in_line = (counted + lanes - 1) // lanes
        laid_blocks = (channels_out + tile_rows - 1) // tile_rows
        laid_bytes = lines * in_line * step_bytes
        laid_at = lines_at + together * block_bytes
        for task in range(lo, hi):
            into = w[3] if task == 0 else w[6] + (task - 1) * total * size
            clear_row(into, total)
            stop = blocks * (task + 1) // w[11]
            for first in range(blocks * task // w[11], stop, together):
                last = min(first + together, stop)
                for group in range(groups):
                    to = lines_at
                    for block in range(first, last):
                        image, y = block // line_blocks, block % line_blocks * lines * step_y - w[29]
                        for c in range(channels_in):
                            source = x + ((image * groups + group) * channels_in + c) * height * width * size
                            copy_lines(to, source, y, rows, height, width, w[30], pitch)
                            to += rows * pitch * size
                    # The cotangent, so that what a step reads stands together: [block, channels, j, line, channel].
                    to = laid_at
                    for block in range(first, last):
                        image, l0 = block // line_blocks, block % line_blocks * lines
                        g = cotangent + ((image * groups + group) * channels_out * plane + l0 * counted) * size
                        for o in range(0, channels_out, tile_rows):
                            for j in range(0, counted, lanes):
                                windows = between(0, counted - j)
                                for line in range(min(lines, rows_counted - l0)):
                                    for i in range(o, o + tile_rows):
                                        row = g + (min(i, channels_out - 1) * plane + line * counted + j) * size
                                        move(to, row, windows, every)
                                        to += lanes * size
                            to += (lines - min(lines, rows_counted - l0)) * in_line * step_bytes
                    for o in range(0, channels_out, tile_rows):
                        for k in range(0, depth, tile_columns):
                            k0, k1, k2 = (
                                cell_place(k, depth, w, rows),
                                cell_place(k + 1, depth, w, rows),
                                cell_place(k + 2, depth, w, rows),
                            )
                            k3, k4, k5 = (
                                cell_place(k + 3, depth, w, rows),
                                cell_place(k + 4, depth, w, rows),
                                cell_place(k + 5, depth, w, rows),
                            )
                            tile = empty()
                            for block in range(first, last):
                                a = lines_at + (block - first) * block_bytes
                                b = laid_at + ((block - first) * laid_blocks + o // tile_rows) * laid_bytes
                                count = min(lines, rows_counted - block % line_blocks * lines)
                                for j in range(0, counted, lanes):
                                    tile = along(
                                        tile, b, a + j * size, k0, k1, k2, k3, k4, k5, between(0, counted - j), count,
                                        step_y * pitch * size,
                                    )  # fmt: skip
                                    b += count * step_bytes
                            totals(tile, scratch)
                            for i in range(min(tile_rows, channels_out - o)):
                                row = into + ((group * channels_out + o + i) * depth + k) * size
                                for j in range(min(tile_columns, depth - k)):
                                    number = load(scratch + (i * tile_columns + j) * size)
                                    store(row + j * size, load(row + j * size) + number)

    return kernel
