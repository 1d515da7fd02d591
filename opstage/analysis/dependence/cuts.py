"""Axes split into other indices: when tensors are aligned, and when one is reshaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from ...ops.dims import Dim, prod
from ...ops.types import DType, Shape
from .fact import (
    Affine,
    Columns,
    Fact,
    Position,
    Value,
    at_origin,
    by_index,
    each_affine,
    number,
    reduce_indices,
    renumber_fact,
    value_indices,
)
from .regions import alike, divided, same

if TYPE_CHECKING:
    from . import Dependence


def recut(fact: Fact, axes: tuple[Shape, ...]) -> Fact:
    """Return the fact of the same tensor with its axes split into other indices.

    Reads along an axis that changes are lost; values stay linear if one index is split into several.
    """
    if alike(fact.axes, axes):
        return fact
    old = new = len(fact.outer)
    number = {i: i for i in range(old)}
    gone: list[int] = []
    split: dict[int, tuple[int, Shape]] = {}
    for before, after in zip(fact.axes, axes, strict=True):
        if alike(before, after):
            number |= {old + i: new + i for i in range(len(after))}
        else:
            gone += range(old, old + len(before))
            if len(before) == 1:
                split[old] = new, after
        old, new = old + len(before), new + len(after)
    left = renumber_fact(reduce_indices(fact, gone), fact.outer, axes, number)
    return left._replace(value=_split(fact.value, number, split))


def _split(value: Position | None, number: dict[int, int], split: dict[int, tuple[int, Shape]]) -> Position | None:
    """Return a value in terms of other indices, some of which were one index."""
    if isinstance(value, Columns):
        value = value._replace(along=number[value.along]) if value.along in number else None
    return each_affine(value, lambda each: _split_affine(each, number, split))


def _split_affine(value: Affine, number: dict[int, int], split: dict[int, tuple[int, Shape]]) -> Affine | None:
    terms: list[tuple[int, Dim]] = []
    for index, coefficient in value.terms:
        if index in number:
            terms.append((number[index], coefficient))
        elif index in split:
            start, sizes = split[index]
            for at in range(len(sizes)):
                terms.append((start + at, coefficient * prod(sizes[at + 1 :])))
        else:
            return None
    return value._replace(terms=by_index(terms))


def has_terms(fact: Fact, axis: int) -> bool:
    """Return whether a fact has terms in the indices of an axis."""
    indices = fact.indices(axis)
    return (
        any(i in indices for i, _ in fact.reads)
        or any(d.a in indices or d.b in indices for _, where in fact.outside for part in where for d in part)
        or not value_indices(fact.value).isdisjoint(indices)
    )


def common(facts: Sequence[Fact], axes: Sequence[Sequence[int]]) -> list[Fact]:
    """Return the facts with equal indices along these axes; each row of `axes` names one axis of each fact."""
    wanted: list[list[Shape]] = [list(fact.axes) for fact in facts]
    for row in axes:
        cuts = [fact.axes[axis] for fact, axis in zip(facts, row)]
        if all(alike(cut, cuts[0]) for cut in cuts[1:]):
            continue
        told = [cut for fact, axis, cut in zip(facts, row, cuts) if has_terms(fact, axis)]
        best = max(told or cuts, key=len)
        for at, axis in enumerate(row):
            wanted[at][axis] = best
    return [recut(fact, tuple(cut)) for fact, cut in zip(facts, wanted)]


def align(facts: Sequence[Fact]) -> list[Fact]:
    """Return the facts of tensors of one shape, with their axes split into the same indices."""
    first = facts[0].axes
    if all(fact.axes is first or alike(fact.axes, first) for fact in facts[1:]):
        return list(facts)
    return common(facts, [[axis] * len(facts) for axis in range(len(first))])


def reshaped(fact: Fact, shape: Shape) -> Fact:
    """Return the fact of the elements in row-major order in another shape.

    Indices stay if sizes line up, and are split if one size divides the other; other indices are lost.
    """
    sizes = fact.sizes[len(fact.outer) :]
    start = len(fact.outer)
    number = {i: i for i in range(start)}
    split: dict[int, tuple[int, Shape]] = {}
    pending: list[tuple[int, Dim]] = [(start + i, size) for i, size in enumerate(sizes)]
    axes: list[Shape] = []
    at = start
    halves: dict[int, list[tuple[int, Dim]]] = {}  # by old index: its new indices
    lost = False
    grounded: list[int] = []
    for size in shape:
        made: list[Dim] = []
        rest: Dim = size
        while not lost and not same(rest, 1):
            while pending and same(pending[0][1], 1):
                grounded.append(pending.pop(0)[0])
            if not pending:
                lost = True
                break
            index, length = pending[0]
            if same(rest, length):
                taken: Dim = length
                pending.pop(0)
            elif (more := divided(rest, length)) is not None:
                taken = length
                pending.pop(0)
                rest = more
                halves.setdefault(index, []).append((at + len(made), taken))
                made.append(taken)
                continue
            elif (left := divided(length, rest)) is not None:
                taken = rest
                pending[0] = index, left
            else:
                lost = True
                break
            halves.setdefault(index, []).append((at + len(made), taken))
            made.append(taken)
            rest = 1
        if lost:  # the factors of this axis and of later ones did not line up
            halves = {i: kept for i, parts in halves.items() if (kept := [p for p in parts if p[0] < at])}
            made = [size]
        axes.append(tuple(made) or (1,))
        at += len(axes[-1])
    if lost:
        # Indices of complete axes so far stay; the others are lost with the axes that follow.
        return _partly(fact, tuple(axes), halves, number)
    grounded += [index for index, _ in pending]
    for index, parts in halves.items():
        if len(parts) == 1:
            number[index] = parts[0][0]
        else:
            split[index] = parts[0][0], tuple([size for _, size in parts])
    return _placed(fact, tuple(axes), number, split, grounded)


def _partly(
    fact: Fact, axes: tuple[Shape, ...], halves: dict[int, list[tuple[int, Dim]]], number: dict[int, int]
) -> Fact:
    """Return the fact of a reshape of which only some leading axes line up."""
    whole = {index: parts[0][0] for index, parts in halves.items() if len(parts) == 1}
    # An index stays if it lies entirely in complete axes.
    sizes = fact.sizes
    even: dict[int, int] = {}
    flat = [size for axis in axes for size in axis]
    for index, to in whole.items():
        place = to - len(fact.outer)
        if place < len(flat) and same(flat[place], sizes[index]):
            even[index] = to
    gone = [i for i in range(len(fact.outer), len(sizes)) if i not in even]
    return renumber_fact(reduce_indices(fact, gone), fact.outer, axes, {**number, **even})


def _placed(
    fact: Fact,
    axes: tuple[Shape, ...],
    number: dict[int, int],
    split: dict[int, tuple[int, Shape]],
    grounded: Sequence[int],
) -> Fact:
    fact = at_origin(fact, grounded)
    left = renumber_fact(reduce_indices(fact, list(split)), fact.outer, axes, number)
    return left._replace(value=_split(fact.value, number, split))


# Values that are functions of indices, as far as their dtype represents them: integers wrap, floats are rounded -------

EXACT_INDICES: Final = (
    "positions along axes of named sizes, and numbers computed from them, fit their dtype (below 2**24 in float32)"
)
_SMALL = 2**31
"""Products of smaller numbers with a size, which is below it as well, fit integers of 8 bytes."""


def representable(domain: Dependence, value: Affine | None, sizes: Sequence[Dim], dtype: DType) -> Affine | None:
    """Return the value if the dtype represents all of its numbers, for indices below these sizes; else None.

    For symbolic sizes this is an assumption, recorded for dtypes of less than 8 bytes and for large coefficients.
    """
    if value is None or dtype.kind not in "if":
        return None
    most = _largest(domain, dtype)
    numbers = [each for each in (value.constant, *[c for _, c in value.terms]) if isinstance(each, int)]
    if any(abs(each) > most for each in numbers):
        return None
    parts = [value.constant, *[c * (sizes[i] - 1) for i, c in value.terms]]
    known = [part for part in parts if isinstance(part, int)]
    if len(known) == len(parts):
        return value if _size(known) <= most else None
    if dtype.itemsize < 8 or any(abs(each) >= _SMALL for each in numbers):
        domain.assume(EXACT_INDICES)
    return value


def _size(parts: Sequence[int]) -> int:
    """Return the largest magnitude of a sum of the first part and of numbers between 0 and each other part."""
    first, rest = parts[0], parts[1:]
    return max(abs(first + sum([p for p in rest if p > 0])), abs(first + sum([p for p in rest if p < 0])))


def _largest(domain: Dependence, dtype: DType) -> int:
    """Return the magnitude up to which the dtype represents every integer."""
    return int(np.iinfo(dtype).max) if dtype.kind == "i" else int(2 / domain.dtype_limits(dtype).epsilon)


def stored(domain: Dependence, value: object, dtype: DType) -> Value | None:
    """Return a static number as a tensor of the dtype stores it; None for a symbolic number."""
    found = number(value)
    if type(found) is not float or dtype.kind != "f":
        return found
    return number(domain.dtype_limits(dtype).nearest(found))
