"""Names for Python source: identifiers that nothing else has."""

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
"""Names that mean something in the source."""


def identifier(name: str, fallback: str = "x") -> str:
    """A name in ASCII letters, digits and `_` that begins with a letter; of what has none of them, `fallback`."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or fallback
    return plain if plain[0].isalpha() else f"{fallback}_{plain}"


class SourceNames:
    """Names of one scope, each given once."""

    def __init__(self, taken: Collection[str] = ()):
        self._taken = {*taken}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def take(self, name: str) -> str:
        """`name`, with a number behind it where it is taken."""
        unique, i = name, 1
        while unique in self._taken or unique in RESERVED:
            i += 1
            unique = f"{name}_{i}"
        self._taken.add(unique)
        return unique
