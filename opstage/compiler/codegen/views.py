"""Views: tensors as strides over another tensor's elements, so that layout ops move no data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

# Strides --------------------------------------------------------------------------------------------------------------

Sizes = tuple[int, ...]
Axes = tuple[tuple[int, int], ...]
"""(size, stride) of each axis, outermost first."""
Cuts = tuple[int, ...]
"""Axis boundaries, in elements counted from the innermost axis: 1 first, the total number of elements last."""

_REMEMBERED = 1 << 12
"""Cache entries of each function below; these are called often on few shapes."""


class View(NamedTuple):
    """Element i of the tensor is element offset + Σ i·strides of `root`, a slot with its own memory."""

    root: int
    offset: int
    shape: Sizes
    strides: Sizes

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def contiguous(self) -> bool:
        """Whether its elements are in row-major order without gaps."""
        expected = packed(self.shape)
        return self.strides == expected or all(n == 1 or s == t for n, s, t in zip(self.shape, self.strides, expected))


@lru_cache(_REMEMBERED)
def packed(shape: Sizes) -> Sizes:
    """Return the strides of a row-major tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def whole(slot: int, shape: Sizes) -> View:
    return View(slot, 0, shape, packed(shape))


def broadcast(view: View, shape: Sizes) -> View:
    added = len(shape) - len(view.shape)
    strides = [0] * added + [0 if n == 1 else s for n, s in zip(view.shape, view.strides)]
    return view._replace(shape=shape, strides=tuple(strides))


def permute(view: View, axes: Sizes) -> View:
    return view._replace(shape=tuple([view.shape[a] for a in axes]), strides=tuple([view.strides[a] for a in axes]))


def cut(view: View, axis: int, start: int, length: int, step: int = 1) -> View:
    """Slice along one axis."""
    shape, strides = list(view.shape), list(view.strides)
    offset = view.offset + start * strides[axis]
    shape[axis] = length
    strides[axis] *= step
    return View(view.root, offset, tuple(shape), tuple(strides))


def without(view: View, axis: int, index: int) -> View:
    """Select an entry along an axis."""
    taken = cut(view, axis, index, 1)
    return taken._replace(
        shape=taken.shape[:axis] + taken.shape[axis + 1 :], strides=taken.strides[:axis] + taken.strides[axis + 1 :]
    )


def reshape(view: View, shape: Sizes) -> View | None:
    """Reshape in row-major order; None if strides cannot express it."""
    if view.size == 0:
        return view._replace(shape=shape, strides=packed(shape))
    strides = split(merged(view.shape, view.strides), suffixes(shape)[:-1])
    if strides is None:
        return None
    kept = iter(strides)
    return view._replace(shape=shape, strides=tuple([next(kept) if n > 1 else 0 for n in shape]))


# Merging and splitting axes ------------------------------------------------------------------------------------------


@lru_cache(_REMEMBERED)
def merged(shape: Sizes, strides: Sizes) -> Axes:
    """Merge the axes of a view where possible, and drop those of size 1."""
    axes: list[tuple[int, int]] = []
    for n, s in zip(shape, strides):
        if n == 1:
            continue
        if axes and axes[-1][1] == s * n:
            axes[-1] = (axes[-1][0] * n, s)
        else:
            axes.append((n, s))
    return tuple(axes)


@lru_cache(_REMEMBERED)
def borders(shape: Sizes, strides: Sizes, scale: int = 1) -> Cuts:
    """Return the cuts between the merged axes of a view; `scale` is the number of loop elements per element."""
    return tuple([cut * scale for cut in suffixes([n for n, _ in merged(shape, strides)])])


def suffixes(sizes: Sequence[int]) -> Cuts:
    """Return the cuts between axes of these sizes; axes of size 1 are dropped."""
    cuts, total = [1], 1
    for n in reversed(sizes):
        if n > 1:
            total *= n
            cuts.append(total)
    return tuple(cuts)


def split(axes: Axes, cuts: Sequence[int]) -> list[int] | None:
    """Split `axes` at all `cuts` (innermost first); return the strides, outermost first, or None if they do not fit."""
    found: list[int] = []
    inner = 1  # elements inside the axis
    at = 0
    for n, s in reversed(axes):
        outer = inner * n
        if at >= len(cuts) or cuts[at] != inner:
            return None
        while at < len(cuts) and cuts[at] < outer:
            if cuts[at] % inner:
                return None
            found.append(s * (cuts[at] // inner))
            at += 1
        inner = outer
    return None if at != len(cuts) else found[::-1]


@lru_cache(_REMEMBERED)
def chain(*cuts: Cuts) -> Cuts | None:
    """Return the union of all cuts, if each divides the next."""
    every = sorted({c for each in cuts for c in each})
    return tuple(every) if all(b % a == 0 for a, b in pairwise(every)) else None


# Operands of matrix products ------------------------------------------------------------------------------------------


class Leading(NamedTuple):
    """A matrix as a BLAS sees it: whether it is stored transposed, and its leading dimension."""

    transposed: bool
    dimension: int


def leading_dimension(view: View) -> Leading | None:
    """Return the layout of the matrices along the last two axes; None if neither axis has a unit stride."""
    (m, k), (sm, sk) = view.shape[-2:], view.strides[-2:]
    if (sk == 1 or k == 1) and (m == 1 or sm >= k):
        return Leading(False, sm if m > 1 else k)
    if (sm == 1 or m == 1) and (k == 1 or sk >= m):
        return Leading(True, sk if k > 1 else m)
    return None


def batch_axes(a: View, b: View) -> list[tuple[int, int, int]]:
    """Return (size, stride in a, stride in b) of the batch axes, merged where possible."""
    axes: list[tuple[int, int, int]] = []
    for n, s, t in zip(a.shape[:-2], a.strides[:-2], b.strides[:-2]):
        if n == 1:
            continue
        if axes and axes[-1][1] == s * n and axes[-1][2] == t * n:
            axes[-1] = (axes[-1][0] * n, s, t)
        else:
            axes.append((n, s, t))
    return axes
