"""Unique identifiers for Python source."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Collection

RESERVED = frozenset(
    {
        *keyword.kwlist,
        *keyword.softkwlist,
        *dir(builtins),
        *(
            "ops",
            "params",
            "state",
            "moved",
            "prefix",
            "train",
            "config",
            "program",
            "make",
            "math",
            "i",
            "l",
            "O",
            "I",
        ),
        *("Config", "Network", "Model", "Spec", "dataclass", "supervised"),
        *("INPUTS", "OUTPUTS", "PARAMS", "STATE", "STATE_NAMES", "TENSORS", "RECIPE"),
        *("maximum", "minimum", "ratio", "rsqrt", "tensors_beside"),
    }
)
"""Names with a meaning in the source."""


_LETTERS = ("x", "y", "z", "u", "v", "w")
LOCALS = (
    *_LETTERS,
    "h",
    "weight",
    "dropout",
    "step",
    "carry",
    "entry",
    "tensors",
    "then",
    "otherwise",
    "unfinished",
)
"""Names of tensors, in addition to names of ops; no function may have one of them."""


def identifier(name: str, fallback: str = "x") -> str:
    """Return a name of ASCII letters, digits and `_` that begins with a letter; `fallback` if nothing remains."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or fallback
    return plain if plain[0].isalpha() else f"{fallback}_{plain}"


class SourceNames:
    """Unique names of one scope."""

    def __init__(self, taken: Collection[str] = ()):
        self._taken = {*taken}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def take(self, name: str) -> str:
        """Return `name`, with a number appended if it is taken."""
        unique, i = name, 1
        while unique in self._taken or unique in RESERVED:
            i += 1
            unique = f"{name}_{i}"
        self._taken.add(unique)
        return unique
