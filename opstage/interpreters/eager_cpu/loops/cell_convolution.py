"""Convolution in vectors of channels, one cell of the kernel after the other, of up to three axes.

For a cell of the kernel, the windows in which it is not padding are listed with what they read, which stays in place: a
number of the source times the weights of adjacent channels of the target. So no product with padding is computed. The
sums of a tile, some windows by some vectors of channels, stay in registers over the channels of the source. The adjoint
has the two places of each pair exchanged; the kernel's gradient sums over the pairs of a cell.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def"
from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ...native.compiler import Kernel, compile_kernel
from .channel_convolution import ROWS

WORDS = 36
"""The words of every kernel here. The *source* is what is read, conv's x or its adjoint's operand, the *target* the
result, or conv's cotangent for its kernel's gradient; channels are those of a group.

0 source, 1 panels or sums, 2 target, 3 workspace, 4 bytes of it that a worker has, 5 images, 6 groups, 7 channels of
the source, 8 of the target, 9 … 11 cells of conv's x, 12 … 14 of the kernel, 15 … 17 windows, 18 … 20 stride, 21 … 23
padding, 24 … 26 dilation, 27 whether it is the adjoint, 28 lines of the target a block, 29 images a block, 30 elements
of the target in a block, 31 bias or 0, 32 kernel or its gradient, 33 bytes from the panels to their flags, 1 if a
weight is not finite, 34 parts of the gradient's sum, 35 bytes between weights of adjacent channels of the target
"""


@cache
def cell_kernel(name: str, dtype: str, vectors: int) -> Kernel:
    """Return `pack`, `convolve`, `grad` or `collect`, for float32 or float64."""
    factory = {"pack": _pack, "convolve": _convolve, "grad": _grad, "collect": _collect}[name]
    return compile_kernel(
        f"cells_{name}_{dtype}_{vectors}",
        inspect.getsource(factory) + f"{dtype} {vectors} {ROWS[vectors]}",
        lambda: factory(dtype, vectors),
    )


def _modules(dtype: str, vectors: int) -> tuple[Any, Any, Any, Any, Any]:
    """Return the functions for rows, for vectors, for tiles, that which transposes, and that which reads words."""
    native = "opstage.interpreters.native"
    outer = import_module(f"{native}.outer")
    return (
        import_module(f"{native}.vectors").vectors(dtype),
        import_module(f"{native}.registers").registers(dtype),
        outer.outer(dtype, ROWS[vectors], vectors),
        outer.transposition(dtype).turn,
        import_module(f"{native}.memory").int64s,
    )


def _pack(dtype: str, vectors: int) -> Any:
    """Lay out for a vector of the target's channels their biases, then for each cell of the kernel the weights of each
    channel of the source; a task is one vector."""
    v, r, _, turn, words = _modules(dtype, vectors)
    lanes, size, load, store, row, word_count = v.lanes, v.size, v.load, v.store, v.lanes * v.size, WORDS
    clear_row, splat, fma, total, load_all = v.clear_row, r.splat, r.fma, r.total, r.load
    zero, one = getattr(np, dtype)(0), getattr(np, dtype)(1)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        cells, sources, channels = w[12] * w[13] * w[14], w[7], w[8]
        panels = (channels + lanes - 1) // lanes
        apart, between = w[35], (channels * cells * size if w[27] else cells * size)
        for task in range(lo, hi):
            group, first = task // panels, task % panels * lanes
            present = min(lanes, channels - first)
            to = w[1] + task * (sources * cells + 1) * row
            clear_row(to, (sources * cells + 1) * lanes)
            for i in range(present):
                if w[31] != 0:
                    store(to + i * size, load(w[31] + (group * channels + first + i) * size))
            start = w[32] + group * sources * channels * cells * size + first * apart
            for c in range(sources):
                for k in range(0, cells, lanes):
                    at, some = to + (k * sources + c + 1) * row, min(lanes, cells - k)
                    turn(at, start + c * between + k * size, apart, present, sources * row, some)
            nothing = splat(zero)
            for i in range(sources * cells):
                nothing = fma(load_all(to + (i + 1) * row), splat(zero), nothing)
            store(w[1] + w[33] + task * size, one if total(nothing) != zero else zero)

    return kernel


@cache
def _placer() -> Any:
    """Return `place(reads, writes, w, k, images, l0, l1, size, unit, rows, padding)`."""
    words = import_module("opstage.interpreters.native.memory").int64s

    def source_of(target, k, step, padding, apart, cells, counted, back):
        """Return the place along an axis that goes with one of the target through a cell of the kernel; -1 if none."""
        if back == 0:
            at = target * step - padding + k * apart
            return at if at < cells and at >= 0 else -1
        reached = target + padding - k * apart
        if reached < 0 or reached % step != 0 or reached // step >= counted:
            return -1
        return reached // step

    def place(reads, writes, w, k, images, l0, l1, size, unit, rows, padding):
        """List what a cell of the kernel reads, and the elements of the target in lines l0 … l1 to which that goes: in
        whole tiles, with the last pair repeated. With `padding`, list the elements for which it is padding. Returns
        the number of pairs."""
        back = w[27]
        high, wide = (w[10], w[11]) if back else (w[16], w[17])
        plane, across, along = (
            (w[15] * w[16] * w[17], w[16], w[17]) if back else (w[9] * w[10] * w[11], w[10], w[11])
        )  # fmt: skip
        of_reads, of_writes = words(reads, w[30] + rows), words(writes, w[30] + rows)
        kz, ky, kx = k // (w[13] * w[14]), k // w[14] % w[13], k % w[14]
        left, step = w[23] - kx * w[26], w[20]
        first = min(max(0, -((-left) // step)), w[17])
        last = max(first, min(w[17], (w[11] - 1 + left) // step + 1))
        count = 0
        for n in range(images):
            for line in range(l0, l1):
                z = source_of(line // high, kz, w[18], w[21], w[24], w[9], w[15], back)
                y = source_of(line % high, ky, w[19], w[22], w[25], w[10], w[16], back)
                inside = z >= 0 and y >= 0
                read = (n * w[6] * w[7] * plane + (z * across + y) * along) * size
                write = ((n * (l1 - l0) + line - l0) * wide) * unit
                if padding:
                    for o in range(w[17]):
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
        if count > 0 and not padding:
            for i in range(count, (count + rows - 1) // rows * rows):
                of_reads[i], of_writes[i] = of_reads[count - 1], of_writes[count - 1]
        return count

    return place


def _convolve(dtype: str, vectors: int) -> Any:
    """A task has a block of lines of some images, and as many channels of the target as a tile."""
    v, r, t, turn, words = _modules(dtype, vectors)
    rows, many, word_count = ROWS[vectors], vectors, WORDS
    at_places, load_tile, store_tile, step = t.places, t.load, t.store, t.step
    lanes, size, row, move, every = v.lanes, v.size, v.lanes * v.size, v.move, (1 << v.lanes) - 1
    load, load_all, store_all, splat, fma, add = v.load, r.load, r.store, r.splat, r.fma, r.add
    zero, place = getattr(np, dtype)(0), _placer()

    def compute(sums, reads, writes, source, plane, sources, weights, apart):
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
        cells, back = w[12] * w[13] * w[14], w[27]
        all_lines, wide = (w[9] * w[10], w[11]) if back else (w[15] * w[16], w[17])
        plane = w[15] * w[16] * w[17] if back else w[9] * w[10] * w[11]
        panels = (channels + lanes - 1) // lanes
        apart, blocks = (sources * cells + 1) * row, (panels + many - 1) // many
        line_blocks = (all_lines + w[28] - 1) // w[28]
        reads, writes = own, own + 8 * (w[30] + rows)
        sums = (writes + 8 * (w[30] + rows) + 63) // 64 * 64
        for task in range(lo, hi):
            block, group, p = task // (blocks * groups), task // blocks % groups, task % blocks * many
            n0, l0 = block // line_blocks * w[29], block % line_blocks * w[28]
            n1, l1 = min(n0 + w[29], w[5]), min(l0 + w[28], all_lines)
            run = (l1 - l0) * wide
            panel = w[1] + (group * panels + p) * apart
            for i in range((n1 - n0) * run):
                for q in range(many):
                    move(sums + (i * many + q) * row, panel + q * apart, every, every)
            source = w[0] + (n0 * groups + group) * sources * plane * size
            for k in range(cells):
                count = place(reads, writes, w, k, n1 - n0, l0, l1, size, many * row, rows, False)
                weights = panel + (k * sources + 1) * row
                for i in range(0, count, rows):
                    compute(sums, reads + 8 * i, writes + 8 * i, source, plane * size, sources, weights, apart)
                if back == 0:
                    for q in range(p, min(p + many, panels)):
                        if load(w[1] + w[33] + (group * panels + q) * size) != zero:
                            count = place(reads, writes, w, k, n1 - n0, l0, l1, size, many * row, rows, True)
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


def _grad(dtype: str, vectors: int) -> Any:
    """A task is a part of the blocks of windows; its sums are [group, tile's channels, cell, channel of x]."""
    v, r, t, turn, words = _modules(dtype, vectors)
    rows, many, word_count = ROWS[vectors], vectors, WORDS
    at_places, load_tile, store_tile, step, clear_row = t.places, t.load, t.store, t.step, v.clear_row
    lanes, size, row, splat, fma, total = v.lanes, v.size, v.lanes * v.size, r.splat, r.fma, r.total
    load_all, store_all, add, zero, place = r.load, r.store, r.add, getattr(np, dtype)(0), _placer()

    def compute(sums, of_channels, of_sums, source, reads, writes, count, panel, apart):
        places, into = at_places(of_channels), at_places(of_sums)
        of_reads, of_writes = words(reads, count), words(writes, count)
        tile = load_tile(sums, into)
        for i in range(count):
            tile = step(tile, source + of_reads[i], places, panel + of_writes[i], apart)
        store_tile(tile, sums, into)

    def add_padding(sums, writes, count, panel, channels):
        """Add the cotangents of a vector of channels times 0, which is nan where one is not finite."""
        nothing, of_writes = splat(zero), words(writes, count)
        for i in range(count):
            nothing = fma(load_all(panel + of_writes[i]), splat(zero), nothing)
        for c in range(channels):
            store_all(sums + c * many * row, add(load_all(sums + c * many * row), nothing))

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        own, groups, sources, channels = w[3] + worker * w[4], w[6], w[7], w[8]
        cells, all_lines, wide, plane = w[12] * w[13] * w[14], w[15] * w[16], w[17], w[9] * w[10] * w[11]
        panels = (channels + lanes - 1) // lanes
        blocks, padded = (panels + many - 1) // many, (sources + rows - 1) // rows * rows
        line_blocks = (all_lines + w[28] - 1) // w[28]
        all_blocks = (w[5] + w[29] - 1) // w[29] * line_blocks
        reads, writes = own, own + 8 * (w[30] + rows)
        of_channels, of_sums = writes + 8 * (w[30] + rows), writes + 8 * (w[30] + rows + padded)
        laid = (of_sums + 8 * padded + 63) // 64 * 64
        planes_of, sums_of = words(of_channels, padded), words(of_sums, padded)
        for i in range(padded):
            planes_of[i] = min(i, sources - 1) * plane * size
            sums_of[i] = min(i, sources - 1) * many * row
        part_bytes = groups * blocks * cells * sources * many * row
        for task in range(lo, hi):
            result = w[1] + task * part_bytes
            clear_row(result, part_bytes // size)
            for block in range(all_blocks * task // w[34], all_blocks * (task + 1) // w[34]):
                n0, l0 = block // line_blocks * w[29], block % line_blocks * w[28]
                n1, l1 = min(n0 + w[29], w[5]), min(l0 + w[28], all_lines)
                run = (l1 - l0) * wide
                windows = (n1 - n0) * run
                for group in range(groups):
                    nothing = splat(zero)
                    for p in range(panels):
                        present = min(lanes, channels - p * lanes)
                        to = laid + p * windows * row
                        if present < lanes:
                            clear_row(to, windows * lanes)
                        for n in range(n0, n1):
                            channel = (n * groups + group) * channels + p * lanes
                            source = w[2] + (channel * all_lines + l0) * wide * size
                            at = to + (n - n0) * run * row
                            for j in range(0, run, lanes):
                                some = min(lanes, run - j)
                                turn(at + j * row, source + j * size, all_lines * wide * size, present, row, some)
                        for i in range(windows):
                            nothing = fma(load_all(to + i * row), splat(zero), nothing)
                    noted = total(nothing) != zero
                    source = w[0] + (n0 * groups + group) * sources * plane * size
                    for k in range(cells):
                        count = place(reads, writes, w, k, n1 - n0, l0, l1, size, row, rows, False)
                        for b in range(blocks):
                            sums = result + ((group * blocks + b) * cells + k) * sources * many * row
                            panel = laid + b * many * windows * row
                            for c in range(0, sources, rows):
                                at, into = of_channels + 8 * c, of_sums + 8 * c
                                compute(sums, at, into, source, reads, writes, count, panel, windows * row)
                        if noted:
                            count = place(reads, writes, w, k, n1 - n0, l0, l1, size, row, rows, True)
                            for p in range(panels):
                                at = ((group * blocks + p // many) * cells + k) * sources * many + p % many
                                add_padding(result + at * row, writes, count, laid + p * windows * row, sources)

    return kernel


def _collect(dtype: str, vectors: int) -> Any:
    """Add up the parts of the kernel's gradient, in order, and write it by channel; a task is a channel of x for a
    tile's channels."""
    v, _, _, turn, words = _modules(dtype, vectors)
    many, word_count, lanes, size, row, add_row = vectors, WORDS, v.lanes, v.size, v.lanes * v.size, v.add_row

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        groups, sources, channels, cells = w[6], w[7], w[8], w[12] * w[13] * w[14]
        panels = (channels + lanes - 1) // lanes
        blocks = (panels + many - 1) // many
        part_bytes = groups * blocks * cells * sources * many * row
        for task in range(lo, hi):
            group, p, c = task // sources // blocks, task // sources % blocks * many, task % sources
            sums = w[1] + (task // sources * cells * sources + c) * many * row
            for part in range(1, w[34]):
                for k in range(cells):
                    at = sums + k * sources * many * row
                    add_row(at, at + part * part_bytes, many * lanes)
            for q in range(p, min(p + many, panels)):
                present = min(lanes, channels - q * lanes)
                for k in range(0, cells, lanes):
                    to = w[32] + (((group * channels + q * lanes) * sources + c) * cells + k) * size
                    at = sums + (k * sources * many + q - p) * row
                    turn(to, at, sources * many * row, min(lanes, cells - k), sources * cells * size, present)

    return kernel
