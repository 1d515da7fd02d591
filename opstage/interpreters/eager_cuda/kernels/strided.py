"""Strided copies: permute, repeat, slice and join tensors."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import quotient, remainder, steps
from ...gpu.device.interface import Device
from ...gpu.language import cuda


def row_major(shape: tuple[int, ...]) -> list[int]:
    """Return the row-major strides in elements."""
    return [*accumulate(shape[:0:-1], mul, initial=1)][::-1] if shape else []


def copy_kernel(count: Any, out: Any, x: Any, to: Any, start: Any, rank: Any, axes: Any) -> None:
    """Compute out[to + Σ tₖ·iₖ] = x[start + Σ sₖ·iₖ] for every index i of a box; `axes` are (nₖ, tₖ, sₖ) for each of
    its sides, last first."""
    for cell in steps(cuda.grid(1), count, cuda.gridsize(1)):
        rest, target, source = cell, to, start
        for k in range(rank):
            n = axes[3 * k]
            i = remainder(rest, n)
            rest = quotient(rest, n)
            target += i * axes[3 * k + 1]
            source += i * axes[3 * k + 2]
        out[target] = x[source]


def copy(
    device: Device,
    box: tuple[int, ...],
    out: DeviceBuffer,
    x: DeviceBuffer,
    *,
    to: int = 0,
    out_strides: list[int] | None = None,
    start: int = 0,
    strides: list[int],
) -> None:
    """Copy a box of x to out; strides are in elements, those of out row-major by default."""
    axes = _axes(box, tuple(row_major(out.shape) if out_strides is None else out_strides), tuple(strides))
    rank = np.int32(len(axes) // 3)
    device.each(copy_kernel, math.prod(box), out, x, np.int32(to), np.int32(start), rank, device.numbers(*axes))


@lru_cache(maxsize=4096)
def _axes(box: tuple[int, ...], targets: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of a copy as its kernel takes them."""
    axes = _merged([(n, t, s) for n, t, s in zip(box, targets, strides, strict=True) if n != 1])
    return tuple([number for axis in reversed(axes) for number in axis])


def _merged(axes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Merge adjacent axes if both sides have constant strides over them."""
    result: list[tuple[int, int, int]] = []
    for n, t, s in axes:
        if result and result[-1][1] == n * t and result[-1][2] == n * s:
            result[-1] = (result[-1][0] * n, t, s)
        else:
            result.append((n, t, s))
    return result
