"""Names in Python source: identifiers, parameters, and constants in the weights file."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Collection
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from ...interpreters.graph.notation import digest
from .steps import ProgramSteps, reads

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


# Names of parameters and buffers -------------------------------------------------------------------------------------

_MADE_UP = re.compile(r"::|^\W*(val_|t_)?\d+$")


def given_names(found: ProgramSteps) -> dict[str, str]:
    """Return readable names of parameters and buffers: replace a generated one, `onnx::MatMul_12`, by the module that
    reads it, `encoder.layer.0.query.weight`."""
    names = _without_roots(found)
    kinds = {slot: (kind, names.get(name, name)) for slot, (kind, name) in found.inputs.items()}
    taken = {name for kind, name in kinds.values() if kind in ("params", "state")}
    for step in found.steps:
        for slot in reads(step):
            kind, name = found.inputs.get(slot, ("", ""))
            if kind != "params" or name in names or not _MADE_UP.search(name) or not step.path:
                continue
            module = ".".join(word for word, _ in step.path)
            choices = (f"{module}.weight{'' if i == 1 else f'_{i}'}" for i in count(1))
            names[name] = next(choice for choice in choices if choice not in taken)
            taken.add(names[name])
    found.inputs = {slot: (kind, names.get(name, name)) for slot, (kind, name) in found.inputs.items()}
    return names


def _without_roots(found: ProgramSteps) -> dict[str, str]:
    """Return names without the prefixes `params.` and `state.` of Opstage's own exports."""
    by_kind = {kind: [name for each, name in found.inputs.values() if each == kind] for kind in ("params", "state")}
    if not all(name.startswith(f"{kind}.") for kind, names in by_kind.items() for name in names):
        return {}
    short = {name: name.partition(".")[2] for names in by_kind.values() for name in names}
    return short if len(set(short.values())) == len(short) and all(short.values()) else {}


# Constants in the weights file ---------------------------------------------------------------------------------------

MOST_INLINE = 16
"""The largest number of elements of a constant in the source."""


def is_small(array: npt.NDArray[Any]) -> bool:
    """Whether a constant is written into the source."""
    return array.size <= MOST_INLINE and (array.size > 0 or array.ndim == 1)


class LargeConstants:
    """Large constants by name, with each array stored once.

    root   the prefix of their names, which no name in `taken` has
    """

    def __init__(self, taken: Collection[str]):
        self.root = "constant_"
        while any(name.startswith(self.root) for name in taken):
            self.root = f"own_{self.root}"
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self._known: dict[str, str] = {}

    def name(self, array: npt.NDArray[Any]) -> str:
        """Return the name of a constant in the file; floats that float32 represents exactly are stored as such."""
        key = digest(array)
        if key not in self._known:
            self._known[key] = f"{self.root}{len(self._known) + 1}"
            narrow = array.astype(np.float32) if array.dtype == np.float64 else array
            same = array.dtype != np.float64 or np.array_equal(narrow.astype(np.float64), array, equal_nan=True)
            self.arrays[self._known[key]] = narrow if same else array
        return self._known[key]
