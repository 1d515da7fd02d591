"""Convolution in vectors of channels: a number of the source times the weights that it has in adjacent output channels.

The sums of a tile, some elements of the target by some vectors of channels, stay in registers. Elements read single
numbers, so they may lie anywhere: no lane is idle at the end of a line, and no stride needs a copy. The kernel's
gradient has channels and cells of the kernel in the place of elements, and sums over those. Operands that are stored
by channel first are transposed on the way, a block at a time. Georganas et al., Anatomy of high-performance deep
learning convolutions on SIMD architectures, 2018.

Padding is treated in one of two ways. Either elements read a copy with padding (of up to two axes), all cells of the
kernel one after another; without padding that is the source itself. Or every cell of the kernel lists the elements for
which it is not padding: so no product with padding is computed, sums are loaded and stored for each cell, and there may
be three axes. The adjoint is computed in the second way, with the two places of each pair exchanged.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np

from ....compiler.native.access import vector_functions
from ....compiler.native.compiler import Kernel, compile_kernel
from .direct_convolution import planes_copier

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


ROWS = {1: 8, 2: 6, 3: 8, 4: 6}
"""Maps the vectors of channels of a tile to its elements, or to its cells of the kernel's gradient."""
WORDS = 51
"""The words of every kernel here; they are those of `direct_convolution` where they mean the same, since both copy
lines with one function. The *source* is what is read, conv's x or its adjoint's operand, the *target* the result, or
conv's cotangent for its kernel's gradient; channels are those of a group.

0 source, 1 panels or sums, 2 target, 3 workspace, 4 bytes of it that a worker has, 5 images, 6 groups, 7 channels of
the source, 8 of the target, 9 … 10 cells of conv's x, 11 … 12 of the kernel, 13 … 14 windows, 17 … 18 and 25 … 26
always 1, 19 … 20 padding, 21 … 22 dilation, 23 cells of a line that is read, 24 lines of a plane of the copy, 27 bytes
of an image that is read, 28 of a channel, 30 elements of a block at most, in whole tiles, 31 bias or 0, 32 always 0,
33 kernel or its gradient, 34 whether it is the adjoint, 35 parts of the gradient's sum, 36 lines that windows reach
beyond the first, 37 lines of the target a block, 38 images a block, 39 … 42 stride, padding, dilation and number of
windows along the first of three axes, 43 … 44 always 0, 45 … 46 stride, 47 whether the source is read in place, 48
channels of the source a pass, 15 … 16 cells of x and of the kernel along the
first of three axes, 29 bytes between weights of adjacent channels of the target, 49 bytes from the panels to their
flags, 1 if a weight is not finite, 50 tiles' channels of all groups a task
"""


@cache
def channel_kernel(name: str, dtype: str, vectors: int, by_cells: bool) -> Kernel:
    """Return `pack`, `convolve`, `grad` or `collect`, for float32 or float64; `by_cells` if each cell of the kernel
    lists its elements."""
    factory = {"pack": _pack, "convolve": _convolve, "grad": _grad, "collect": _collect}[name]
    return compile_kernel(
        f"channels_{name}_{dtype}_{vectors}_{by_cells}",
        inspect.getsource(factory) + f"{dtype} {vectors} {ROWS[vectors]} {by_cells}",
        lambda: factory(dtype, vectors, by_cells),
    )


def _modules(dtype: str, vectors: int) -> tuple[Any, Any, Any, Any, Any]:
    """Return the functions for rows, for vectors, for tiles, that which transposes, and that which reads words."""
    from ....compiler.native.tiles import outer, transposition

    r, v, words = vector_functions(dtype)
    return v, r, outer(dtype, ROWS[vectors], vectors), transposition(dtype).turn, words


def _pack(dtype: str, vectors: int, by_cells: bool) -> Any:
    """Lay out for a vector of the target's channels their biases, then the weights of each channel of the source: for
    all cells of the kernel, or if cells list their elements, of all channels for each cell. A task is one vector."""
    v, r, _, turn, words = _modules(dtype, vectors)
    lanes, size, load, store, row, word_count = v.lanes, v.size, v.load, v.store, v.lanes * v.size, WORDS
    clear_row, splat, fma, total, load_all = v.clear_row, r.splat, r.fma, r.total, r.load
    zero, one = getattr(np, dtype)(0), getattr(np, dtype)(1)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        cells, sources, channels = w[16] * w[11] * w[12], w[7], w[8]
        panels, depth = (channels + lanes - 1) // lanes, sources * cells
        between = (channels if w[34] else 1) * cells * size
        planes, run, of_plane, of_cell = sources, cells, 1, sources
        if not by_cells:
            planes, run, of_plane, of_cell = 1, depth, depth, 1
        for task in range(lo, hi):
            group, first = task // panels, task % panels * lanes
            present = min(lanes, channels - first)
            to = w[1] + task * (depth + 1) * row
            clear_row(to, lanes)
            for i in range(present):
                if w[31] != 0:
                    store(to + i * size, load(w[31] + (group * channels + first + i) * size))
            start = w[33] + group * channels * depth * size + first * w[29]
            for c in range(planes):
                for k in range(0, run, lanes):
                    at, some = to + (c * of_plane + k * of_cell + 1) * row, min(lanes, run - k)
                    turn(at, start + c * between + k * size, w[29], present, of_cell * row, some)
            if by_cells:
                nothing = splat(zero)
                for i in range(depth):
                    nothing = fma(load_all(to + (i + 1) * row), splat(zero), nothing)
                store(w[1] + w[49] + task * size, one if total(nothing) != zero else zero)

    return kernel


def _reading(dtype: str, by_cells: bool) -> tuple[Any, Any, Any]:
    """Return the functions that say what a block reads:

    source_of(copied, n0, n1, group, l0, l1, w)           where its numbers start, in the source or in a copy
    place_all(reads, writes, w, images, lines, unit, rows)     list what windows read, whatever the cell of the kernel
    place_some(reads, writes, w, k, images, l0, l1, unit, rows, padding)    list what cell k reads, and the elements to
        which that goes; with `padding`, list the elements for which it is padding

    Lists are offsets in bytes, in whole tiles, with the last pair repeated; an element has `unit` bytes. The last two
    return the number of pairs without repetitions.
    """
    (_, v, words) = vector_functions(dtype)
    size = v.size
    copy_planes = planes_copier(dtype)

    def source_of(copied, n0, n1, group, l0, l1, w):
        if by_cells:
            return w[0] + n0 * w[27] + group * w[7] * w[28]
        if w[47]:
            return w[0] + n0 * w[27] + group * w[7] * w[28] + l0 * w[45] * w[23] * size
        for n in range(n0, n1):
            for c in range(w[7]):
                plane = w[0] + ((n * w[6] + group) * w[7] + c) * w[9] * w[10] * size
                copy_planes(copied + (n - n0) * w[27] + c * w[28], plane, w, l0 * w[45], (l1 - l0 - 1) * w[45] + 1)
        return copied

    def fill(of_reads, of_writes, count, rows):
        if count > 0:
            for i in range(count, (count + rows - 1) // rows * rows):
                of_reads[i], of_writes[i] = of_reads[count - 1], of_writes[count - 1]
        return count

    def place_all(reads, writes, w, images, lines, unit, rows):
        of_reads, of_writes = words(reads, w[30]), words(writes, w[30])
        count = 0
        for image in range(images):
            for line in range(lines):
                at = image * w[27] + line * w[45] * w[23] * size
                for j in range(w[14]):
                    of_reads[count], of_writes[count] = at + j * w[46] * size, count * unit
                    count += 1
        return fill(of_reads, of_writes, count, rows)

    def along(target, k, step, padding, apart, cells, counted, back):
        """Return the place along an axis that goes with one of the target through a cell of the kernel; -1 if none."""
        if back == 0:
            at = target * step - padding + k * apart
            return at if at < cells and at >= 0 else -1
        reached = target + padding - k * apart
        if reached < 0 or reached % step != 0 or reached // step >= counted:
            return -1
        return reached // step

    def place_some(reads, writes, w, k, images, l0, l1, unit, rows, padding):
        back = w[34]
        high, wide = (w[9], w[10]) if back else (w[13], w[14])
        across = w[13] if back else w[9]
        of_reads, of_writes = words(reads, w[30]), words(writes, w[30])
        kz, ky, kx = k // (w[11] * w[12]), k // w[12] % w[11], k % w[12]
        left, step = w[20] - kx * w[22], w[46]
        first = min(max(0, -((-left) // step)), w[14])
        last = max(first, min(w[14], (w[10] - 1 + left) // step + 1))
        count = 0
        for n in range(images):
            for line in range(l0, l1):
                z = along(line // high, kz, w[39], w[40], w[41], w[15], w[42], back)
                y = along(line % high, ky, w[45], w[19], w[21], w[9], w[13], back)
                inside = z >= 0 and y >= 0
                read = n * w[27] + (z * across + y) * w[23] * size
                write = ((n * (l1 - l0) + line - l0) * wide) * unit
                if padding:
                    for o in range(w[14]):
                        if not inside or o < first or o >= last:
                            of_writes[count] = write + o * unit
                            count += 1
                elif inside and back:
                    for o in range(first, last):
                        of_reads[count] = read + o * size
                        of_writes[count] = write + (o * step - left) * unit
                        count += 1
                elif inside:
                    for o in range(first, last):
                        of_reads[count] = read + (o * step - left) * size
                        of_writes[count] = write + o * unit
                        count += 1
        return count if padding else fill(of_reads, of_writes, count, rows)

    return source_of, place_all, place_some


def _convolve(dtype: str, vectors: int, by_cells: bool) -> Any:
    """Convolve. A task has a block of lines of some images, and as many channels of the target as a tile, or all."""
    v, r, t, turn, words = _modules(dtype, vectors)
    rows, many, word_count = ROWS[vectors], vectors, WORDS
    at_places, start, load_tile, store_tile, step = t.places, t.start, t.load, t.store, t.step
    lanes, size, row, move, every = v.lanes, v.size, v.lanes * v.size, v.move, (1 << v.lanes) - 1
    load, load_all, store_all, splat, fma, add = v.load, r.load, r.store, r.splat, r.fma, r.add
    zero, (source_of, place_all, place_some) = getattr(np, dtype)(0), _reading(dtype, by_cells)

    def compute_all(sums, reads, writes, source, w, cells, c0, c1, panel, apart):
        """Add what all cells of the kernel read in channels c0 … c1 of the source to a tile."""
        count = w[11] * w[12]
        of_cells, places, into = words(cells, count), at_places(reads), at_places(writes)
        if c0 == 0:
            tile = start(panel, apart)
        else:
            tile = load_tile(sums, into)
        weights = panel + (c0 * count + 1) * row
        for c in range(c0, c1):
            channel = source + c * w[28]
            for i in range(count):
                tile = step(tile, channel + of_cells[i], places, weights, apart)
                weights += row
        store_tile(tile, sums, into)

    def compute_cell(sums, reads, writes, source, plane, sources, weights, apart):
        """Add what one cell of the kernel reads in all channels of the source to a tile."""
        places, into = at_places(reads), at_places(writes)
        tile = load_tile(sums, into)
        for _ in range(sources):
            tile = step(tile, source, places, weights, apart)
            source += plane
            weights += row
        store_tile(tile, sums, into)

    def add_padding(sums, writes, count, weights, sources):
        """Add the weights of a cell times 0, which is nan for those that are not finite."""
        nothing, of_writes = splat(zero), words(writes, count)
        for i in range(sources):
            nothing = fma(load_all(weights + i * row), splat(zero), nothing)
        for i in range(count):
            store_all(sums + of_writes[i], add(load_all(sums + of_writes[i]), nothing))

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        own, groups, sources, channels = w[3] + worker * w[4], w[6], w[7], w[8]
        cells, back = w[16] * w[11] * w[12], w[34]
        all_lines, wide = (w[15] * w[9], w[10]) if back else (w[42] * w[13], w[14])
        panels = (channels + lanes - 1) // lanes
        apart, blocks = (sources * cells + 1) * row, (panels + many - 1) // many
        line_blocks, shares = (all_lines + w[37] - 1) // w[37], groups * blocks // w[50]
        reads, writes, cells_at = own, own + 8 * w[30], own + 16 * w[30]
        sums = (cells_at + 8 * cells + 63) // 64 * 64
        copied, of_cells = sums + w[30] * many * row, words(cells_at, cells)
        for k in range(cells):
            of_cells[k] = (k // w[12] * w[21] * w[23] + k % w[12] * w[22]) * size
        for task in range(lo, hi):
            block = task // shares
            n0, l0 = block // line_blocks * w[38], block % line_blocks * w[37]
            n1, l1 = min(n0 + w[38], w[5]), min(l0 + w[37], all_lines)
            run, source, count = (l1 - l0) * wide, 0, 0
            if not by_cells:
                count = place_all(reads, writes, w, n1 - n0, l1 - l0, many * row, rows)
            for unit in range(task % shares * w[50], (task % shares + 1) * w[50]):
                group, p = unit // blocks, unit % blocks * many
                panel = w[1] + (group * panels + p) * apart
                if p == 0 or by_cells:
                    source = source_of(copied, n0, n1, group, l0, l1, w)
                if not by_cells:
                    for c0 in range(0, sources, w[48]):
                        c1 = min(c0 + w[48], sources)
                        for i in range(0, count, rows):
                            compute_all(sums, reads + 8 * i, writes + 8 * i, source, w, cells_at, c0, c1, panel, apart)
                else:
                    for i in range((n1 - n0) * run):
                        for q in range(many):
                            move(sums + (i * many + q) * row, panel + q * apart, every, every)
                    for k in range(cells):
                        count = place_some(reads, writes, w, k, n1 - n0, l0, l1, many * row, rows, False)
                        weights = panel + (k * sources + 1) * row
                        for i in range(0, count, rows):
                            compute_cell(sums, reads + 8 * i, writes + 8 * i, source, w[28], sources, weights, apart)
                        if back == 0:
                            for q in range(p, min(p + many, panels)):
                                if load(w[1] + w[49] + (group * panels + q) * size) != zero:
                                    count = place_some(reads, writes, w, k, n1 - n0, l0, l1, many * row, rows, True)
                                    add_padding(sums + (q - p) * row, writes, count, weights + (q - p) * apart, sources)
                for q in range(p, min(p + many, panels)):
                    present = min(lanes, channels - q * lanes)
                    for n in range(n0, n1):
                        into = w[2] + (((n * groups + group) * channels + q * lanes) * all_lines + l0) * wide * size
                        at = sums + ((n - n0) * run * many + q - p) * row
                        for j in range(0, run, lanes):
                            to, some = into + j * size, min(lanes, run - j)
                            turn(to, at + j * many * row, many * row, some, all_lines * wide * size, present)

    return kernel


def _grad(dtype: str, vectors: int, by_cells: bool) -> Any:
    """Sum the gradient of the kernel. A task is a part of the blocks of windows.

    Its sums are [group, tile's channels, channel of x, cell], or if cells list their windows
    [group, tile's channels, cell, channel of x].
    """
    v, r, t, turn, words = _modules(dtype, vectors)
    rows, many, word_count = ROWS[vectors], vectors, WORDS
    at_places, load_tile, store_tile, step, clear_row = t.places, t.load, t.store, t.step, v.clear_row
    lanes, size, row, splat, fma, total = v.lanes, v.size, v.lanes * v.size, r.splat, r.fma, r.total
    load_all, store_all, add, zero = r.load, r.store, r.add, getattr(np, dtype)(0)
    source_of, place_all, place_some = _reading(dtype, by_cells)

    def compute_all(sums, of_sources, of_sums, source, reads, count, panel, apart):
        """Add what the windows of a block give to a tile."""
        places, into, of_reads = at_places(of_sources), at_places(of_sums), words(reads, count)
        tile = load_tile(sums, into)
        for i in range(count):
            tile = step(tile, source + of_reads[i], places, panel, apart)
            panel += row
        store_tile(tile, sums, into)

    def compute_listed(sums, of_sources, of_sums, source, reads, writes, count, panel, apart):
        """Add what the windows give that a cell of the kernel lists."""
        places, into = at_places(of_sources), at_places(of_sums)
        of_reads, of_writes = words(reads, count), words(writes, count)
        tile = load_tile(sums, into)
        for i in range(count):
            tile = step(tile, source + of_reads[i], places, panel + of_writes[i], apart)
        store_tile(tile, sums, into)

    def add_padding(sums, writes, count, panel, sources):
        """Add the cotangents of a vector of channels times 0, which is nan where one is not finite."""
        nothing, of_writes = splat(zero), words(writes, count)
        for i in range(count):
            nothing = fma(load_all(panel + of_writes[i]), splat(zero), nothing)
        for c in range(sources):
            store_all(sums + c * many * row, add(load_all(sums + c * many * row), nothing))

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        own, groups, sources, channels = w[3] + worker * w[4], w[6], w[7], w[8]
        cells, all_lines, wide = w[16] * w[11] * w[12], w[42] * w[13], w[14]
        # What is added up over one list of windows: all cells of the kernel, or one of them at a time.
        lists, listed = (cells, sources) if by_cells else (1, sources * cells)
        panels = (channels + lanes - 1) // lanes
        blocks, padded = (panels + many - 1) // many, (listed + rows - 1) // rows * rows
        line_blocks = (all_lines + w[37] - 1) // w[37]
        all_blocks = (w[5] + w[38] - 1) // w[38] * line_blocks
        reads, writes, of_sources = own, own + 8 * w[30], own + 16 * w[30]
        of_sums = of_sources + 8 * padded
        laid = (of_sums + 8 * padded + 63) // 64 * 64
        copied = laid + blocks * many * w[30] * row
        sources_of, sums_of = words(of_sources, padded), words(of_sums, padded)
        for i in range(padded):
            k = min(i, listed - 1)
            c, cell = (k, 0) if by_cells else (k // cells, k % cells)
            sources_of[i] = c * w[28] + (cell // w[12] * w[21] * w[23] + cell % w[12] * w[22]) * size
            sums_of[i] = k * many * row
        part_bytes = groups * blocks * cells * sources * many * row
        for task in range(lo, hi):
            result = w[1] + task * part_bytes
            clear_row(result, part_bytes // size)
            for block in range(all_blocks * task // w[35], all_blocks * (task + 1) // w[35]):
                n0, l0 = block // line_blocks * w[38], block % line_blocks * w[37]
                n1, l1 = min(n0 + w[38], w[5]), min(l0 + w[37], all_lines)
                run, count = (l1 - l0) * wide, 0
                windows = (n1 - n0) * run
                if not by_cells:
                    count = place_all(reads, writes, w, n1 - n0, l1 - l0, row, rows)
                for group in range(groups):
                    nothing = splat(zero)
                    for p in range(panels):
                        present = min(lanes, channels - p * lanes)
                        to = laid + p * windows * row
                        if present < lanes:
                            clear_row(to, windows * lanes)
                        for n in range(n0, n1):
                            channel = (n * groups + group) * channels + p * lanes
                            cotangent = w[2] + (channel * all_lines + l0) * wide * size
                            at = to + (n - n0) * run * row
                            for j in range(0, run, lanes):
                                some = min(lanes, run - j)
                                turn(at + j * row, cotangent + j * size, all_lines * wide * size, present, row, some)
                        if by_cells:
                            for i in range(windows):
                                nothing = fma(load_all(to + i * row), splat(zero), nothing)
                    noted = total(nothing) != zero
                    source = source_of(copied, n0, n1, group, l0, l1, w)
                    for k in range(lists):
                        if by_cells:
                            count = place_some(reads, writes, w, k, n1 - n0, l0, l1, row, rows, False)
                        for b in range(blocks):
                            sums = result + ((group * blocks + b) * lists + k) * listed * many * row
                            panel = laid + b * many * windows * row
                            for c in range(0, listed, rows):
                                at, into = of_sources + 8 * c, of_sums + 8 * c
                                if by_cells:
                                    compute_listed(sums, at, into, source, reads, writes, count, panel, windows * row)
                                else:
                                    compute_all(sums, at, into, source, reads, count, panel, windows * row)
                        if noted:
                            count = place_some(reads, writes, w, k, n1 - n0, l0, l1, row, rows, True)
                            for p in range(panels):
                                at = ((group * blocks + p // many) * cells + k) * sources * many + p % many
                                add_padding(result + at * row, writes, count, laid + p * windows * row, sources)

    return kernel


def _collect(dtype: str, vectors: int, by_cells: bool) -> Any:
    """Add up the parts of the kernel's gradient, in order, and write it by channel. A task has as many cells as a
    vector has numbers, of all channels of x or of one, in the channels of a tile."""
    v, _, _, turn, words = _modules(dtype, vectors)
    many, word_count, lanes, size, row, add_row = vectors, WORDS, v.lanes, v.size, v.lanes * v.size, v.add_row

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        groups, sources, channels, cells = w[6], w[7], w[8], w[16] * w[11] * w[12]
        panels, depth = (channels + lanes - 1) // lanes, sources * cells
        blocks = (panels + many - 1) // many
        planes, run, apart = (sources, cells, sources * many * row) if by_cells else (1, depth, many * row)
        runs = (run + lanes - 1) // lanes
        part_bytes = groups * blocks * depth * many * row
        for task in range(lo, hi):
            unit, c, k = task // (planes * runs), task // runs % planes, task % runs * lanes
            group, p, count = unit // blocks, unit % blocks * many, min(lanes, run - k)
            sums = w[1] + (unit * depth + c) * many * row + k * apart
            each, length = (count, many * lanes) if by_cells else (1, count * many * lanes)
            for part in range(1, w[35]):
                for i in range(each):
                    at = sums + i * apart
                    add_row(at, at + part * part_bytes, length)
            for q in range(p, min(p + many, panels)):
                to = w[33] + ((group * channels + q * lanes) * depth + c * cells + k) * size
                turn(to, sums + (q - p) * row, apart, count, depth * size, min(lanes, channels - q * lanes))

    return kernel
