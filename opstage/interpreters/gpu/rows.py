"""Rows that several threads, its lanes, work on together: what they find of it is joined here.

`lanes` is 1, a warp's 32, or all threads of a block; `device.each_row` chooses. A kernel begins

    lane = remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):

and goes through a row from `lane` on in steps of `lanes`. The order of every sum is fixed by the row's length alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .device.grid import WARP
from .language import barrier, device_function, exp, shuffle

MOST_WARPS = 32
"""Of a block, so the length of the shared memory `parts` in which they join: one number for each."""

ZERO, ONE = np.float32(0), np.float32(1)
LOWEST = np.float32(-np.inf)
HALF_WARP = np.int32(WARP // 2)


@device_function
def joined_sum(value: Any, parts: Any, thread: Any, lanes: Any) -> Any:
    """Σ of the lanes' values, in each of them; `thread` is the number of this one in its block."""
    if lanes >= WARP:
        distance = HALF_WARP
        while distance > 0:
            value += shuffle(value, distance)
            distance = distance >> 1
    if lanes > WARP:
        if thread % WARP == 0:
            parts[thread // WARP] = value
        barrier()
        value = parts[0]
        for k in range(1, lanes // WARP):
            value += parts[k]
        barrier()
    return value


@device_function
def joined_max(value: Any, parts: Any, thread: Any, lanes: Any) -> Any:
    """The greatest of the lanes' values, nan if there is one, in each of them."""
    if lanes >= WARP:
        distance = HALF_WARP
        while distance > 0:
            other = shuffle(value, distance)
            value = other if other > value or other != other else value
            distance = distance >> 1
    if lanes > WARP:
        if thread % WARP == 0:
            parts[thread // WARP] = value
        barrier()
        value = parts[0]
        for k in range(1, lanes // WARP):
            other = parts[k]
            value = other if other > value or other != other else value
        barrier()
    return value


@device_function
def joined_best(value: Any, at: Any, parts: Any, places: Any, thread: Any, lanes: Any) -> Any:
    """The place of the greatest of the lanes' values, the first of equal ones, and nan before any number."""
    if lanes >= WARP:
        distance = HALF_WARP
        while distance > 0:
            other, place = shuffle(value, distance), shuffle(at, distance)
            if comes_before(other, place, value, at):
                value, at = other, place
            distance = distance >> 1
    if lanes > WARP:
        if thread % WARP == 0:
            parts[thread // WARP] = value
            places[thread // WARP] = at
        barrier()
        value, at = parts[0], places[0]
        for k in range(1, lanes // WARP):
            other, place = parts[k], places[k]
            if comes_before(other, place, value, at):
                value, at = other, place
        barrier()
    return at


@device_function
def comes_before(x: Any, i: Any, y: Any, j: Any) -> Any:
    """Whether x at i, rather than y at j, is the maximum."""
    if x != x or y != y:
        return x != x and (y == y or i < j)
    return x > y or (x == y and i < j)


@device_function
def online(peak: Any, total: Any, x: Any) -> Any:
    """The maximum and Σ exp(xₖ - maximum) once x is among the xₖ (Milakov & Gimelshein 2018): one exp for each.

    They begin as -inf and 0; an x of -inf counts as 1 until a greater one comes, which makes it nothing.
    """
    if x > peak:
        return x, total * exp(peak - x) + ONE
    if x == peak:
        return peak, total + ONE
    return peak, total + exp(x - peak)
