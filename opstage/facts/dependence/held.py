"""Values that are functions of indices, as far as their dtype holds them: integers wrap around, floats are rounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from ...ops.dims import Dim
from ...ops.types import DType
from .fact import Affine, Value, number

if TYPE_CHECKING:
    from . import Dependence

EXACT_INDICES: Final = (
    "positions along axes of named sizes, and what is computed from them, are numbers that their dtype holds (below "
    "2**24 in float32)"
)
_SMALL = 2**31
"""Numbers that times a size, which is below it as well, are below what 8 bytes hold of integers."""


def held(domain: Dependence, value: Affine | None, sizes: Sequence[Dim], dtype: DType) -> Affine | None:
    """The value where the dtype holds all of its numbers, for indices below these sizes; else None.

    Where sizes have names that is assumed, with a note: for 8 bytes where a coefficient is large.
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
    """The largest size of a sum of the first part and of what is between 0 and each of the others."""
    first, rest = parts[0], parts[1:]
    return max(abs(first + sum([p for p in rest if p > 0])), abs(first + sum([p for p in rest if p < 0])))


def _largest(domain: Dependence, dtype: DType) -> int:
    """The size up to which the dtype holds every integer."""
    return int(np.iinfo(dtype).max) if dtype.kind == "i" else int(2 / domain.limits_at(dtype).epsilon)


def stored(domain: Dependence, value: object, dtype: DType) -> Value | None:
    """A static number as a tensor of the dtype holds it; None for one that has names in it."""
    found = number(value)
    if type(found) is not float or dtype.kind != "f":
        return found
    return number(domain.limits_at(dtype).nearest(found))
