"""Where NumPy puts the elements of an array: strides, and what views and ufuncs make of them.

Strides count elements; None stands for row-major order without gaps. The rules are NumPy's own, so that what is
predicted to be a view is one, and what is predicted to be copied is copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

Sizes: TypeAlias = tuple[int, ...]
Strides: TypeAlias = Sizes | None


def full(shape: Sizes, strides: Strides) -> Sizes:
    """The strides, also where they are row-major."""
    return row_major(shape) if strides is None else strides


def row_major(shape: Sizes) -> Sizes:
    """Strides without gaps, the last axis fastest."""
    result, step = [], 1
    for n in reversed(shape):
        result.append(step)
        step *= max(n, 1)
    return tuple(reversed(result))


def canonical(shape: Sizes, strides: Sequence[int]) -> Strides:
    """None for strides that visit the elements in row-major order without gaps. Axes of size 1 do not matter: 0."""
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1:
            if stride != step:
                return None if 0 in shape else tuple([0 if n == 1 else s for n, s in zip(shape, strides)])
            step *= n
    return None


def permuted(shape: Sizes, strides: Strides, axes: Sequence[int]) -> Strides:
    """Of the view with axes in another order."""
    every = full(shape, strides)
    return canonical(tuple([shape[a] for a in axes]), [every[a] for a in axes])


def broadcast(shape: Sizes, strides: Strides, to: Sizes) -> Strides:
    """Of the view that repeats axes of size 1, and leading axes that are not there."""
    missing = len(to) - len(shape)
    spread = [0] * missing
    for n, stride, wanted in zip(shape, full(shape, strides), to[missing:]):
        spread.append(stride if n == wanted else 0)
    return canonical(to, spread)


def sliced(shape: Sizes, strides: Strides, axis: int, length: int, step: int) -> Strides:
    """Of the view of `length` cells along an axis, `step` apart."""
    every = list(full(shape, strides))
    every[axis] *= step
    return canonical((*shape[:axis], length, *shape[axis + 1 :]), every)


def reshaped(shape: Sizes, strides: Strides, to: Sizes) -> tuple[bool, Strides]:
    """Whether a reshape is a view, and its strides; a copy is row-major.

    Runs of axes that hold as many elements before and after are matched; a run of several old axes must be without
    gaps, as NumPy's `_attempt_nocopy_reshape` has it.
    """
    if strides is None:
        return True, None
    old = [(n, stride) for n, stride in zip(shape, strides) if n != 1]
    result: list[int] = []
    i = j = 0
    while i < len(old) and j < len(to):
        many, wanted = old[i][0], to[j]
        first_old, first_new = i, j
        while many != wanted:
            if many < wanted:
                i += 1
                many *= old[i][0]
            else:
                j += 1
                wanted *= to[j]
        run = old[first_old : i + 1]
        if any(a != n * b for (_, a), (n, b) in pairwise(run)):
            return False, None
        steps, step = [], run[-1][1]
        for n in reversed(to[first_new : j + 1]):
            steps.append(step)
            step *= n
        result += reversed(steps)
        i, j = i + 1, j + 1
    result += [1] * (len(to) - len(result))
    return True, canonical(to, result)


def kept_order(shape: Sizes, operands: Sequence[tuple[Sizes, Strides]]) -> Strides:
    """Of the new array that a ufunc makes: axes in the order in which the operands have them, without gaps.

    The operands are broadcast to its shape.
    """
    if all(strides is None for _, strides in operands):
        return None
    return in_order_of(shape, [full(shape, broadcast(s, strides, shape)) for s, strides in operands])


def in_order_of(shape: Sizes, operands: Sequence[Sizes], *, slowest_first: bool = False) -> Strides:
    """Of a new array without gaps, its axes ordered as these strides have them, of which 0 says nothing.

    Axes are sorted by insertion as NumPy's iterator does it, from the fastest on, or as its concatenation does it, from
    the slowest on. The operands are asked one after another; where two disagree, row-major order wins.
    """
    every = [tuple([0 if n == 1 else stride for n, stride in zip(shape, strides)]) for strides in operands]
    order = list(range(len(shape)))
    if not slowest_first:
        order.reverse()
    for i in range(1, len(order)):
        axis, place = order[i], i
        for k in range(i - 1, -1, -1):
            less, more = (order[k], axis) if slowest_first else (axis, order[k])
            smaller = _is_smaller(less, more, every)
            if smaller is None:
                continue
            if not smaller:
                break
            place = k
        order.insert(place, order.pop(i))
    result, step = [0] * len(shape), 1
    for axis in reversed(order) if slowest_first else order:
        result[axis] = step
        step *= shape[axis]
    return canonical(shape, result)


def _is_smaller(axis: int, than: int, operands: Sequence[Sizes]) -> bool | None:
    """Whether the stride along `axis` is the smaller one; None where no operand says."""
    answer = None
    for strides in operands:
        a, b = strides[axis], strides[than]
        if a and b:
            if b <= a:
                answer = False
            elif answer is None:
                answer = True
    return answer


def without_axes(shape: Sizes, strides: Strides, axes: Sequence[int], keepdims: bool) -> tuple[Sizes, Strides]:
    """Shape and strides of what a reduction along `axes` reads, those axes left out, or kept at size 1."""
    if strides is None:
        return (), None
    gone = set(axes)
    if keepdims:
        sizes = tuple([1 if i in gone else n for i, n in enumerate(shape)])
        return sizes, strides
    rest = [i for i in range(len(shape)) if i not in gone]
    return tuple([shape[i] for i in rest]), tuple([strides[i] for i in rest])


def elements(shape: Sizes) -> int:
    """Elements."""
    return math.prod(shape)
