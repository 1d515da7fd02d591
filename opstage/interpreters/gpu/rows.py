"""Rows processed by several threads, the lanes, with functions that combine their results.

`lanes` is 1, a warp's 32, or all threads of a block; `device.each_row` chooses. A kernel begins

    lane = remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):

and strides over a row from `lane` in steps of `lanes`. The order of every sum depends only on the row's length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .device.grid import WARP
from .language import barrier, device_function, exp, shuffle

MOST_WARPS = 32
"""The warps of a block, and the length of the shared memory `parts`, with one number for each."""

ZERO, ONE = np.float32(0), np.float32(1)
LOWEST = np.float32(-np.inf)
HALF_WARP = np.int32(WARP // 2)


@device_function
def joined_sum(value: Any, parts: Any, thread: Any, lanes: Any) -> Any:
    """Return Σ of the lanes' values, in each lane; `thread` is this thread's number in its block."""
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
    """Return the greatest of the lanes' values, nan if there is one, in each lane."""
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
    """Return the position of the greatest of the lanes' values, the first of equal ones, with nan above all numbers."""
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
    """Whether x at i is the maximum, rather than y at j."""
    if x != x or y != y:
        return x != x and (y == y or i < j)
    return x > y or (x == y and i < j)


@device_function
def online(peak: Any, total: Any, x: Any) -> Any:
    """Update the maximum and Σ exp(xₖ - maximum) with x (Milakov & Gimelshein 2018): one exp per element.

    They start as -inf and 0; an x of -inf adds 1 until a greater x scales that to 0.
    """
    if x > peak:
        return x, total * exp(peak - x) + ONE
    if x == peak:
        return peak, total + ONE
    return peak, total + exp(x - peak)
