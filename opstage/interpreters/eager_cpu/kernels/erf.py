"""The error function for NumPy, which has none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Compute erf with the accuracy of the C library, element by element; the compiled loop replaces it if allowed."""
    out: npt.NDArray[Any] = np.asarray(_erf(x), dtype=x.dtype)
    return out
