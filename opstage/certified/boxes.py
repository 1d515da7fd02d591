"""Boxes as users give them, checked, and rounded outward to the dtype of the program."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops.box import Box, is_box, map_boxes
from ..ops.errors import UsageError
from ..ops.types import DType


def outward(tree: Any, dtype: DType, name: str) -> Any:
    """The tree with each box in `dtype`, no smaller than it was; `name` is the argument's in errors."""
    return map_boxes(lambda leaf: _cast(leaf, dtype, name) if is_box(leaf) else leaf, tree)


def _cast(box: Box, dtype: DType, name: str) -> Box:
    lower, upper = np.asarray(box.lower), np.asarray(box.upper)
    if lower.shape != upper.shape:
        raise UsageError(f"argument {name}: the ends of a box are of one shape, not {lower.shape} and {upper.shape}")
    if lower.dtype.kind not in "fiub" or upper.dtype.kind not in "fiub":
        raise UsageError(f"argument {name}: the ends of a box hold numbers, not {lower.dtype} and {upper.dtype}")
    bad = ~(lower <= upper)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise UsageError(
            f"argument {name}: a box has lower <= upper everywhere, but at {at} it is from {lower[at]} to {upper[at]}"
        )
    if lower.dtype.kind != "f" and upper.dtype.kind != "f":
        return Box(lower, upper)
    return Box(_towards(lower, dtype, -np.inf), _towards(upper, dtype, np.inf))


def _towards(end: Any, dtype: DType, limit: float) -> Any:
    """The end in a dtype, moved to the next number where rounding moved it inward."""
    if end.dtype == dtype:
        return end
    with np.errstate(over="ignore"):
        cast = end.astype(dtype)
    inward = cast > end if limit < 0 else cast < end
    return np.where(inward, np.nextafter(cast, dtype.type(limit)), cast)
