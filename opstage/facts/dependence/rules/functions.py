"""Functions of indices: their sums and multiples, and where they are at most a number."""

from __future__ import annotations

from typing import Any

from ....ops.dims import Dim
from ..fact import Affine, by_index
from ..regions import ANYWHERE, NONE, NOWHERE, Difference, Region, both, either, region
from ..sizes import as_size, at_most_proved, same


def plus(x: Affine | None, y: Affine | None, sign: int = 1) -> Affine | None:
    if x is None or y is None or x.absolute or y.absolute:
        return None
    terms = dict(x.terms)
    for index, coefficient in y.terms:
        terms[index] = terms.get(index, 0) + sign * coefficient
    kept = by_index([(i, c) for i, c in terms.items() if not same(c, 0)])
    return Affine(x.constant + sign * y.constant, kept)


def times(x: Affine | None, factor: Any) -> Affine | None:
    count = as_size(factor)
    if x is None or x.absolute or count is None:
        return None
    return Affine(count * x.constant, () if same(count, 0) else tuple([(i, c * count) for i, c in x.terms]))


def at_most(value: Affine, distance: Dim) -> Region:
    """Where value <= distance, as far as differences of indices say it."""
    if value.absolute:
        inside = value._replace(absolute=False)
        negative = times(inside, -1)
        assert negative is not None
        return both(at_most(inside, distance), at_most(negative, distance))
    bound, terms = distance - value.constant, value.terms
    if at_most_proved(bound, -1) and all(at_most_proved(0, c) for _, c in terms):
        return NOWHERE
    if not terms:
        return region((NONE, NONE, bound))
    coefficients = [c for _, c in terms if isinstance(c, int)]
    if len(coefficients) < len(terms):
        return ANYWHERE
    if coefficients == [1]:
        return region((terms[0][0], NONE, bound))
    if coefficients == [-1]:
        return region((NONE, terms[0][0], bound))
    if sorted(coefficients) == [-1, 1]:
        (first, sign), (second, _) = terms
        return region(Difference(first, second, bound) if same(sign, 1) else Difference(second, first, bound))
    return ANYWHERE


def above(value: Affine, distance: Dim) -> Region:
    """Where value >= distance."""
    if value.absolute:
        inside = value._replace(absolute=False)
        return either(above(inside, distance), at_most(inside, -distance))
    negative = times(value, -1)
    assert negative is not None
    return at_most(negative, -distance)
