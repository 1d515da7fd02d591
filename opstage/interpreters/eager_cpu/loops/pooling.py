"""Pools in machine code: a task is a plane of cells, and a vector has adjacent windows of a line.

Every kernel has the same words, of which it reads what it needs:
0 x or the cotangent, 1 result, 2 positions of maxima, 3 where a 1 is written if one of them is not in the plane,
4 whether padding is counted, 5 … 7 cells, 8 … 10 kernel, 11 … 13 counts, 14 … 16 stride, 17 … 19 padding.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ....compiler.native import Kernel, KernelCall, compile_kernel
from ....compiler.native.access import vector_functions
from ....ops.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL, MAX_POOL_GATHER, MAX_POOL_SCATTER
from ....ops.primitive import Primitive
from .geometry import Sizes, Words, in_volume, kernel_words

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


WORDS = 20
_RANK = 3


def supported(dtype: str, rank: int) -> bool:
    """Return whether there are kernels for it."""
    return rank <= _RANK and dtype in ("float32", "float64")


class PoolGeometry(NamedTuple):
    """The windows of a pool: x (…, *cells), result (…, *counts). All tuples of sizes have the same length."""

    cells: Sizes
    kernel: Sizes
    counts: Sizes
    stride: Sizes
    padding: Sizes
    count_include_pad: bool = True


def pool_step(
    primitive: Primitive, dtype: str, planes: int, x: int, out: int, index: int, flag: int, geometry: PoolGeometry
) -> KernelCall:
    """Return the step of `max_pool`, `max_pool_scatter`, `max_pool_gather`, `avg_pool` or `avg_pool_grad`, from
    addresses.

    `x` is the first operand. `index` is 0 for means; `flag` is the address of a word that scatter and gather set to 1
    at a position outside the plane, with the result unfinished.
    """
    words = _words(geometry).copy()
    words[:4] = x, out, index, flag
    return KernelCall(pool_kernel(primitive, dtype), planes, words)


@lru_cache(1024)
def _words(g: PoolGeometry) -> Words:
    axes = (*(in_volume(sizes, 1) for sizes in (g.cells, g.kernel, g.counts, g.stride)), in_volume(g.padding, 0))
    return kernel_words([0, 0, 0, 0, g.count_include_pad, *(size for sizes in axes for size in sizes)], WORDS)


@cache
def pool_kernel(primitive: Primitive, dtype: str) -> Kernel:
    """Return the kernel of an op, for float32 or float64."""
    factory = _FACTORIES[primitive]
    return compile_kernel(f"{primitive.name}_{dtype}", inspect.getsource(factory) + dtype, lambda: factory(dtype))


def cells_loader(r: Any) -> Any:
    """Return `load(address, stride, mask)`: load the cells of adjacent windows."""
    load, load_some, load_all_pairs, load_pairs = r.load, r.load_some, r.load_all_pairs, r.load_pairs
    load_apart, size, every = r.load_apart, r.size, (1 << r.lanes) - 1

    def load_cells(at, stride, mask):
        if stride == 1:
            return load(at) if mask == every else load_some(at, mask)
        if stride == 2:
            return load_all_pairs(at) if mask == every else load_pairs(at, mask)
        return load_apart(at, stride * size, mask)

    return load_cells


def _max_pool(dtype: str) -> Any:
    """Compute maxima and positions. A later cell replaces the maximum only if it is greater, but nan exceeds every
    number, the last one of several."""
    r, v, words = vector_functions(dtype)
    word_count = WORDS
    lanes, size, between, load_cells = r.lanes, r.size, v.between, cells_loader(r)
    splat, rises, choose, store_some = r.splat, r.rises, r.choose, r.store_some
    positions, choose_positions, store_positions = r.positions, r.choose_positions, r.store_some_positions
    lowest = getattr(np, dtype)(-math.inf)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        depth, height, width = w[5], w[6], w[7]
        oz_count, oy_count, ox_count = w[11], w[12], w[13]
        step = w[16]
        out, index = w[1] + lo * oz_count * oy_count * ox_count * size, w[2] + lo * oz_count * oy_count * ox_count * 8
        for plane in range(lo, hi):
            x = w[0] + plane * depth * height * width * size
            for oz in range(oz_count):
                z0 = oz * w[14] - w[17]
                for oy in range(oy_count):
                    y0 = oy * w[15] - w[18]
                    for j in range(0, ox_count, lanes):
                        first = j * step - w[19]
                        windows = between(0, ox_count - j)
                        best = splat(lowest)
                        # The first cell that is not padding, for windows with only -inf.
                        row = (max(z0, 0) * height + max(y0, 0)) * width
                        place = positions(row + first, step)
                        if first < 0:
                            for i in range(min(lanes, (step - 1 - first) // step)):
                                place = choose_positions(1 << i, positions(row, 0), place)
                        for z in range(max(z0, 0), min(z0 + w[8], depth)):
                            for y in range(max(y0, 0), min(y0 + w[9], height)):
                                row = (z * height + y) * width
                                for cell in range(first, first + w[10]):
                                    # Windows whose cell is in the row.
                                    mask = windows
                                    if cell < 0:
                                        mask &= ~between(0, (step - 1 - cell) // step)
                                    if cell + (lanes - 1) * step >= width:
                                        mask &= between(0, (width - 1 - cell) // step + 1)
                                    found = load_cells(x + (row + cell) * size, step, mask)
                                    won = rises(found, best) & mask
                                    best = choose(won, found, best)
                                    place = choose_positions(won, positions(row + cell, step), place)
                        store_some(out + j * size, best, windows)
                        store_positions(index + j * 8, place, windows)
                    out += ox_count * size
                    index += ox_count * 8

    return kernel


def _max_pool_scatter(dtype: str) -> Any:
    """Compute result[position] += cotangent, in order."""
    _, v, words = vector_functions(dtype)
    word_count, size, load, store, clear_row = WORDS, v.size, v.load, v.store, v.clear_row

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        cells, count = w[5] * w[6] * w[7], w[11] * w[12] * w[13]
        index = words(w[2], hi * count)
        outside = False
        for plane in range(lo, hi):
            out = w[1] + plane * cells * size
            clear_row(out, cells)
            for i in range(plane * count, (plane + 1) * count):
                place = index[i]
                if place < 0 or place >= cells:
                    outside = True
                else:
                    at = out + place * size
                    store(at, load(at) + load(w[0] + i * size))
        if outside:
            words(w[3], 1)[0] = 1

    return kernel


def _max_pool_gather(dtype: str) -> Any:
    """Compute result = x[position]."""
    _, v, words = vector_functions(dtype)
    word_count, size, load, store = WORDS, v.size, v.load, v.store

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        cells, count = w[5] * w[6] * w[7], w[11] * w[12] * w[13]
        index = words(w[2], hi * count)
        outside = False
        for plane in range(lo, hi):
            x = w[0] + plane * cells * size
            for i in range(plane * count, (plane + 1) * count):
                place = index[i]
                if place < 0 or place >= cells:
                    outside = True
                else:
                    store(w[1] + i * size, load(x + place * size))
        if outside:
            words(w[3], 1)[0] = 1

    return kernel


def _inside() -> Any:
    def inside(start, length, cells):
        """Return the number of cells in start … start + length that are not padding."""
        return min(start + length, cells) - max(start, 0)

    return inside


def _avg_pool(dtype: str) -> Any:
    r, v, words = vector_functions(dtype)
    word_count, inside = WORDS, _inside()
    lanes, size, between, load_cells = r.lanes, r.size, v.between, cells_loader(r)
    splat, add, divide, store_some, load, store = r.splat, r.add, r.divide, r.store_some, v.load, v.store
    number = getattr(np, dtype)
    zero = number(0)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        depth, height, width = w[5], w[6], w[7]
        oz_count, oy_count, ox_count = w[11], w[12], w[13]
        step = w[16]
        padded = w[17] + w[18] + w[19] > 0 and not w[4]
        count = w[8] * w[9] * w[10]
        out = w[1] + lo * oz_count * oy_count * ox_count * size
        for plane in range(lo, hi):
            x = w[0] + plane * depth * height * width * size
            for oz in range(oz_count):
                z0 = oz * w[14] - w[17]
                for oy in range(oy_count):
                    y0 = oy * w[15] - w[18]
                    for j in range(0, ox_count, lanes):
                        first = j * step - w[19]
                        windows = between(0, ox_count - j)
                        total = splat(zero)
                        for z in range(max(z0, 0), min(z0 + w[8], depth)):
                            for y in range(max(y0, 0), min(y0 + w[9], height)):
                                row = (z * height + y) * width
                                for cell in range(first, first + w[10]):
                                    mask = windows
                                    if cell < 0:
                                        mask &= ~between(0, (step - 1 - cell) // step)
                                    if cell + (lanes - 1) * step >= width:
                                        mask &= between(0, (width - 1 - cell) // step + 1)
                                    total = add(total, load_cells(x + (row + cell) * size, step, mask))
                        if not padded:
                            total = divide(total, splat(number(count)))
                        store_some(out + j * size, total, windows)
                    if padded:
                        rows = inside(z0, w[8], depth) * inside(y0, w[9], height)
                        for i in range(ox_count):
                            at = out + i * size
                            store(at, load(at) / number(rows * inside(i * step - w[19], w[10], width)))
                    out += ox_count * size

    return kernel


def _avg_pool_grad(dtype: str) -> Any:
    _, v, words = vector_functions(dtype)
    word_count, inside = WORDS, _inside()
    size, load, store, clear_row, copy_row = v.size, v.load, v.store, v.clear_row, v.copy_row
    number = getattr(np, dtype)

    def kernel(lo, hi, worker, arguments):
        w = words(arguments, word_count)
        depth, height, width = w[5], w[6], w[7]
        oz_count, oy_count, ox_count = w[11], w[12], w[13]
        padded = w[17] + w[18] + w[19] > 0 and not w[4]
        count = w[8] * w[9] * w[10]
        tiled = w[17] + w[18] + w[19] == 0 and w[8] == w[14] and w[9] == w[15] and w[10] == w[16]
        g = w[0] + lo * oz_count * oy_count * ox_count * size
        for plane in range(lo, hi):
            out = w[1] + plane * depth * height * width * size
            clear_row(out, depth * height * width)
            for oz in range(oz_count):
                z0 = oz * w[14] - w[17]
                for oy in range(oy_count):
                    y0 = oy * w[15] - w[18]
                    if tiled:  # each cell has one window: one row is computed and copied to the others
                        first = out + (z0 * height + y0) * width * size
                        at = first
                        for _ in range(ox_count):
                            share = load(g) / number(count)
                            g += size
                            for _ in range(w[10]):
                                store(at, share)
                                at += size
                        for z in range(z0, z0 + w[8]):
                            for y in range(y0, y0 + w[9]):
                                if z > z0 or y > y0:
                                    copy_row(out + (z * height + y) * width * size, first, ox_count * w[10])
                        continue
                    rows = inside(z0, w[8], depth) * inside(y0, w[9], height)
                    for ox in range(ox_count):
                        x0 = ox * w[16] - w[19]
                        cells = rows * inside(x0, w[10], width) if padded else count
                        share = load(g) / number(cells)
                        g += size
                        for z in range(max(z0, 0), min(z0 + w[8], depth)):
                            for y in range(max(y0, 0), min(y0 + w[9], height)):
                                row = out + (z * height + y) * width * size
                                for x in range(max(x0, 0), min(x0 + w[10], width)):
                                    store(row + x * size, load(row + x * size) + share)

    return kernel


_FACTORIES: dict[Primitive, Callable[[str], Any]] = {
    MAX_POOL: _max_pool,
    MAX_POOL_SCATTER: _max_pool_scatter,
    MAX_POOL_GATHER: _max_pool_gather,
    AVG_POOL: _avg_pool,
    AVG_POOL_GRAD: _avg_pool_grad,
}
