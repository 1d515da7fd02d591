"""Amounts of memory in readable form: `24GiB`, `800MB`, `512`."""

from __future__ import annotations

import re
from fractions import Fraction

from .errors import UsageError, nearest
from .untrusted import brief

_UNITS: dict[str, int] = {"B": 1}
for _power, _prefix in enumerate("KMGT", 1):
    _UNITS |= {f"{_prefix}B": 10 ** (3 * _power), f"{_prefix}iB": 2 ** (10 * _power)}
_AMOUNT = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?|\.\d{1,30})\s*([A-Za-z]*)\s*")
_EXAMPLES = "write 24GiB, 1.5GB or 800MB; MiB are 1024² bytes, MB are 1000²"


def parse_bytes(amount: str | int) -> int:
    """Return the number of bytes in a text: a whole number, or a number with a unit B, KB, MB, GB, TB, KiB … TiB.

    Raises UsageError for any other text, and for amounts below 1 byte.
    """
    if isinstance(amount, str):
        found = _AMOUNT.fullmatch(amount)
        if found is None:
            raise UsageError(f"an amount of memory is a number and a unit, not {brief(amount)}; {_EXAMPLES}")
        number = int(Fraction(found[1]) * _factor(found[2], amount))
    elif isinstance(amount, int) and not isinstance(amount, bool):
        number = amount
    else:
        raise UsageError(f"an amount of memory is text or a number of bytes, not {brief(amount)}; {_EXAMPLES}")
    if number < 1:
        raise UsageError(f"an amount of memory must be at least 1 byte but is {amount}; {_EXAMPLES}")
    return number


def _factor(unit: str, amount: str) -> int:
    """Return the bytes of a unit, ignoring case."""
    if not unit:
        return 1
    for name, factor in _UNITS.items():
        if unit.lower() == name.lower():
            return factor
    raise UsageError(f"unknown unit {unit!r} in {amount!r}{nearest(unit, _UNITS)}; {_EXAMPLES}")


def show_bytes(number: int) -> str:
    """Format bytes: `512 bytes`, `8.0 KiB`, `1.5 GiB`."""
    for name in ("TiB", "GiB", "MiB", "KiB"):
        if number >= _UNITS[name]:
            return f"{number / _UNITS[name]:.1f} {name}"
    return f"{number} bytes"
