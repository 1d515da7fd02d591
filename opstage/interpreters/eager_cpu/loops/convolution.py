"""Convolutions as matrix products in the thread pool: a block of windows at a time, in the cache of a core.

A worker copies the windows of a block into the rows of a matrix, one for each cell of the kernel (im2col), and
multiplies it by the kernel, whose rows are its output channels; a bias is added while the result is still in the cache.
The kernel's gradient is the product with those rows transposed, and the adjoint computes rows by a product and adds
them to their sources (col2im). Chellapilla et al., High performance convolutional neural networks for document
processing, 2006.

Sizes are named as in conv: x (images, groups·channels_in, D, H, W), kernel (groups·channels_out,
channels_in, *kernel), result (images, groups·channels_out, *counts). A *line* is a row of windows along the last axis.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np

from ....compiler.native.access import vector_functions
from ....compiler.native.blas import find_blas
from ....compiler.native.compiler import Kernel, compile_kernel
from .pooling import cells_loader

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


WORDS = 36
"""The arguments of all kernels here: addresses, then the sizes of `geometry.ConvGeometry`.

0 cblas_?gemm, 1 x, 2 kernel, 3 result, 4 bias or 0, 5 workspace, 6 partial sums;
7 bytes of workspace per worker, 8 the offset of the tile in it, 9 images per block, 10 lines or channels per block,
11 parts, 12 images, 13 groups, 14 channels_in, 15 channels_out, 16 … 18 cells, 19 … 21 kernel, 22 … 24 counts,
25 … 27 stride, 28 … 30 padding, 31 … 33 dilation, 34 whether x itself is the matrix of windows, 35 lines a block
"""


@cache
def convolution_kernel(name: str, dtype: str) -> Kernel | None:
    """Return `conv`, `conv_kernel_grad`, `combine`, `col2im` or `turn`, for float32 or float64; None without a BLAS."""
    blas = find_blas()
    if blas is None:
        return None
    factory = {
        "conv": _conv,
        "conv_kernel_grad": _conv_kernel_grad,
        "combine": _combine,
        "col2im": _col2im,
        "turn": _turn,
    }[name]
    return compile_kernel(
        f"{name}_{dtype}", inspect.getsource(factory) + f"{dtype} {blas.wide}", lambda: factory(dtype, blas.wide)
    )


def product_functions(dtype: str, wide: bool) -> tuple[Any, Any, Any]:
    """Return the functions for vectors, the one that reads words, and the matrix product."""
    from ....compiler.native.intrinsics import gemm_by_address

    return *vector_functions(dtype)[1:], gemm_by_address(dtype, wide)


def _reach() -> Any:
    def reach(left, cells, count, stride):
        """Return the windows lo … hi along an axis for which the cell `left` before the window's start is not
        padding."""
        lo = min(max(0, -((-left) // stride)), count)
        return lo, max(lo, min(count, (cells - 1 + left) // stride + 1))

    return reach


def _im2col(dtype: str) -> Any:
    """Return `fill(columns, x, w, n0, n1, group, l0, l1)`: write a row of the block's windows for each cell of the
    kernel."""
    (r, v, _), reach = vector_functions(dtype), _reach()
    lanes, size, between, move = v.lanes, v.size, v.between, v.move
    load_cells, store_some = cells_loader(r), r.store_some

    def fill(columns, x, w, n0, n1, group, l0, l1):
        groups, channels = w[13], w[14]
        depth, height, width = w[16], w[17], w[18]
        rows_counted, counted = w[23], w[24]
        step_z, step_y, step_x = w[25], w[26], w[27]
        plane = depth * height * width
        first_z, first_y = l0 // rows_counted, l0 % rows_counted
        to = columns
        for c in range(channels):
            for kz in range(w[19]):
                for ky in range(w[20]):
                    for kx in range(w[21]):
                        before_z = w[28] - kz * w[31]
                        before_y = w[29] - ky * w[32]
                        left = w[30] - kx * w[33]
                        lo, hi = reach(left, width, counted, step_x)
                        for n in range(n0, n1):
                            at = x + ((n * groups + group) * channels + c) * plane * size
                            for j in range(0, counted, lanes):
                                read, write = between(lo - j, hi - j), between(0, counted - j)
                                z, y = first_z * step_z - before_z, first_y * step_y - before_y
                                oy, line = first_y, to + j * size
                                for _ in range(l0, l1):
                                    inside = z >= 0 and z < depth and y >= 0 and y < height
                                    row = at + ((z * height + y) * width) * size
                                    if not inside:
                                        move(line, line, 0, write)
                                    elif step_x == 1:
                                        move(line, row + (j - left) * size, read, write)
                                    else:
                                        cells = load_cells(row + (j * step_x - left) * size, step_x, read)
                                        store_some(line, cells, write)
                                    line += counted * size
                                    oy += 1
                                    y += step_y
                                    if oy == rows_counted:
                                        oy, y = 0, -before_y
                                        z += step_z
                            to += (l1 - l0) * counted * size

    return fill


def _conv(dtype: str, wide: bool) -> Any:
    v, words, gemm = product_functions(dtype, wide)
    size, copy_row, shift_row, load = v.size, v.copy_row, v.shift_row, v.load
    word_count, fill = WORDS, _im2col(dtype)
    zero, one = _numbers(dtype)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        f, x, weight, out, bias = w[0], w[1], w[2], w[3], w[4]
        columns = w[5] + worker * w[7]
        tile = columns + w[8]
        groups, channels_in, channels_out = w[13], w[14], w[15]
        counted = w[24]
        lines = w[22] * w[23]
        plane, depth = lines * counted, channels_in * w[19] * w[20] * w[21]
        line_blocks = (lines + w[35] - 1) // w[35]
        for task in range(lo, hi):
            n0, l0 = task // line_blocks * w[9], task % line_blocks * w[35]
            n1, l1 = min(n0 + w[9], w[12]), min(l0 + w[35], lines)
            part = (l1 - l0) * counted
            length = (n1 - n0) * part
            for group in range(groups):
                a = weight + group * channels_out * depth * size
                place = out + (((n0 * groups + group) * channels_out) * plane + l0 * counted) * size
                b, ldb = columns, length
                if w[34]:
                    b = x + (((n0 * groups + group) * channels_in) * plane + l0 * counted) * size
                    ldb = plane
                else:
                    fill(columns, x, w, n0, n1, group, l0, l1)
                single = n1 - n0 == 1
                c = place if single else tile
                ldc = plane if single else length
                gemm(f, 0, 0, channels_out, length, depth, one, a, depth, b, ldb, zero, c, ldc)
                if bias != 0:
                    for o in range(channels_out):
                        shift_row(c + o * ldc * size, load(bias + (group * channels_out + o) * size), length)
                if not single:
                    for n in range(n1 - n0):
                        image = place + n * groups * channels_out * plane * size
                        for o in range(channels_out):
                            copy_row(image + o * plane * size, tile + (o * length + n * part) * size, part)

    return kernel


def _conv_kernel_grad(dtype: str, wide: bool) -> Any:
    """Argument 2 is the cotangent of conv's result, 3 the kernel's; parts after the first go to the partial sums."""
    v, words, gemm = product_functions(dtype, wide)
    size, copy_row, clear_row = v.size, v.copy_row, v.clear_row
    word_count, fill = WORDS, _im2col(dtype)
    zero, one = _numbers(dtype)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        f, x, cotangent, out = w[0], w[1], w[2], w[3]
        columns = w[5] + worker * w[7]
        tile = columns + w[8]
        groups, channels_in, channels_out = w[13], w[14], w[15]
        counted = w[24]
        lines = w[22] * w[23]
        plane, depth = lines * counted, channels_in * w[19] * w[20] * w[21]
        line_blocks = (lines + w[35] - 1) // w[35]
        blocks = (w[12] + w[9] - 1) // w[9] * line_blocks
        total = groups * channels_out * depth
        for task in range(lo, hi):
            start, stop = blocks * task // w[11], blocks * (task + 1) // w[11]
            into = out if task == 0 else w[6] + (task - 1) * total * size
            if start == stop:
                clear_row(into, total)
            for block in range(start, stop):
                n0, l0 = block // line_blocks * w[9], block % line_blocks * w[35]
                n1, l1 = min(n0 + w[9], w[12]), min(l0 + w[35], lines)
                part = (l1 - l0) * counted
                length = (n1 - n0) * part
                beta = zero if block == start else one
                for group in range(groups):
                    a = cotangent + (((n0 * groups + group) * channels_out) * plane + l0 * counted) * size
                    lda = plane
                    if n1 - n0 > 1:
                        for n in range(n1 - n0):
                            image = a + n * groups * channels_out * plane * size
                            for o in range(channels_out):
                                copy_row(tile + (o * length + n * part) * size, image + o * plane * size, part)
                        a, lda = tile, length
                    b, ldb = columns, length
                    if w[34]:
                        b = x + (((n0 * groups + group) * channels_in) * plane + l0 * counted) * size
                        ldb = plane
                    else:
                        fill(columns, x, w, n0, n1, group, l0, l1)
                    c = into + group * channels_out * depth * size
                    gemm(f, 0, 1, channels_out, depth, length, one, a, lda, b, ldb, beta, c, depth)

    return kernel


def _combine(dtype: str, wide: bool) -> Any:
    """Add the partial sums to the result, in order; a task is a row of the kernel."""
    v, words, _ = product_functions(dtype, wide)
    size, add_row = v.size, v.add_row
    word_count = WORDS

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        depth = w[14] * w[19] * w[20] * w[21]
        total = w[13] * w[15] * depth
        for part in range(w[11] - 1):
            add_row(w[3] + lo * depth * size, w[6] + (part * total + lo * depth) * size, (hi - lo) * depth)

    return kernel


def _turn(dtype: str, wide: bool) -> Any:
    """Write the kernel of the conv that is a conv's adjoint in x to the partial sums: [c, o, -j] = kernel[o, c, j].

    After it comes a flag for each c: 1 if some weight is not finite, else 0.
    """
    v, words, _ = product_functions(dtype, wide)
    size, load, store = v.size, v.load, v.store
    word_count = WORDS
    zero, one = _numbers(dtype)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        channels_in, channels_out, cells = w[14], w[15], w[19] * w[20] * w[21]
        for task in range(lo, hi):
            group, c = task // channels_in, task % channels_in
            note = zero
            for o in range(channels_out):
                source = w[2] + ((group * channels_out + o) * channels_in + c) * cells * size
                to = w[6] + (task * channels_out + o) * cells * size
                for j in range(cells):
                    value = load(source + j * size)
                    store(to + (cells - 1 - j) * size, value)
                    if value - value != zero:
                        note = one
            store(w[6] + (w[13] * channels_in * channels_out * cells + task) * size, note)

    return kernel


def _col2im(dtype: str, wide: bool) -> Any:
    """Compute conv's adjoint: argument 1 is the result, with the bias of its channels, 3 the operand with conv's
    counts.

    Argument 34 is the number of flags, stored in argument 6 from byte offset argument 8 on. If there are flags and all
    are 0, nothing is done: the result was already computed with the flipped kernel.
    """
    v, words, gemm = product_functions(dtype, wide)
    lanes, size, between, accumulate = v.lanes, v.size, v.between, v.accumulate
    clear_row, shift_row, load, store = v.clear_row, v.shift_row, v.load, v.store
    word_count, reach = WORDS, _reach()
    zero, one = _numbers(dtype)

    def add_columns(columns, at, w, channels, l0, l1):
        depth, height, width = w[16], w[17], w[18]
        rows_counted, counted = w[23], w[24]
        step_z, step_y, step_x = w[25], w[26], w[27]
        source = columns
        for c in range(channels):
            image = at + c * depth * height * width * size
            for kz in range(w[19]):
                for ky in range(w[20]):
                    for kx in range(w[21]):
                        left = w[30] - kx * w[33]
                        lo, hi = reach(left, width, counted, step_x)
                        for line in range(l0, l1):
                            z = line // rows_counted * step_z - w[28] + kz * w[31]
                            y = line % rows_counted * step_y - w[29] + ky * w[32]
                            if z >= 0 and z < depth and y >= 0 and y < height:
                                row = image + ((z * height + y) * width - left) * size
                                if step_x == 1:
                                    for j in range(0, counted, lanes):
                                        accumulate(row + j * size, source + j * size, between(lo - j, hi - j))
                                else:
                                    for i in range(lo, hi):
                                        cell = row + i * step_x * size
                                        store(cell, load(cell) + load(source + i * size))
                            source += counted * size

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        f, out, weight, x, bias = w[0], w[1], w[2], w[3], w[4]
        columns = w[5] + worker * w[7]
        noted = w[34] == 0
        for i in range(w[34]):
            if load(w[6] + w[8] + i * size) != zero:
                noted = True
        if not noted:
            return
        groups, channels_in, channels_out = w[13], w[14], w[15]
        counted, cells = w[24], w[19] * w[20] * w[21]
        lines = w[22] * w[23]
        plane, depth = lines * counted, channels_in * cells
        image_size = w[16] * w[17] * w[18]
        blocks = (channels_in + w[10] - 1) // w[10]
        for task in range(lo, hi):
            image = task // (groups * blocks)
            group, c0 = task // blocks % groups, task % blocks * w[10]
            c1 = min(c0 + w[10], channels_in)
            at = out + ((image * groups + group) * channels_in + c0) * image_size * size
            clear_row(at, (c1 - c0) * image_size)
            a = weight + (group * channels_out * depth + c0 * cells) * size
            l0 = 0
            while l0 < lines:
                l1 = min(l0 + w[35], lines)
                length = (l1 - l0) * counted
                b = x + ((image * groups + group) * channels_out * plane + l0 * counted) * size
                rows = (c1 - c0) * cells
                gemm(f, 1, 0, rows, length, channels_out, one, a, depth, b, plane, zero, columns, length)
                add_columns(columns, at, w, c1 - c0, l0, l1)
                l0 = l1
            if bias != 0:
                for c in range(c1 - c0):
                    number = load(bias + (group * channels_in + c0 + c) * size)
                    shift_row(at + c * image_size * size, number, image_size)

    return kernel


def _numbers(dtype: str) -> tuple[Any, Any]:
    real = getattr(np, dtype)
    return real(0), real(1)
