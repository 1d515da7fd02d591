"""Whether all operands are finite: otherwise a product with 0 is nan and must not be skipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.types import EXACT


def only_numbers(*operands: npt.NDArray[Any]) -> bool:
    """Whether the operands have neither nan nor infinity.

    Also returns False for numbers so large that their sum overflows; the caller then takes the slower path needlessly.
    """
    return all(x.dtype == EXACT or np.isfinite(np.add.reduce(x, axis=None)) for x in operands)
