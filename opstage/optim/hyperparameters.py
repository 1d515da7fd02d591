"""The hyperparameters of optimizers, schedules and clipping: their declaration, and the checks on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields
from fractions import Fraction
from functools import partial
from numbers import Real
from typing import Any

from ..ops.errors import UsageError, nearest
from ..ops.static_arguments import plain, plain_sequence


def as_real(value: Any) -> float | Fraction | None:
    """Return a finite number as a float and a Fraction unchanged, or None for anything else, including booleans."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        real = float(value)
    except OverflowError:
        return None
    if not math.isfinite(real):
        return None
    return value if isinstance(value, Fraction) else real


def require_reals(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalars of a step, which a custom schedule or optimizer may have computed, as floats."""
    found: dict[str, Any] = {}
    for name, value in scalars.items():
        real = value if type(value) is float and 0 <= value < math.inf else as_real(value)
        rate = name == "lr" or name.endswith(".lr")
        if real is None or (real < 0 and rate):
            what = "learning rate" if rate else f"number {name} of the optimizer's step"
            raise UsageError(f"{what} must be finite and at least 0 but is {_shown(value)}")
        found[name] = real
    return found


def require_nonnegative(owner: str, name: str, value: Any) -> Any:
    """Return `value` as a float, checked to be finite and at least 0; a Fraction stays one."""
    real = as_real(value)
    if real is None or real < 0:
        raise UsageError(f"{owner}: {name} must be a finite number that is at least 0 but is {_shown(value)}")
    return real


def require_positive(owner: str, name: str, value: Any) -> Any:
    """Return `value` as a float, checked to be finite and above 0; a Fraction stays one."""
    real = as_real(value)
    if real is None or real <= 0:
        raise UsageError(f"{owner}: {name} must be a finite number above 0 but is {_shown(value)}")
    return real


def require_fraction(owner: str, name: str, value: Any, *, closed: bool = False) -> Any:
    """Return `value` as a float, checked to be in [0, 1), or [0, 1] if `closed`; a Fraction stays one."""
    real = as_real(value)
    if real is None or not 0 <= real <= 1 or (real == 1 and not closed):
        raise UsageError(f"{owner}: {name} must be a number in [0, 1{']' if closed else ')'} but is {_shown(value)}")
    return real


def require_count(owner: str, name: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int, checked to be at least `least`."""
    if type(value) is int and value >= least:
        return value
    count = plain(value)
    if not isinstance(count, int) or isinstance(count, bool) or count < least:
        raise UsageError(f"{owner}: {name} must be an int that is at least {least} but is {_shown(value)}")
    return count


def _shown(value: Any) -> str:
    text = "an int of many digits" if isinstance(value, int) and abs(value) > 10**40 else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def keep(holder: object, name: str, value: Any) -> None:
    """Set a field of a frozen dataclass during its construction."""
    object.__setattr__(holder, name, value)


def require_choice(owner: str, name: str, value: Any, choices: Iterable[str]) -> Any:
    """Return `value`, checked to be one of `choices`."""
    known = tuple(choices)
    if value not in known:
        raise UsageError(f"{owner}: {name} must be one of {known} but is {value!r}{nearest(value, known)}")
    return value


def pair(owner: str, name: str, value: Any) -> tuple[Any, ...]:
    """Return `value` as a tuple, checked to be a pair of numbers in [0, 1)."""
    betas = plain_sequence(value)
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise UsageError(f"{owner}: {name} must be a pair such as (0.9, 0.999) but is {value!r}")
    return tuple([require_fraction(owner, f"{name}[{i}]", b) for i, b in enumerate(betas)])


# Fields of dataclasses ------------------------------------------------------------------------------------------------

_CHECK = "check"


def number(check: Callable[[str, str, Any], Any], default: Any = MISSING) -> Any:
    """Declare a hyperparameter; `check(owner, name, value)` returns the value to keep or raises a UsageError."""
    return field(default=default, metadata={_CHECK: check})


at_least_0 = partial(number, require_nonnegative)
share = partial(number, partial(require_fraction, closed=True))
count = partial(number, require_count)


def check_numbers(holder: Any, owner: str) -> None:
    """Check the hyperparameters of a dataclass, which messages call `owner`, during its construction."""
    for each in fields(holder):
        if _CHECK in each.metadata:
            keep(holder, each.name, each.metadata[_CHECK](owner, each.name, getattr(holder, each.name)))
