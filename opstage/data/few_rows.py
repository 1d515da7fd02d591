"""`FewRows`: a fast path to prepare a few rows of floats, without the checks for other kinds of data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from ..ops.trees import lists_as_arrays
from .cast import Array
from .preparation import ArgumentData, Preparation

_MOST = 1 << 16
"""The largest array, in bytes, for which the overhead of a call matters."""


@final
class FewRows:
    """Prepares inputs like `Preparation.inputs`, with the same bits, if they are a few rows of finite floats."""

    def __init__(self, preparation: Preparation, names: Sequence[str]):
        parts = [part for name in names for part in preparation.parts if part.argument == name]
        plain = len(parts) == len(names) and all(map(_is_plain, parts))
        self._parts = [(part.shape, _scaling_of(part)) for part in parts] if plain else []

    def __call__(self, inputs: Sequence[Any]) -> list[Array] | None:
        """Return the prepared arrays; None if the inputs need the general path: other types or shapes, or errors."""
        if len(inputs) != len(self._parts):
            return None
        made = []
        for x, (shape, scaled) in zip(inputs, self._parts):
            if type(x) is list:
                x = lists_as_arrays(x)
            if type(x) is not np.ndarray or x.dtype.char not in "df" or x.shape[1:] != shape or x.ndim == 0:
                return None
            if not 0 < x.nbytes <= _MOST or not math.isfinite(np.vdot(x, x)):  # that is not finite if one of x is not
                return None
            made.append(scaled(x.astype(x.dtype.newbyteorder("="), copy=False)))
        return made if made and all(len(x) == len(made[0]) for x in made) else None


def _is_plain(part: ArgumentData) -> bool:
    return part.kind == "float" and not part.image and not part.categories and not part.label


def _scaling_of(part: ArgumentData) -> Callable[[Array], Array]:
    if part.scaling is None:
        return lambda x: x
    center, width = part.scaling.numbers(1 + len(part.shape))

    def scaled(x: Array) -> Array:
        found: Array = (x - center) / width
        return found

    return scaled
