"""Regions of a tensor's indices: unions of conjunctions of differences, `i_a - i_b <= c`.

A region contains at least the described indices, so anything that it cannot express makes it larger. Indices are
numbered (see `fact`); NONE in place of an index is the number 0, so `(a, NONE, c)` is i_a <= c.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeAlias

from ...ops.dims import UNKNOWN, Dim, DimExpr, DimFloat, Verdict, at_most, equal
from ...ops.dims.polynomial import variable
from ...ops.dims.radicals import Opaque

# Relations of sizes, without a cost for numbers; unproved relations are not used --------------------------------------


def same(a: Dim, b: Dim) -> bool:
    """Return whether two sizes are one polynomial, without adding a condition."""
    if a is b:
        return True
    if a is UNKNOWN or b is UNKNOWN:
        return False
    difference = a - b
    return type(difference) is int and difference == 0


def alike(a: object, b: object) -> bool:
    """Return whether two tuples with sizes are structurally equal; `==` of two sizes may be undecided, which raises."""
    return hash(a) == hash(b) and a == b


def at_most_proved(a: Dim, b: Dim) -> bool:
    """Return whether a <= b is proved for every allowed size."""
    if type(a) is int and type(b) is int:
        return a <= b
    if a is UNKNOWN or b is UNKNOWN:
        return False
    return at_most(a, b) is Verdict.proved


def largest(size: Dim) -> float:
    """Return the largest value below 2^31 that the constraints on the sizes allow; infinity without one."""
    if isinstance(size, int):
        return size
    low, high = 0, 1 << 31
    if not at_most_proved(size, high):
        return math.inf
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at_most_proved(size, middle) else (middle + 1, high)
    return high


def equal_proved(a: Dim, b: Dim) -> bool:
    """Return whether a == b is proved for every allowed size."""
    if a is UNKNOWN or b is UNKNOWN:
        return False
    return equal(a, b) is Verdict.proved


def divided(a: Dim, b: Dim) -> Dim | None:
    """Return a / b if b, at least 1, divides a as a polynomial; else None."""
    if a is UNKNOWN or b is UNKNOWN or not at_most_proved(1, b):
        return None
    quotient = a // b
    return quotient if same(quotient * b, a) else None


def as_size(value: Any) -> Dim | None:
    """Return a static number as an integer, possibly symbolic; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, DimExpr)):
        return None if value is UNKNOWN else value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else None
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else None
    if isinstance(value, DimFloat):
        return _of_real(value)
    return None


def _of_real(real: DimFloat) -> Dim | None:
    """Return an exact real as a polynomial; None if it is not one."""
    total: Dim = 0
    for factors, coefficient in real.terms.items():
        if coefficient.denominator != 1:
            return None
        term: Dim = coefficient.numerator
        for base, twice in factors:
            if twice < 0 or twice % 2:
                return None
            if isinstance(base, Opaque):
                return None
            size: Dim = base if isinstance(base, (int, DimExpr)) else real.scope.intern(variable(base))
            for _ in range(twice // 2):
                term = term * size
        total = total + term
    return total


# Regions --------------------------------------------------------------------------------------------------------------


NONE: Final = -1


class Difference(NamedTuple):
    """i_a - i_b <= c."""

    a: int
    b: int
    c: Dim


Conjunction: TypeAlias = tuple[Difference, ...]
Region: TypeAlias = tuple[Conjunction, ...]

NOWHERE: Final[Region] = ()
ANYWHERE: Final[Region] = ((),)
_MOST = 6  # conjunctions in a region
_MOST_DIFFERENCES = 12


def region(*differences: tuple[int, int, Dim]) -> Region:
    """Return where all of these differences hold."""
    found = _conjunction([Difference(*each) for each in differences])
    return NOWHERE if found is None else (found,)


def both(x: Region, y: Region) -> Region:
    """Return the intersection of two regions, or a region around it."""
    if x == ANYWHERE or alike(x, y):
        return y
    if y == ANYWHERE:
        return x
    if len(x) * len(y) > _MOST:
        return x
    return _union([_conjunction([*p, *q]) for p in x for q in y])


def either(x: Region, y: Region) -> Region:
    """Return the union of two regions, or a region around it."""
    return _union([*x, *y])


def complement(x: Region) -> Region:
    """Return where none of the conjunctions holds, or a region around it."""
    found = ANYWHERE
    for part in x:
        found = both(found, _union([_conjunction([Difference(d.b, d.a, -1 - d.c)]) for d in part]))
    return found


def _union(parts: Iterable[Conjunction | None]) -> Region:
    kept: list[Conjunction] = []
    for part in parts:
        if part is None or any(_implies(part, other) for other in kept):
            continue
        kept = [other for other in kept if not _implies(other, part)]
        kept.append(part)
    return tuple(sorted(kept, key=repr)) if len(kept) <= _MOST else ANYWHERE


def _implies(part: Conjunction, other: Conjunction) -> bool:
    """Return whether `part` implies `other`, by comparing bounds of the same differences."""
    return all(any(p.a == q.a and p.b == q.b and at_most_proved(p.c, q.c) for p in part) for q in other)


def _conjunction(differences: Iterable[Difference]) -> Conjunction | None:
    """Return the differences in a normal form; None if they contradict each other."""
    least: dict[tuple[int, int], list[Dim]] = {}
    for a, b, c in differences:
        if a == b:
            if at_most_proved(c, -1):
                return None
            continue
        if b != NONE and a == NONE and at_most_proved(0, c):
            continue  # -i_b <= c always holds
        if b == NONE and at_most_proved(c, -1):
            return None
        bounds = least.setdefault((a, b), [])
        if not any(at_most_proved(other, c) for other in bounds):
            bounds[:] = [other for other in bounds if not at_most_proved(c, other)] + [c]
    for (a, b), bounds in least.items():
        if a < b or (b, a) not in least:
            for other in least.get((b, a), ()):
                if any(at_most_proved(c + other, -1) for c in bounds):
                    return None
    found = [Difference(a, b, c) for (a, b), bounds in least.items() for c in bounds]
    return tuple(sorted(found, key=repr)[:_MOST_DIFFERENCES])


def closed(part: Conjunction) -> Conjunction:
    """Return the conjunction with the consequences of pairs of differences."""
    found = list(part)
    for _ in range(2):
        more = [Difference(p.a, q.b, p.c + q.c) for p in found for q in found if p.b == q.a and p.b != NONE]
        again = _conjunction([*found, *[each for each in more if each.a != each.b]])
        if again is None or set(again) == set(found):
            break
        found = list(again)
    return tuple(found)


def without(x: Region, indices: Collection[int]) -> Region:
    """Return the projection of a region to the other indices."""
    if not any(d.a in indices or d.b in indices for part in x for d in part):
        return x
    parts = []
    for part in x:
        # By i >= 0, a bound of an index also bounds the number 0.
        grounded = [*part, *[Difference(NONE, i, 0) for i in indices]]
        more = [Difference(p.a, q.b, p.c + q.c) for p in grounded for q in grounded if p.b == q.a and p.b in indices]
        every = [*closed(part), *more]
        parts.append(_conjunction([d for d in every if d.a not in indices and d.b not in indices]))
    return _union(parts)


def renumber(x: Region, number: Mapping[int, int]) -> Region:
    """Return the region with other numbers for the indices; indices without a number are projected out."""
    number = {**number, NONE: NONE}
    gone = {i for part in x for d in part for i in d[:2] if i not in number}
    return tuple([tuple([Difference(number[d.a], number[d.b], d.c) for d in part]) for part in without(x, gone)])


def shift(x: Region, index: int, distance: Dim) -> Region:
    """Return the region of the indices of x increased by `distance`."""

    def shift(d: Difference) -> Difference | None:
        return Difference(d.a, d.b, d.c + (distance if d.a == index else 0) - (distance if d.b == index else 0))

    return _each(x, shift)


def in_sizes(x: Region, sizes: Sequence[Dim]) -> Region:
    """Return the region without differences that always hold for indices below these sizes, and without empty
    conjunctions.
    """
    parts: list[Conjunction | None] = []
    for part in x:
        if any(d.b != NONE and at_most_proved(d.c, -sizes[d.b]) for d in part):
            continue  # i_b would be at least its size
        parts.append(_conjunction([d for d in part if d.a == NONE or not at_most_proved(sizes[d.a] - 1, d.c)]))
    return _union(parts)


def mirror(x: Region, index: int, last: Dim) -> Region:
    """Return the region of i for which `last` - i is in x."""

    def turn(d: Difference) -> Difference | None:
        if index not in d[:2]:
            return d
        if d == (index, NONE, d.c):
            return Difference(NONE, index, d.c - last)
        return Difference(index, NONE, d.c + last) if d == (NONE, index, d.c) else None

    return _each(x, turn)


def at_zero(x: Region, index: int) -> Region:
    """Return the region for an index that is always 0, without that index."""

    def ground(d: Difference) -> Difference | None:
        return Difference(NONE if d.a == index else d.a, NONE if d.b == index else d.b, d.c)

    return _each(x, ground)


def _each(x: Region, change: Callable[[Difference], Difference | None]) -> Region:
    return _union([_conjunction([new for d in part if (new := change(d)) is not None]) for part in x])
