"""Checks on the numbers that optimizers, schedules and clipping are made with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

from ..ops.errors import UsageError, nearest


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def require_nonnegative(owner: str, name: str, value: Any) -> None:
    """`value` must be a finite number that is at least 0."""
    if not _is_finite(value) or value < 0:
        raise UsageError(f"{owner}: {name} must be a finite number that is at least 0 but is {value!r}")


def require_positive(owner: str, name: str, value: Any) -> None:
    """`value` must be a finite number above 0."""
    if not _is_finite(value) or value <= 0:
        raise UsageError(f"{owner}: {name} must be a finite number above 0 but is {value!r}")


def require_fraction(owner: str, name: str, value: Any, *, closed: bool = False) -> None:
    """`value` must be in [0, 1), or with `closed` in [0, 1]."""
    if not _is_finite(value) or not 0 <= value <= 1 or (value == 1 and not closed):
        raise UsageError(f"{owner}: {name} must be a number in [0, 1{']' if closed else ')'} but is {value!r}")


def require_count(owner: str, name: str, value: Any, least: int = 1) -> None:
    """`value` must be an int that is at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{owner}: {name} must be an int that is at least {least} but is {value!r}")


def require_choice(owner: str, name: str, value: Any, choices: Iterable[str]) -> None:
    """`value` must be one of `choices`."""
    known = tuple(choices)
    if value not in known:
        raise UsageError(f"{owner}: {name} must be one of {known} but is {value!r}{nearest(value, known)}")
