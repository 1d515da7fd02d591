"""Numbers as users write them: NumPy's scalars and arrays of one number are numbers of Python's."""

from __future__ import annotations

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """A NumPy scalar, or array without axes, as the Python number that it holds; anything else as it is."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    return value


def plain_sequence(value: Any) -> Any:
    """`plain`, and an array of one axis as a tuple of such numbers."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(value.tolist())
    return plain(value)
