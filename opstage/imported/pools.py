"""Pooling windows with dilation, and the indices of maxima."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from ..ops.dims import floor_div, prod
from ..ops.functions.borders import pad
from ..ops.functions.places import take_along_axis
from ..ops.protocol import Ops, R

Windows = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""The size, stride and dilation of a window along each of the last axes."""


def windows(ops: Ops[R], x: R, sizes: Windows, join: Callable[[R, R], R]) -> R:
    """Combine the cells of each window pairwise, axis by axis; windows may be dilated."""
    for axis, k, s, d in _axes(x, sizes):
        x = reduce(join, _cells(ops, x, axis, k, s, d))
    return x


def maxima(ops: Ops[R], x: R, sizes: Windows, padding: Sequence[Any]) -> tuple[R, R]:
    """Return the maximum of each window and its index in x, flattened over the pooled axes.

    Of equal elements the first, but of nans the last. Padding is never a maximum. PyTorch:
    max_pool2d(return_indices=True).
    """
    rank = len(sizes[0])
    lead, pooled = x.shape[:-rank], x.shape[-rank:]
    count = prod(pooled)
    places = ops.broadcast_to(ops.reshape(ops.iota(shape=(count,)), shape=pooled), shape=x.shape)
    around = [*[(0, 0)] * len(lead), *padding]
    best = pad(ops, ops.detach(x), padding=around, value=-math.inf)
    at = pad(ops, places, padding=around, value=-1)
    # the last axis first, so that the first of equal cells in the order of x is selected
    for axis, k, s, d in reversed(_axes(x, sizes)):
        cells, their = _cells(ops, best, axis, k, s, d), _cells(ops, at, axis, k, s, d)
        best, at = cells[0], their[0]
        for cell, place in zip(cells[1:], their[1:]):
            greater = ops.logical_or(ops.logical_or(ops.less(at, 0), ops.less(best, cell)), ops.isnan(cell))
            taken = ops.logical_and(greater, ops.less(-1, place))
            best, at = ops.select(taken, cell, best), ops.select(taken, place, at)
    flat = ops.reshape(x, shape=(*lead, count))
    values = take_along_axis(ops, flat, ops.reshape(at, shape=(*lead, -1)), axis=len(lead))
    return ops.reshape(values, shape=at.shape), at


def _axes(x: R, sizes: Windows) -> list[tuple[int, int, int, int]]:
    first = len(x.shape) - len(sizes[0])
    return [(axis, k, s, d) for axis, (k, s, d) in enumerate(zip(*sizes), start=first)]


def _cells(ops: Ops[R], x: R, axis: int, k: int, s: int, d: int) -> list[R]:
    """Return cell j of all windows along an axis, for each j."""
    count = floor_div(x.shape[axis] - d * (k - 1) - 1, s) + 1
    return [ops.slice(x, axis=axis, start=j * d, length=count, step=s) for j in range(k)]
