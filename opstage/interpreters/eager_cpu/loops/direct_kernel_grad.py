"""The kernel's gradient without a matrix of windows.

An element is the product of a plane of the cotangent with a shifted plane of x. A tile has some output channels by some
cells of the kernel; each of its sums is a vector over adjacent windows. It stays in registers over as many images as
fit in the cache, and its lanes are summed only then. Images are copied, a few channels at a time, and windows are
placed, as in `direct_convolution`.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ....compiler.native.compiler import Kernel, compile_kernel
from .direct_convolution import WORDS, cells_placer, planes_copier, windows_placer

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


COLUMNS = {1: 9, 4: 5}
"""Maps the output channels of a tile to its number of cells of the kernel."""
SCRATCH = 512
"""Bytes at the start of a workspace for the sums of a tile."""


@cache
def direct_grad_kernel(dtype: str, rows: int) -> Kernel:
    """Return the kernel for float32 or float64, with the arguments of `direct_convolution`, except 1 partial sums, 2
    the cotangent, 31 the result, 33 channels of x and 34 of the cotangent per block, 35 the number of parts of the
    sum."""
    return compile_kernel(
        f"direct_kernel_grad_{dtype}_{rows}",
        inspect.getsource(_factory) + f"{dtype} {rows} {COLUMNS[rows]}",
        lambda: _factory(dtype, rows),
    )


def _factory(dtype: str, rows: int) -> Any:
    def native(name: str) -> Any:
        return import_module(f"opstage.compiler.native.{name}")

    v, r, words, word_count = (
        native("vectors").vectors(dtype),
        native("vectors").registers(dtype),
        (native("intrinsics").int64s),
        WORDS,
    )
    tile_rows, tile_columns, scratch_bytes = rows, COLUMNS[rows], SCRATCH
    t = native("tiles").correlations(dtype, rows, tile_columns)
    empty, correlate, totals, at_places, spread = t.empty, t.correlate, t.totals, t.places, t.spread
    lanes, size, clear_row, load, store, between = v.lanes, v.size, v.clear_row, v.load, v.store, v.between
    add_row = v.add_row
    splat, fma, total, load_some = r.splat, r.fma, r.total, r.load_some
    copy_planes, place_windows, place_cells = planes_copier(dtype), windows_placer(dtype), cells_placer(dtype)
    step_bytes, zero = rows * lanes * size, getattr(np, dtype)(0)

    def zeros_times(at, count):
        """Return 0, or nan if one of the numbers is not finite."""
        zeros = splat(zero)
        products = zeros
        for i in range(0, count, lanes):
            products = fma(load_some(at + i * size, between(0, count - i)), zeros, products)
        return total(products)

    def add_padding(into, row, w):
        """Add the cotangents of an output channel times 0, where `row` is nan, at cells that are only padding."""
        whole = w[39] * w[40]
        for i in range(w[7] * whole):
            y, x = i % whole // w[40] - w[41], i % w[40] - w[42]
            if y < 0 or y >= w[11] or x < 0 or x >= w[12]:
                store(into + i * size, load(into + i * size) + row)

    def compute(lines, laid, windows, count, most, at):
        """Return the sums of a tile over `count` vectors of windows."""
        table, cells, tile = words(windows, 3 * most), at_places(at), empty()
        for i in range(count):
            tile = correlate(tile, laid + i * step_bytes, lines + table[i], cells, table[2 * most + i])
        return tile

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        x, cotangent, scratch = w[0], w[2], w[3] + worker * w[4]
        groups, channels_in, channels_out, most = w[6], w[7], w[8], w[30]
        cells, whole, plane = w[11] * w[12], w[39] * w[40], w[13] * w[14]
        sums = groups * channels_out * channels_in * whole
        line_blocks = (w[13] + w[37] - 1) // w[37]
        blocks = (w[5] + w[38] - 1) // w[38] * line_blocks
        # The offsets of vectors of windows and of kernel cells, for some channels, and the numbers of those.
        windows_at = scratch + scratch_bytes
        cells_at = windows_at + 24 * most
        depth_at, padded = cells_at + 16 * cells, w[33] * cells + tile_columns
        lines_at = (depth_at + 16 * padded + 63) // 64 * 64
        laid_at = lines_at + (w[38] * w[27] + 64 + 63) // 64 * 64
        inside, _ = place_cells(cells_at, w, 0, 0, 0, w[13])
        in_order = inside == whole  # else cells that are only padding come last, or are not among them
        of_channel, of_all = words(cells_at, 2 * cells), words(depth_at, 2 * padded)
        for k in range(padded):
            c, cell = min(k // cells, w[33] - 1), k % cells
            y, x_cell = of_channel[2 * cell + 1] // w[12] + w[41], of_channel[2 * cell + 1] % w[12] + w[42]
            of_all[k] = c * w[28] + of_channel[2 * cell]
            of_all[padded + k] = c * whole + y * w[40] + x_cell
        table = words(windows_at, 3 * most)
        for task in range(lo, hi):
            result = w[31] if task == 0 else w[1] + (task - 1) * sums * size
            clear_row(result, sums)
            for block in range(blocks * task // w[35], blocks * (task + 1) // w[35]):
                n0, l0 = block // line_blocks * w[38], block % line_blocks * w[37]
                n1, l1 = min(n0 + w[38], w[5]), min(l0 + w[37], w[13])
                count = place_windows(windows_at, w, n1 - n0, l1 - l0, 0, 0)
                for group in range(groups):
                    first = cotangent + ((n0 * groups + group) * channels_out * plane + l0 * w[14]) * size
                    of_group = result + group * channels_out * channels_in * whole * size
                    if cells < whole:
                        for n in range(n1 - n0):
                            for o in range(channels_out):
                                row = first + (n * groups * channels_out + o) * plane * size
                                padding = zeros_times(row, (l1 - l0) * w[14])
                                if padding != zero:
                                    add_padding(of_group + o * channels_in * whole * size, padding, w)
                    for o0 in range(0, channels_out, w[34]):
                        o1 = min(o0 + w[34], channels_out)
                        # So that a step reads contiguous memory: [output channels, vector, output channel, lane].
                        to = laid_at
                        for o in range(o0, o1, tile_rows):
                            for i in range(count):
                                for row in range(o, o + tile_rows):
                                    at = first + min(row, o1 - 1) * plane * size + table[most + i]
                                    spread(to, at, table[2 * most + i])
                                    to += lanes * size
                        for c0 in range(0, channels_in, w[33]):
                            c1 = min(c0 + w[33], channels_in)
                            for n in range(n0, n1):
                                for c in range(c0, c1):
                                    plane_at = x + ((n * groups + group) * channels_in + c) * w[9] * w[10] * size
                                    to = lines_at + (n - n0) * w[27] + (c - c0) * w[28]
                                    copy_planes(to, plane_at, w, l0, l1 - l0)
                            depth = (c1 - c0) * cells
                            for o in range(o0, o1, tile_rows):
                                laid = laid_at + (o - o0) // tile_rows * count * step_bytes
                                into = of_group + (o * channels_in + c0) * whole * size
                                for k in range(0, depth, tile_columns):
                                    tile = compute(lines_at, laid, windows_at, count, most, depth_at + 8 * k)
                                    totals(tile, scratch)
                                    for i in range(min(tile_rows, o1 - o)):
                                        row, of_row = (
                                            into + i * channels_in * whole * size,
                                            scratch + i * tile_columns * size,
                                        )
                                        if in_order:
                                            add_row(row + k * size, of_row, min(tile_columns, depth - k))
                                        else:
                                            for j in range(min(tile_columns, depth - k)):
                                                at = row + of_all[padded + k + j] * size
                                                store(at, load(at) + load(of_row + j * size))

    return kernel
