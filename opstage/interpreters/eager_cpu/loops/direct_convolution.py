"""Convolution without a matrix of windows: vectors of adjacent windows read their cells from a padded copy.

The sums of a tile, some windows by some output channels, stay in registers over all cells of the kernel. A worker
copies the lines that it needs, with padding. Cells that are `stride` apart are contiguous in the copy, with one plane
per remainder, so that adjacent windows read adjacent cells for any stride; if lines are short, vectors extend over line
ends. The kernel is packed once, so that the numbers of a step are contiguous. The adjoint is one such convolution for
each remainder of its result's cells modulo the stride. Georganas et al., Anatomy of high-performance deep learning
convolutions on SIMD architectures, 2018.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np

from ....compiler.native.access import vector_functions
from ....compiler.native.compiler import Kernel, compile_kernel
from ....compiler.native.kernel_cache import has_avx512
from .pooling import cells_loader

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


VECTORS = {1: (8, 2, 1), 4: (6, 2, 1), 8: (3, 2, 1)}
"""Maps the output channels of a tile to its numbers of vectors of adjacent windows: the largest, and smaller for the
rest."""
WORDS = 45
"""The words of every kernel here. The *source* is what is copied, conv's x or its adjoint's
operand, the *target* the result; channels are those of a group.

0 source, 1 panels, 2 target, 3 workspace, 4 bytes of it that a worker has, 5 images, 6 groups, 7 channels of the
source, 8 of the target, 9 … 10 the source's cells, 11 … 12 the kernel's, 13 … 14 the target's, 15 … 16 the stride of
the target, 17 … 18 of the source, 19 … 20 padding before the source, 21 … 22 dilation;
of the copy 23 cells of a line, 24 lines of a plane, 25 … 26 planes of a channel along each axis, 27 bytes of an image,
28 of a channel; 29 whether vectors run on over the ends of lines, 30 vectors of a block at most, 31 bias or 0,
32 whether it is the adjoint, 33 … 34 then, what its cells are counted from, 35 kernel, 36 lines that a block reads
beyond its own, 37 lines a block, 38 images a block, 39 … 40 the cells of the kernel whole, 41 … 42 the first of those
that are more than padding to some window, of which words 11 … 12 tell how many there are; 43 … 44 whether each cell of
the kernel has a plane of its own in the copy, as where dilation is large
"""


def has_registers() -> bool:
    """Return whether the processor has the registers for a tile: with AVX-512, 32 of 64 bytes."""
    return has_avx512()


@cache
def direct_kernel(name: str, dtype: str, rows: int) -> Kernel:
    """Return `direct` or `lay_out`, for float32 or float64 and tiles of `rows` output channels."""
    factory = {"direct": _direct, "pack": _pack}[name]
    return compile_kernel(
        f"{name}_{dtype}_{rows}",
        inspect.getsource(factory) + f"{dtype} {rows} {VECTORS[rows]}",
        lambda: factory(dtype, rows),
    )


@cache
def _plane_shift() -> Any:
    """Return `shift(plane, before, apart, step, own, back)`: the start of a plane of the copy, relative to its first
    window."""

    def shift(plane, before, apart, step, own, back):
        if not own:
            return plane * apart % step - before
        return (-plane if back else plane) * apart - before

    return shift


@cache
def planes_copier(dtype: str) -> Any:
    """Return `copy(to, plane, w, first, lines)`: copy what windows of `lines` lines from `first` on read, with
    padding."""
    r, v, _ = vector_functions(dtype)
    lanes, size, between, load_cells = r.lanes, r.size, v.between, cells_loader(r)
    store, zeros, zero, shift = r.store, r.splat, getattr(np, dtype)(0), _plane_shift()

    def copy(to, plane, w, first, lines):
        height, width, step_y, step_x, pitch = w[9], w[10], w[17], w[18], w[23]
        for py in range(w[25]):
            for px in range(w[26]):
                shift_y = shift(py, w[19], w[21], step_y, w[43], w[32])
                shift_x = shift(px, w[20], w[22], step_x, w[44], w[32])
                lo, hi = -(shift_x // step_x), (width - 1 - shift_x) // step_x + 1
                at = to + (py * w[26] + px) * w[24] * pitch * size
                for y in range(first * step_y + shift_y, (first + lines + w[36]) * step_y + shift_y, step_y):
                    source = plane + (y * width + shift_x) * size
                    if y >= 0 and y < height:
                        for j in range(0, pitch, lanes):
                            store(
                                at + j * size, load_cells(source + j * step_x * size, step_x, between(lo - j, hi - j))
                            )
                    else:
                        for j in range(0, pitch, lanes):
                            store(at + j * size, zeros(zero))
                    at += pitch * size

    return copy


@cache
def windows_placer(dtype: str) -> Any:
    """Return `place(at, w, images, lines, ry, rx)`: write the vectors of windows of a block at `at`; returns their
    number.

    The read offset of each in bytes from the first window's first cell, the write offset from the block's first
    element, and the mask of its lanes: three arrays of w[30] words.
    """
    _, v, int64s = vector_functions(dtype)
    lanes, size, between = v.lanes, v.size, v.between

    def place(at, w, images, lines, ry, rx):
        most, pitch, step_y, step_x = w[30], w[23], w[15], w[16]
        table = int64s(at, 3 * most)
        width = (w[14] - rx + step_x - 1) // step_x
        count = 0
        for image in range(images):
            source, into = image * w[27], image * w[6] * w[8] * w[13] * w[14]
            if w[29]:
                for p in range(0, (lines - 1) * pitch + width, lanes):
                    line, j = p // pitch, p % pitch
                    mask, start, below = 0, -j, lines - line
                    while start < lanes and below > 0:
                        mask |= between(start, start + width)
                        start += pitch
                        below -= 1
                    table[count] = source + p * size
                    table[most + count] = (into + line * width + min(j, width)) * size
                    table[2 * most + count] = mask
                    count += 1
            else:
                for line in range(lines):
                    for j in range(0, width, lanes):
                        table[count] = source + (line * pitch + j) * size
                        table[most + count] = (into + (line * step_y + ry) * w[14] + j * step_x + rx) * size
                        table[2 * most + count] = between(0, width - j)
                        count += 1
        return count

    return place


@cache
def cells_placer(dtype: str) -> Any:
    """Return `place(at, w, ry, rx, first, lines)`: list the kernel cells of windows, first those that are not only
    padding in some line of a block; returns the number of those, and of all.

    The read offset of each in bytes from a window's position in the copy of a channel, and its number: pairs of words.
    """
    (_, v, int64s), shift = vector_functions(dtype), _plane_shift()
    size = v.size

    def along(k, r, step, before, apart, planes, own, back):
        """Return the plane of the copy and the cell there, along one axis; -1 if no window has it."""
        if own:
            return k, 0
        if back:
            reached = r + before - k * apart
            return 0, (reached // step if reached % step == 0 else -1)
        return k % planes, k * apart // step

    def place(at, w, ry, rx, first, lines):
        table = int64s(at, 2 * w[11] * w[12])
        count, inside = 0, 0
        step_y, step_x = (w[15], w[16]) if w[32] else (w[17], w[18])
        for padding in range(2):
            for ky in range(w[11]):
                plane_y, y = along(ky, ry, step_y, w[33], w[21], w[25], w[43], w[32])
                row = (first + y) * w[17] + shift(plane_y, w[19], w[21], w[17], w[43], w[32])
                is_padding = row >= w[9] or row + (lines - 1) * w[17] < 0
                for kx in range(w[12]):
                    plane_x, x = along(kx, rx, step_x, w[34], w[22], w[26], w[44], w[32])
                    if y >= 0 and x >= 0 and is_padding == (padding == 1):
                        table[2 * count] = (((plane_y * w[26] + plane_x) * w[24] + y) * w[23] + x) * size
                        table[2 * count + 1] = ky * w[12] + kx
                        count += 1
            if not padding:
                inside = count
        return inside, count

    return place


def _pack(dtype: str, rows: int) -> Any:
    """Pack for each block of output channels its biases, and then for each cell of the kernel a number per channel.

    After all of them comes a flag for each block: 1 if some weight is not finite, else 0.
    """
    from ....compiler.native.tiles import tiles

    (r, v, words), word_count, block = vector_functions(dtype), WORDS, rows
    lay = tiles(dtype, rows, 1).lay
    lanes, size, load, store, splat, add, total = v.lanes, v.size, v.load, v.store, r.splat, r.add, r.total
    zero, one = getattr(np, dtype)(0), getattr(np, dtype)(1)
    load_some, fma, between = r.load_some, r.fma, v.between

    def add_padding(to, row, w):
        """Add weights of cells that are padding for all windows, times 0: nan if one of them is not finite."""
        depth, whole = w[7] * w[39] * w[40], w[39] * w[40]
        zeros = splat(zero)
        all_of_them = zeros
        for i in range(0, depth, lanes):
            all_of_them = fma(load_some(row + i * size, between(0, depth - i)), zeros, all_of_them)
        if total(all_of_them) == zero:
            return
        for i in range(depth):
            y, x = i % whole // w[40] - w[41], i % w[40] - w[42]
            if y < 0 or y >= w[11] or x < 0 or x >= w[12]:
                store(to, load(to) + zero * load(row + i * size))

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        weight, bias, back = w[35], w[31], w[32]
        channels_in, channels_out, cells, whole = w[7], w[8], w[11] * w[12], w[39] * w[40]
        blocks = (channels_out + block - 1) // block
        block_bytes = (channels_in * cells + 1) * block * size
        # A run: numbers that are contiguous both in the kernel and in the panel.
        if cells < whole:
            planes, lines, run = channels_in, w[11], w[12]
        elif back:
            planes, lines, run = channels_in, 1, cells
        else:
            planes, lines, run = 1, 1, channels_in * cells
        apart = (whole if back else channels_in * whole) * size
        for task in range(lo, hi):
            group, first = task // blocks, task % blocks * block
            panel = w[1] + task * block_bytes
            to = panel
            for o in range(first, first + block):
                store(to, load(bias + (group * channels_out + o) * size) if bias != 0 and o < channels_out else zero)
                to += size
            present = min(block, channels_out - first)
            row = group * channels_in * channels_out + first if back else (group * channels_out + first) * channels_in
            nothing = splat(zero)
            for c in range(planes):
                for y in range(lines):
                    cell = ((w[41] + y) * w[40] + w[42]) if cells < whole else 0
                    source = weight + ((row + c * (channels_out if back else 1)) * whole + cell) * size
                    for k in range(0, run, lanes):
                        at = to + k * block * size
                        nothing = add(nothing, lay(at, source + k * size, apart, min(lanes, run - k), present))
                    to += run * block * size
            if cells < whole and not back:
                for o in range(present):
                    add_padding(panel + o * size, weight + (row + o * channels_in) * whole * size, w)
            store(w[1] + w[6] * blocks * block_bytes + task * size, one if total(nothing) != zero else zero)

    return kernel


def _tile_of(dtype: str, rows: int, vectors: int) -> Any:
    """Return `compute(panel, lines, w, places, cells, count, into, apart, present)`: compute a tile, from biases to
    result."""
    from ....compiler.native.tiles import tiles

    t, (_, v, int64s) = tiles(dtype, rows, vectors), vector_functions(dtype)
    at_places, start, step = t.places, t.start, t.step
    finish, finish_pairs, finish_apart = t.finish, t.finish_pairs, t.finish_apart
    size, step_bytes = v.size, rows * v.size

    def compute(panel, lines, w, places, cells, count, into, apart, present):
        reads = at_places(places)
        table = int64s(cells, 2 * count)
        tile = start(panel)
        panel += step_bytes
        for _ in range(w[7]):
            for i in range(count):
                tile = step(tile, lines + table[2 * i], reads, panel + table[2 * i + 1] * step_bytes)
            panel += w[11] * w[12] * step_bytes
            lines += w[28]
        writes, masks = at_places(places + 8 * w[30]), at_places(places + 16 * w[30])
        if w[16] == 1:
            finish(tile, into, writes, apart, masks, present)
        elif w[16] == 2:
            finish_pairs(tile, into, writes, apart, masks, present)
        else:
            finish_apart(tile, into, writes, apart, masks, present, w[16] * size)

    return compute


def _direct(dtype: str, rows: int) -> Any:
    (_, v, words), word_count, block = vector_functions(dtype), WORDS, rows
    many, some, _ = VECTORS[rows]
    many_at_once, some_at_once, one_at_once = (_tile_of(dtype, rows, count) for count in VECTORS[rows])
    zero, copy_planes = getattr(np, dtype)(0), planes_copier(dtype)
    size, load = v.size, v.load
    place_windows, place_cells = windows_placer(dtype), cells_placer(dtype)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        source, panels, target, own = w[0], w[1], w[2], w[3] + worker * w[4]
        groups, channels_in, channels_out, plane = w[6], w[7], w[8], w[13] * w[14]
        step_y, step_x, cells = w[15], w[16], w[11] * w[12]
        all_lines = (w[13] + step_y - 1) // step_y
        line_blocks = (all_lines + w[37] - 1) // w[37]
        blocks = (channels_out + block - 1) // block
        panel_bytes = (channels_in * cells + 1) * block * size
        notes = panels + groups * blocks * panel_bytes
        # The description of each remainder: the number of vectors, of cells inside and in total, the offsets of vectors
        # and of cells.
        remainders, remainder_bytes = step_y * step_x, 8 * (3 + 3 * w[30] + 2 * cells)
        lines_at = own + (remainders * remainder_bytes + 63) // 64 * 64
        for task in range(lo, hi):
            n0, l0 = task // line_blocks * w[38], task % line_blocks * w[37]
            n1, l1 = min(n0 + w[38], w[5]), min(l0 + w[37], all_lines)
            for r in range(remainders):
                at = own + r * remainder_bytes
                last = min(l1, (w[13] - r // step_x + step_y - 1) // step_y)
                told = words(at, 3)
                told[0] = place_windows(at + 24, w, n1 - n0, last - l0, r // step_x, r % step_x)
                told[1], told[2] = place_cells(at + 24 + 24 * w[30], w, r // step_x, r % step_x, l0, last - l0)
            for group in range(groups):
                for n in range(n0, n1):
                    for c in range(channels_in):
                        plane_at = source + ((n * groups + group) * channels_in + c) * w[9] * w[10] * size
                        copy_planes(lines_at + (n - n0) * w[27] + c * w[28], plane_at, w, l0, l1 - l0)
                image = target + ((n0 * groups + group) * channels_out * plane + l0 * step_y * w[14]) * size
                for r in range(remainders):
                    at = own + r * remainder_bytes
                    told = words(at, 3)
                    count, cells_at = told[0], at + 24 + 24 * w[30]
                    for o in range(blocks):
                        panel = panels + (group * blocks + o) * panel_bytes
                        # Weights that are not finite make nan of padding; the adjoint has none, and is then corrected.
                        is_finite = w[32] or load(notes + (group * blocks + o) * size) == zero
                        of_cells = told[1] if is_finite else told[2]
                        into, present = image + o * block * plane * size, channels_out - o * block
                        i = 0
                        while i < count:
                            at_windows = at + 24 + 8 * i
                            rest = panel, lines_at, w, at_windows, cells_at, of_cells, into, plane * size, present
                            if count - i >= many:
                                many_at_once(*rest)
                                i += many
                            elif count - i >= some:
                                some_at_once(*rest)
                                i += some
                            else:
                                one_at_once(*rest)
                                i += 1

    return kernel


# The kernel's gradient ------------------------------------------------------------------------------------------------

COLUMNS = {1: 9, 4: 5}
"""Maps the output channels of a tile to its number of cells of the kernel."""
SCRATCH = 512
"""Bytes at the start of a workspace for the sums of a tile."""


@cache
def direct_grad_kernel(dtype: str, rows: int) -> Kernel:
    """Return the kernel for float32 or float64, with the arguments of `WORDS`, except 1 partial sums, 2
    the cotangent, 31 the result, 33 channels of x and 34 of the cotangent per block, 35 the number of parts of the
    sum."""
    return compile_kernel(
        f"direct_kernel_grad_{dtype}_{rows}",
        inspect.getsource(_factory) + f"{dtype} {rows} {COLUMNS[rows]}",
        lambda: _factory(dtype, rows),
    )


def _factory(dtype: str, rows: int) -> Any:
    from ....compiler.native.tiles import correlations

    (r, v, words), word_count = vector_functions(dtype), WORDS
    tile_rows, tile_columns, scratch_bytes = rows, COLUMNS[rows], SCRATCH
    t = correlations(dtype, rows, tile_columns)
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
