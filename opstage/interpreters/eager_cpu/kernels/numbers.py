"""Static numbers as kernels use them: rounded once to the dtype of the tensor they meet."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from ....ops.types import EXACT, DType


def number(value: Any, dtype: DType) -> Any:
    """A Python float, int or exact Fraction that NumPy will round to `dtype` and not promote."""
    if dtype == EXACT:
        return Fraction(value)
    if type(value) is float or type(value) is int:
        return value
    return int(value) if np.dtype(dtype).kind in "iu" else float(value)
