"""Which numbers of a traced loss depend on how many rows it was traced with, found by another trace with others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from ..ops.closed import Body, Equation

_POWERS = {"scale": "c", "full": "value"}
"""The ops, and their static parameters, in which a power of the number of rows is followed."""


def astray(one: Body, two: Body, rows: int, more: int) -> frozenset[int] | None:
    """Return the slots of the results of ops in which a number depends on the number of rows, other than as a multiple
    of an integer or by a power where that is followed; None if the traces have different ops.

    one, two     the bodies, traced with `rows` and `more` of them
    """
    if len(one.equations) != len(two.equations) or len(one.constants) != len(two.constants):
        return None
    found = set[int]()
    for a, b in zip(one.constants, two.constants):
        if not _same_constant(a.value, b.value, rows, more):
            found.add(a.slot)
    for e, other in zip(one.equations, two.equations):
        if e.primitive is not other.primitive or e.inputs != other.inputs:
            return None
        if not _follows(e, other, rows, more, inside=False):
            found.update(e.outputs)
    return frozenset(found)


def number_of(value: Any) -> Fraction:
    """Return a number as the ratio of moderate integers that it was computed from; 1 if there is none."""
    if isinstance(value, (int, Fraction, np.integer, np.bool_)):
        return value if isinstance(value, Fraction) else Fraction(int(value))
    try:
        near = Fraction(float(value)).limit_denominator(10**7)
    except (OverflowError, TypeError, ValueError):
        return Fraction(1)
    return near if float(near) == float(value) else Fraction(1)


def power_of(factor: Fraction, rows: int) -> int:
    """Return the power of `rows` in a factor; negative if it divides the denominator."""
    count, above, below = 0, abs(factor.numerator), factor.denominator
    while above and above % rows == 0:
        above, count = above // rows, count + 1
    while below % rows == 0:
        below, count = below // rows, count - 1
    return count


def _same_constant(a: Any, b: Any, rows: int, more: int) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.size == 1:
        return _is_power(a.reshape(())[()], b.reshape(())[()], rows, more)
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def _is_power(a: Any, b: Any, rows: int, more: int) -> bool:
    if a == b or (a != a and b != b):
        return True
    power = power_of(number_of(a), rows)
    return bool(power and b and math.isclose(float(a) / float(b), (rows / more) ** power, rel_tol=1e-6))


def _follows(e: Equation, other: Equation, rows: int, more: int, *, inside: bool) -> bool:
    free = "" if inside else _POWERS.get(e.primitive.name, "")
    if e.primitive is not other.primitive or e.static.keys() != other.static.keys():
        return False
    return all(
        _is_power(value, other.static[name], rows, more)
        if name == free
        else _alike(value, other.static[name], rows, more)
        for name, value in e.static.items()
    )


def _alike(a: Any, b: Any, rows: int, more: int) -> bool:
    if a is b or callable(a):
        return True
    if isinstance(a, Body):
        same = isinstance(b, Body) and len(a.equations) == len(b.equations) and len(a.constants) == len(b.constants)
        return (
            same
            and all(np.array_equal(x.value, y.value) for x, y in zip(a.constants, b.constants))
            and all(_follows(x, y, rows, more, inside=True) for x, y in zip(a.equations, b.equations))
        )
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(_alike(x, y, rows, more) for x, y in zip(a, b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_alike(x, b[name], rows, more) for name, x in a.items())
    if isinstance(a, (int, np.integer)) and not isinstance(a, (bool, np.bool_)):
        return bool(a == b or (a % rows == 0 and a * more == b * rows))
    return bool(np.all(a == b) or (a != a and b != b))
