"""Convert names of an imported model to names of arguments and dims."""

from __future__ import annotations

import keyword
import re
from collections.abc import Container

_TAKEN = ("ops", "params", "state", "train")


def argument_name(name: str, taken: Container[str]) -> str:
    """Return the name as a unique Python identifier."""
    plain = re.sub(r"\W+", "_", name).strip("_") or "x"
    plain = f"_{plain}" if plain[0].isdigit() or keyword.iskeyword(plain) else plain
    unique, i = plain, 1
    while unique in taken or unique in _TAKEN:
        i += 1
        unique = f"{plain}_{i}"
    return unique
