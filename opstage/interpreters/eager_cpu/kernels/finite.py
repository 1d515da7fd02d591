"""Whether operands are numbers all through: where one is not, a product with 0 is nan and may not be left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.types import EXACT


def only_numbers(*operands: npt.NDArray[Any]) -> bool:
    """Whether there is neither a nan nor an infinity in them.

    No is also said of numbers so large that their sum overflows: who asks then takes the longer way for nothing.
    """
    return all(x.dtype == EXACT or np.isfinite(np.add.reduce(x, axis=None)) for x in operands)
