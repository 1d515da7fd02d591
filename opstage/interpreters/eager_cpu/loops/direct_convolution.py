"""Convolution without a matrix of windows, where neighbouring windows lie one cell apart.

A vector of neighbouring windows reads its cells as they stand in the image, so the sums of a tile, some windows by some
output channels, stay in registers over all cells of the kernel. A worker copies the lines that it needs within their
padding; the kernel is laid out once, so that the numbers of a step stand one after another.
Georganas et al., Anatomy of high-performance deep learning convolutions on SIMD architectures, 2018.

The words are those of `convolution`; word 6 is the laid out kernel, word 8 how many cells a copied line has, and word
34 of `lay_out` whether the kernel is to be turned round. Then a note for each of its blocks follows the laid out
kernel: 1 if some weight is no number, else 0.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ...native.compiler import Kernel, compile_kernel
from ...native.processor import has_avx512
from .convolution import WORDS

ROWS = 4
"""Output channels of a tile."""
VECTORS = 4
"""Vectors of neighbouring windows of a tile."""


def has_registers() -> bool:
    """Whether the processor has the registers for a tile: with AVX-512, 32 of 64 bytes."""
    return has_avx512()


@cache
def direct_kernel(name: str, dtype: str) -> Kernel:
    """`direct` or `lay_out`, for float32 or float64."""
    factory = {"direct": _direct, "lay_out": _lay_out}[name]
    return compile_kernel(
        f"{name}_{dtype}", inspect.getsource(factory) + f"{dtype} {ROWS} {VECTORS}", lambda: factory(dtype)
    )


def _native(name: str) -> Any:
    return import_module(f"opstage.interpreters.native.{name}")


def lines_copier(dtype: str) -> Any:
    """`copy(to, plane, first, rows, height, width, before, pitch)`: lines of a plane within their padding.

    A copied line has `pitch` cells, `before` of them zeros; lines that the plane has not are zeros.
    """
    v = _native("vectors").vectors(dtype)
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


def _lay_out(dtype: str) -> Any:
    """For each block of output channels its biases, and then for each cell of the kernel a number for each of them."""
    v, words, word_count, block = _native("vectors").vectors(dtype), _native("memory").int64s, WORDS, ROWS
    size, load, store = v.size, v.load, v.store
    zero, one = getattr(np, dtype)(0), getattr(np, dtype)(1)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        weight, bias, turned = w[2], w[4], w[34]
        channels_in, channels_out, cells = w[14], w[15], w[19] * w[20] * w[21]
        blocks = (channels_out + block - 1) // block
        block_bytes = (channels_in * cells + 1) * block * size
        for task in range(lo, hi):
            group, first = task // blocks, task % blocks * block
            to = w[6] + task * block_bytes
            note = zero
            for o in range(first, first + block):
                store(to, load(bias + (group * channels_out + o) * size) if bias != 0 and o < channels_out else zero)
                to += size
            for c in range(channels_in):
                for j in range(cells):
                    for o in range(first, first + block):
                        if o >= channels_out:
                            store(to, zero)
                        elif turned:
                            row = (group * channels_in + c) * channels_out + o
                            value = load(weight + (row * cells + cells - 1 - j) * size)
                            store(to, value)
                            if value - value != zero:
                                note = one
                        else:
                            row = (group * channels_out + o) * channels_in + c
                            store(to, load(weight + (row * cells + j) * size))
                        to += size
            if turned:
                store(w[6] + w[13] * blocks * block_bytes + task * size, note)

    return kernel


def _direct(dtype: str) -> Any:
    v, words, word_count, block, abreast = (
        _native("vectors").vectors(dtype), _native("memory").int64s, WORDS, ROWS, VECTORS
    )  # fmt: skip
    t = _native("tiles").tiles(dtype, ROWS, VECTORS)
    start, step, finish = t.start, t.step, t.finish
    lanes, size, between, copy_lines = v.lanes, v.size, v.between, lines_copier(dtype)

    @import_module("numba").njit
    def at_place(place, places, in_line, line_cells, counted):
        """Where a vector reads and writes, and which of its windows there are; the last place again behind it."""
        place = min(place, places - 1)
        line, j = place // in_line, place % in_line * lanes
        return (line * line_cells + j) * size, (line * counted + j) * size, between(0, counted - j)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        x, panels, lines_at = w[1], w[6], w[5] + worker * w[7]
        groups, channels_in, channels_out = w[13], w[14], w[15]
        height, width, rows_counted, counted = w[17], w[18], w[23], w[24]
        step_y, before_x, pitch = w[26], w[30], w[8]
        blocks = (channels_out + block - 1) // block
        line_blocks = (rows_counted + w[35] - 1) // w[35]
        abreast_in_line = (counted + lanes - 1) // lanes
        panel_bytes = (channels_in * w[20] * w[21] + 1) * block * size
        for task in range(lo, hi):
            n, l0 = task // line_blocks, task % line_blocks * w[35]
            l1 = min(l0 + w[35], rows_counted)
            rows = (l1 - l0 - 1) * step_y + (w[20] - 1) * w[32] + 1
            for group in range(groups):
                to = lines_at
                for c in range(channels_in):
                    plane = x + ((n * groups + group) * channels_in + c) * height * width * size
                    copy_lines(to, plane, l0 * step_y - w[29], rows, height, width, before_x, pitch)
                    to += rows * pitch * size
                image = w[3] + ((n * groups + group) * channels_out * rows_counted + l0) * counted * size
                places = (l1 - l0) * abreast_in_line
                for place in range(0, places, abreast):
                    a0, t0, m0 = at_place(place, places, abreast_in_line, step_y * pitch, counted)
                    a1, t1, m1 = at_place(place + 1, places, abreast_in_line, step_y * pitch, counted)
                    a2, t2, m2 = at_place(place + 2, places, abreast_in_line, step_y * pitch, counted)
                    a3, t3, m3 = at_place(place + 3, places, abreast_in_line, step_y * pitch, counted)
                    for o in range(blocks):
                        panel = panels + (group * blocks + o) * panel_bytes
                        tile = start(panel)
                        for c in range(channels_in):
                            for ky in range(w[20]):
                                cell = lines_at + (c * rows + ky * w[32]) * pitch * size
                                for _ in range(w[21]):
                                    panel += block * size
                                    tile = step(tile, (cell + a0, cell + a1, cell + a2, cell + a3), panel)
                                    cell += w[33] * size
                        into = image + o * block * rows_counted * counted * size
                        finish(
                            tile, (into + t0, into + t1, into + t2, into + t3), rows_counted * counted * size,
                            (m0, m1, m2, m3), channels_out - o * block,
                        )  # fmt: skip

    return kernel
