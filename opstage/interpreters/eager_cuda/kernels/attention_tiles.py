"""Attention by tiles of weights that never leave a block's memory (Rabe & Staats 2021; Dao et al. 2022).

A block has a tile of queries and iterates over tiles of keys: scores, exponentials relative to the maximal score so
far, and their product with the values, rescaled when the maximum grows. For the cotangents, the weights of a tile are
recomputed from the two residuals per query; one kernel has a tile of queries per block, another a tile of keys. So no
sum is shared by blocks, and every sum has a fixed order. Products are float32 throughout, on the CUDA cores.

With `causal`, about half of the tiles have only weights of 0. These can be skipped unless they are multiplied by a nan
or an infinity; one pass over the operands sets flags where there are any, and a tile is skipped only where there are
none.

A block has side² threads and tiles side·4 rows and columns; each thread has 4·4 of the weights, in registers. Of a
result it has 4 rows and width/side columns; `width` is a power of two that is at least both head sizes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ....compiler.gpu.language import (
    ALIGNED,
    HALF_WARP,
    LOWEST,
    ONE,
    ZERO,
    barrier,
    cuda,
    device_function,
    exp,
    quotient,
    remainder,
    shuffle,
    steps,
    times,
    unrolled_steps,
)
from .elementwise import Kernel

CHUNK = 16
"""Components that are multiplied, or keys whose values are added, between two barriers."""


@device_function
def place_in_mask(row: Any, axes: Any, rank: Any) -> Any:
    """Return the offset in the mask of a row of weights.

    axes   (size, stride of the mask) along each leading axis and that of queries, last axis first; then the mask's
    stride along the keys
    """
    at, rest = 0, row
    for k in range(rank):
        at += remainder(rest, axes[2 * k]) * axes[2 * k + 1]
        rest = quotient(rest, axes[2 * k])
    return at


def flags_kernel(
    rows: Any, lanes: Any, flags: Any, x: Any, y: Any, count: Any, chunks: Any, in_x: Any, in_y: Any
) -> None:
    """Set flags[t] = 1 if there is a nan or an infinity in chunk t of x or of y, else 0.

    A chunk is CHUNK rows of a matrix of `count` rows, the last one of the `chunks` of a matrix maybe less; a row has
    in_x numbers of x and in_y of y, and a chunk has the lanes of a warp.
    """
    lane = remainder(cuda.threadIdx.x, lanes)
    for chunk in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
        matrix = quotient(chunk, chunks)
        start = (chunk - matrix * chunks) * CHUNK
        first, length = matrix * count + start, min(CHUNK, count - start)
        found = ZERO
        for i in unrolled_steps(lane, length * in_x, lanes):
            found += ZERO * x[first * in_x + i]
        for i in unrolled_steps(lane, length * in_y, lanes):
            found += ZERO * y[first * in_y + i]
        distance = HALF_WARP
        while distance > 0:
            found += shuffle(found, distance)
            distance = distance >> 1
        if lane == 0:
            flags[chunk] = 0 if found == ZERO else 1


@device_function
def flagged(flags: Any, matrix: Any, start: Any, rows: Any, count: Any) -> Any:
    """Return whether a chunk of a tile of the matrix is flagged: `rows` of `count` rows, from `start` on."""
    chunks = quotient(count + CHUNK - 1, CHUNK)
    found = 0
    for chunk in range(quotient(start, CHUNK), quotient(min(start + rows, count) - 1, CHUNK) + 1):
        found |= flags[matrix * chunks + chunk]
    return found != 0


class _Steps(NamedTuple):
    """The device functions of the kernels of one size."""

    multiply: Any
    accumulate: Any
    keep: Any
    top_of_row: Any
    sum_of_row: Any


@cache
def _steps_of(width: int, side: int) -> _Steps:
    rows, per, half = side * 4, width // side, side // 2

    @device_function
    def multiply(
        s: Any, left: Any, right: Any, x: Any, in_x: Any, n: Any, y: Any, in_y: Any, m: Any, size: Any
    ) -> None:
        """Compute s = x·yᵀ for n remaining rows from `in_x` on, and m remaining rows from `in_y` on."""
        thread = cuda.threadIdx.x
        i, j = quotient(thread, side) * 4, remainder(thread, side) * 4
        for a in range(16):
            s[a] = ZERO
        for start in steps(0, size, CHUNK):
            barrier()
            for cell in steps(thread, rows * CHUNK, cuda.blockDim.x):
                row, c = quotient(cell, CHUNK), remainder(cell, CHUNK)
                left[c, row] = x[(in_x + row) * size + start + c] if row < n and start + c < size else ZERO
                right[c, row] = y[(in_y + row) * size + start + c] if row < m and start + c < size else ZERO
            barrier()
            for c in range(CHUNK):
                for a in range(4):
                    for b in range(4):
                        s[4 * a + b] += left[c, i + a] * right[c, j + b]

    @device_function
    def accumulate(total: Any, p: Any, values: Any, x: Any, in_x: Any, n: Any, size: Any) -> None:
        """Compute total += p·x with the weights p of a tile, for n remaining rows of x from `in_x` on."""
        thread = cuda.threadIdx.x
        i, j = quotient(thread, side) * 4, remainder(thread, side) * per
        for start in steps(0, rows, CHUNK):
            barrier()
            for cell in steps(thread, CHUNK * width, cuda.blockDim.x):
                row, c = quotient(cell, width), remainder(cell, width)
                inside = start + row < n and start + row < rows and c < size
                values[row, c] = x[(in_x + start + row) * size + c] if inside else ZERO
            barrier()
            for row in range(min(CHUNK, rows)):
                for a in range(4):
                    for b in range(per):
                        total[per * a + b] += p[start + row, i + a] * values[row, j + b]

    @device_function
    def keep(p: Any, s: Any) -> None:
        """Store the tile p = s, row by row; the next barrier completes it."""
        thread = cuda.threadIdx.x
        i, j = quotient(thread, side) * 4, remainder(thread, side) * 4
        for a in range(4):
            for b in range(4):
                p[j + b, i + a] = s[4 * a + b]

    @device_function
    def top_of_row(value: Any) -> Any:
        """Return the maximum over the threads that share a row; unspecified if there is a nan."""
        distance = half
        while distance > 0:
            other = shuffle(value, distance)
            value = other if other > value else value
            distance = distance >> 1
        return value

    @device_function
    def sum_of_row(value: Any) -> Any:
        distance = half
        while distance > 0:
            value += shuffle(value, distance)
            distance = distance >> 1
        return value

    return _Steps(multiply, accumulate, keep, top_of_row, sum_of_row)


def _shapes(width: int, side: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Return the shapes in shared memory: CHUNK components of a tile's rows, CHUNK rows of values, and a tile of
    weights.

    Rows are padded by 4, so that they stay aligned to 16 bytes and start in different banks.
    """
    rows = 4 * side
    return (CHUNK, rows + 4), (CHUNK, width + 4), (rows, rows + 4)


@cache
def forward_kernel(width: int, side: int, masked: bool) -> Kernel:
    multiply, accumulate, keep, top_of_row, sum_of_row = _steps_of(width, side)
    chunk, part, weights = _shapes(width, side)
    threads, rows, per = side * side, side * 4, width // side
    mine = 4 * per

    def attention(
        count: Any,
        out: Any,
        peaks: Any,
        totals: Any,
        q: Any,
        k: Any,
        v: Any,
        flags: Any,
        mask: Any,
        axes: Any,
        rank: Any,
        causal: Any,
        queries: Any,
        keys: Any,
        size: Any,
        columns: Any,
        across: Any,
        factor: Any,
    ) -> None:
        """Compute out = softmax(factor·q·kᵀ)·v over the allowed keys; `count` tiles of queries, `across` per matrix.

        size, columns   sizes of keys and of values
        flags           flags of `flags_kernel` for values
        """
        left = cuda.shared.array(chunk, np.float32, ALIGNED)
        right = cuda.shared.array(chunk, np.float32, ALIGNED)
        values = cuda.shared.array(part, np.float32, ALIGNED)
        p = cuda.shared.array(weights, np.float32, ALIGNED)
        s = cuda.local.array(16, np.float32)
        found = cuda.local.array(mine, np.float32)
        peak = cuda.local.array(4, np.float32)
        total = cuda.local.array(4, np.float32)
        at = cuda.local.array(4, np.int32)
        i, j = quotient(cuda.threadIdx.x, side) * 4, remainder(cuda.threadIdx.x, side)
        for tile in steps(quotient(cuda.grid(1), threads), count, quotient(cuda.gridsize(1), threads)):
            matrix, first = quotient(tile, across), remainder(tile, across) * rows
            in_q = matrix * queries + first
            for a in range(4):
                peak[a], total[a], at[a] = LOWEST, ZERO, 0
                if masked:
                    at[a] = place_in_mask(in_q + min(i + a, queries - 1 - first), axes, rank)
            for a in range(mine):
                found[a] = ZERO
            last = min(keys, first + rows) if causal != 0 else keys
            for start in steps(0, keys, rows):
                if start >= last and not flagged(flags, matrix, start, rows, keys):
                    continue
                in_k = matrix * keys + start
                multiply(s, left, right, q, in_q, queries - first, k, in_k, keys - start, size)
                for a in range(4):
                    top = LOWEST
                    for b in range(4):
                        key = start + 4 * j + b
                        seen = key < keys and (causal == 0 or key <= first + i + a)
                        if masked and seen:
                            seen = mask[at[a] + key * axes[2 * rank]] != 0
                        s[4 * a + b] = times(s[4 * a + b], factor) if seen else LOWEST
                        top = s[4 * a + b] if s[4 * a + b] > top else top
                    top = top_of_row(top)
                    top = peak[a] if peak[a] > top else top
                    shift = ZERO if top == LOWEST else top
                    more = ZERO
                    for b in range(4):
                        s[4 * a + b] = exp(s[4 * a + b] - shift)
                        more += s[4 * a + b]
                    less = exp(peak[a] - shift)
                    total[a] = total[a] * less + sum_of_row(more)
                    peak[a] = top
                    for b in range(per):
                        found[per * a + b] *= less
                keep(p, s)
                accumulate(found, p, values, v, in_k, keys - start, columns)
            for a in range(4):
                if first + i + a < queries:
                    row = in_q + i + a
                    if masked and peak[a] == LOWEST and total[a] == ZERO:  # a total that is nan stays
                        peak[a], total[a] = ZERO, ONE
                    if j == 0:
                        peaks[row] = peak[a]
                        totals[row] = total[a]
                    for b in range(per):
                        if per * j + b < columns:
                            out[row * columns + per * j + b] = found[per * a + b] / total[a]

    return attention


@cache
def queries_kernel(width: int, side: int, masked: bool) -> Kernel:
    multiply, accumulate, keep, _, sum_of_row = _steps_of(width, side)
    chunk, part, weights = _shapes(width, side)
    threads, rows, per = side * side, side * 4, width // side
    mine = 4 * per

    def attention_queries_grad(
        count: Any,
        dq: Any,
        means: Any,
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        peaks: Any,
        totals: Any,
        flags: Any,
        mask: Any,
        axes: Any,
        rank: Any,
        causal: Any,
        queries: Any,
        keys: Any,
        size: Any,
        columns: Any,
        across: Any,
        factor: Any,
    ) -> None:
        """Compute dq = factor·Σ p·(s - mean)·k with s = g·vᵀ, and mean = Σ p·s of each query; `count` tiles of queries.

        It iterates over the keys twice, since a mean is known only after all keys. Keeping Σ p·s·k and Σ p·k until then
        would save one of nine products, but the registers would halve the number of threads. The flags are for keys and
        values: a query or cotangent that is not finite already makes its row nan with the allowed keys.
        """
        left = cuda.shared.array(chunk, np.float32, ALIGNED)
        right = cuda.shared.array(chunk, np.float32, ALIGNED)
        values = cuda.shared.array(part, np.float32, ALIGNED)
        p = cuda.shared.array(weights, np.float32, ALIGNED)
        s = cuda.local.array(16, np.float32)
        found = cuda.local.array(mine, np.float32)
        mean = cuda.local.array(4, np.float32)
        at = cuda.local.array(4, np.int32)
        i, j = quotient(cuda.threadIdx.x, side) * 4, remainder(cuda.threadIdx.x, side)
        for tile in steps(quotient(cuda.grid(1), threads), count, quotient(cuda.gridsize(1), threads)):
            matrix, first = quotient(tile, across), remainder(tile, across) * rows
            in_q = matrix * queries + first
            for a in range(4):
                mean[a], at[a] = ZERO, 0
                if masked:
                    at[a] = place_in_mask(in_q + min(i + a, queries - 1 - first), axes, rank)
            for a in range(mine):
                found[a] = ZERO
            last = min(keys, first + rows) if causal != 0 else keys
            for turn in range(2):
                for start in steps(0, keys, rows):
                    if start >= last and not flagged(flags, matrix, start, rows, keys):
                        continue
                    in_k = matrix * keys + start
                    multiply(s, left, right, q, in_q, queries - first, k, in_k, keys - start, size)
                    for a in range(4):
                        row = in_q + min(i + a, queries - 1 - first)
                        peak, share = peaks[row], ONE / totals[row]
                        for b in range(4):
                            key = start + 4 * j + b
                            seen = key < keys and (causal == 0 or key <= first + i + a)
                            if masked and seen:
                                seen = mask[at[a] + key * axes[2 * rank]] != 0
                            s[4 * a + b] = (exp(times(s[4 * a + b], factor) - peak) if seen else ZERO) * share
                    keep(p, s)
                    multiply(s, left, right, g, in_q, queries - first, v, in_k, keys - start, columns)
                    for a in range(4):
                        for b in range(4):
                            weight = p[4 * j + b, i + a]
                            if turn == 0:
                                mean[a] += weight * s[4 * a + b]
                            else:
                                inside = start + 4 * j + b < keys
                                s[4 * a + b] = weight * (s[4 * a + b] - mean[a]) * factor if inside else ZERO
                    if turn != 0:
                        keep(p, s)
                        accumulate(found, p, values, k, in_k, keys - start, size)
                if turn == 0:
                    for a in range(4):
                        mean[a] = sum_of_row(mean[a])
            for a in range(4):
                if first + i + a < queries:
                    row = in_q + i + a
                    if j == 0:
                        means[row] = mean[a]
                    for b in range(per):
                        if per * j + b < size:
                            dq[row * size + per * j + b] = found[per * a + b]

    return attention_queries_grad


@cache
def keys_kernel(width: int, side: int, masked: bool) -> Kernel:
    multiply, accumulate, keep, _, _ = _steps_of(width, side)
    chunk, part, weights = _shapes(width, side)
    threads, rows, per = side * side, side * 4, width // side
    mine = 4 * per

    def attention_keys_grad(
        count: Any,
        dk: Any,
        dv: Any,
        means: Any,
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        peaks: Any,
        totals: Any,
        flags: Any,
        of_queries: Any,
        mask: Any,
        axes: Any,
        rank: Any,
        causal: Any,
        queries: Any,
        keys: Any,
        size: Any,
        columns: Any,
        across: Any,
        factor: Any,
    ) -> None:
        """Compute dk = factor·Σ p·(s - mean)·q and dv = Σ p·g of each key over the queries, s = g·vᵀ; `count` tiles of
        keys.

        Here a thread's rows are keys, and its columns queries. `of_queries` are the flags of queries and means; a mean
        is not finite if a total or a cotangent is not.
        """
        left = cuda.shared.array(chunk, np.float32, ALIGNED)
        right = cuda.shared.array(chunk, np.float32, ALIGNED)
        values = cuda.shared.array(part, np.float32, ALIGNED)
        p = cuda.shared.array(weights, np.float32, ALIGNED)
        s = cuda.local.array(16, np.float32)
        of_key = cuda.local.array(mine, np.float32)
        of_value = cuda.local.array(mine, np.float32)
        at = cuda.local.array(4, np.int32)
        i, j = quotient(cuda.threadIdx.x, side) * 4, remainder(cuda.threadIdx.x, side)
        for tile in steps(quotient(cuda.grid(1), threads), count, quotient(cuda.gridsize(1), threads)):
            matrix, first = quotient(tile, across), remainder(tile, across) * rows
            in_k = matrix * keys + first
            for a in range(mine):
                of_key[a], of_value[a] = ZERO, ZERO
            every = causal == 0 or (first > 0 and flagged(flags, matrix, first, rows, keys))
            for start in steps(0, queries, rows):
                if start + rows <= first and not every and not flagged(of_queries, matrix, start, rows, queries):
                    continue
                in_q = matrix * queries + start
                multiply(s, left, right, k, in_k, keys - first, q, in_q, queries - start, size)
                for b in range(4):
                    if masked:
                        at[b] = place_in_mask(in_q + min(4 * j + b, queries - 1 - start), axes, rank)
                for b in range(4):
                    query = start + 4 * j + b
                    row = in_q + min(4 * j + b, queries - 1 - start)
                    peak, share = peaks[row], ONE / totals[row]
                    for a in range(4):
                        key = first + i + a
                        seen = key < keys and query < queries and (causal == 0 or key <= query)
                        if masked and seen:
                            seen = mask[at[b] + key * axes[2 * rank]] != 0
                        hidden = ZERO * share if query < queries else ZERO
                        s[4 * a + b] = exp(times(s[4 * a + b], factor) - peak) * share if seen else hidden
                keep(p, s)
                accumulate(of_value, p, values, g, in_q, queries - start, columns)
                multiply(s, left, right, v, in_k, keys - first, g, in_q, queries - start, columns)
                for b in range(4):
                    mean = means[in_q + min(4 * j + b, queries - 1 - start)]
                    inside = start + 4 * j + b < queries
                    for a in range(4):
                        s[4 * a + b] = p[4 * j + b, i + a] * (s[4 * a + b] - mean) * factor if inside else ZERO
                keep(p, s)  # over cells that only this thread has read since the barriers of `multiply`
                accumulate(of_key, p, values, q, in_q, queries - start, size)
            for a in range(4):
                if first + i + a < keys:
                    row = in_k + i + a
                    for b in range(per):
                        if per * j + b < size:
                            dk[row * size + per * j + b] = of_key[per * a + b]
                        if per * j + b < columns:
                            dv[row * columns + per * j + b] = of_value[per * a + b]

    return attention_keys_grad
