"""A deterministic search for allowed values at which a claim fails (or holds).

The search runs over the names that the solved facts leave free, so that N % 1009 == 7 needs no luck; every candidate is
checked against the declared claims. Small distinct values come first (M=2, N=3), then everything near the low ends,
then ranges' ends, powers of two and pseudo-random mixtures of these. A result is then minimised.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from . import polynomial as poly
from .bounds import Range
from .facts import Claim, Facts

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
_MOST_SMALL = 256  # points near the low ends
_MOST_MIXED = 600  # points mixed from the ladders
_LARGEST_POWER = 40
_SMALL_ENOUGH = 16  # values up to here are not reduced: M=2, N=3 is more informative than M=1, N=2


def find_witness(facts: Facts, claim: Claim, wanted: bool, most: int | None = None) -> dict[str, int] | None:
    """Return allowed values of the claim's names (and of related ones) at which the claim is `wanted`.

    Returns None if the search, of at most `most` points, finds none; that proves nothing.
    """
    names, relevant = _connected(claim, facts.claims)
    images = {name: facts.image_of(name) for name in names}
    free = sorted({name for image in images.values() for name in poly.names_of(image)}, key=lambda name: name.text)
    ranges = [facts.range_of(name) for name in free]

    def attempt(point: Sequence[int]) -> dict[str, int] | None:
        chosen = {name.text: value for name, value in zip(free, point, strict=True)}
        try:
            values = {name.text: poly.evaluate(image, chosen) for name, image in images.items()}
        except poly.Undefined:
            return None
        if any(values[name.text] < (facts.range_of(name).low or 0) for name in names):
            return None
        if claim.holds(values) is not wanted or not all(fact.holds(values) for fact in relevant):
            return None
        return values

    constants = sorted({c for fact in (claim, *relevant) for c in _constants(fact.polynomial)})
    for point in itertools.islice(_points(ranges, constants), most):
        if attempt(point) is not None:
            return attempt(_made_small(point, ranges, lambda candidate: attempt(candidate) is not None))
    return None


def _constants(p: poly.Polynomial) -> Iterator[int]:
    """Yield the constants in a polynomial, inside its atoms too."""
    for monomial, coefficient in p.items():
        yield abs(coefficient)
        for atom in monomial:
            for part in poly.parts(atom):
                yield from _constants(part)


def _connected(claim: Claim, declared: Sequence[Claim]) -> tuple[list[poly.NamedDim], list[Claim]]:
    """Return the claim's names with all that the declared claims relate to them, and those claims."""
    names = dict.fromkeys(poly.names_of(claim.polynomial))
    waiting = [(fact, dict.fromkeys(poly.names_of(fact.polynomial))) for fact in declared]
    relevant: list[Claim] = []
    while touching := [entry for entry in waiting if not names.keys().isdisjoint(entry[1])]:
        waiting = [entry for entry in waiting if names.keys().isdisjoint(entry[1])]
        for fact, its_names in touching:
            relevant.append(fact)
            names.update(its_names)
    return sorted(names, key=lambda name: name.text), relevant


def _points(ranges: Sequence[Range], constants: Iterable[int]) -> Iterator[tuple[int, ...]]:
    distinct = [_PRIMES[index % len(_PRIMES)] for index in range(len(ranges))]
    yield tuple(_clip(value, r) for value, r in zip(distinct, ranges, strict=True))
    near = [[_clip((r.low or 0) + step, r) for step in range(6)] for r in ranges]
    yield from itertools.islice(itertools.product(*(dict.fromkeys(values) for values in near)), _MOST_SMALL)
    ladders = [_ladder(r, constants) for r in ranges]
    bases = [tuple(values[0] for values in ladders), tuple(values[-1] for values in ladders)]
    for index, values in enumerate(ladders):
        for base in bases:
            for value in values:
                yield (*base[:index], value, *base[index + 1 :])
    source = random.Random(0)
    for _ in range(_MOST_MIXED if ranges else 0):
        yield tuple(source.choice(values) for values in ladders)


def _ladder(r: Range, constants: Iterable[int]) -> list[int]:
    """Return values in a range from its low end up, near its ends, powers of two and the given constants."""
    low = r.low or 0
    steps = {low + step for step in range(8)} | {2**k + d for k in range(_LARGEST_POWER) for d in (-1, 0, 1)}
    steps |= {c + d for c in constants for d in (-1, 0, 1)}
    if r.high is not None:
        steps |= {r.high - step for step in range(4)}
    return sorted(value for value in steps if low <= value and (r.high is None or value <= r.high))


def _made_small(
    point: tuple[int, ...], ranges: Sequence[Range], works: Callable[[tuple[int, ...]], bool]
) -> tuple[int, ...]:
    """Lower one coordinate after the other by bisection, while the point still works."""
    for index, r in enumerate(ranges):
        too_low = (r.low or 0) - 1
        while point[index] > max(too_low + 1, _SMALL_ENOUGH):
            middle = (too_low + point[index]) // 2
            candidate = (*point[:index], middle, *point[index + 1 :])
            if works(candidate):
                point = candidate
            else:
                too_low = middle
    return point


def _clip(value: int, r: Range) -> int:
    value = max(value, r.low or 0)
    return value if r.high is None else min(value, r.high)
