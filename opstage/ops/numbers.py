"""Numbers from users: NumPy scalars and arrays of one number become Python numbers."""

from __future__ import annotations

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Convert a NumPy scalar, or an array without axes, to a Python number; return anything else unchanged."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    return value


def plain_index(value: Any) -> Any:
    """Convert a NumPy integer, which is not a static parameter, to a Python int; return anything else unchanged."""
    return int(value) if isinstance(value, np.integer) else value


def plain_sequence(value: Any) -> Any:
    """Convert as `plain`, and an array with one axis to a tuple of Python numbers."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(value.tolist())
    return plain(value)
