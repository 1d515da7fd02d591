"""Check boxes given by users, and round them outward to the dtype of the program."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..ops.arrays import as_numpy
from ..ops.box import Box, is_box, map_boxes
from ..ops.errors import UsageError
from ..ops.spec import Spec
from ..ops.types import DType, as_dtype


def declared_boxes(tree: Any, name: str) -> Any:
    """The tree with a box for each Spec: all tensors of its shape within its declared range."""
    return map_boxes(lambda leaf: _box_of(leaf, name) if isinstance(leaf, Spec) else leaf, tree)


def _box_of(spec: Spec, name: str) -> Box:
    sizes = spec.entries
    if spec.range is None:
        raise UsageError(f"argument {name}: {spec} declares no range; add one, such as range=(0, 1), or give a Box")
    if not all(str(size).isdecimal() for size in sizes):
        raise UsageError(f"argument {name}: {spec} names sizes; bounds are those of tensors, with numbers for sizes")
    shape, dtype = tuple(map(int, sizes)), as_dtype(spec.dtype or "float64")
    low, high = spec.range
    if dtype.kind == "i":
        limits = np.iinfo(dtype)
        low, high = math.ceil(max(low, limits.min)), math.floor(min(high, limits.max))
        # converted to a float, the largest int64 is rounded up by one
        low, high = max(low, limits.min), min(high, limits.max)
    return Box(np.full(shape, low, dtype), np.full(shape, high, dtype))


def outward(tree: Any, dtype: DType, name: str) -> Any:
    """The tree with each box in `dtype`, never smaller than before; `name` is the argument's name in errors."""
    return map_boxes(lambda leaf: _cast(leaf, dtype, name) if is_box(leaf) else leaf, tree)


def _cast(box: Box, dtype: DType, name: str) -> Box:
    lower, upper = as_numpy(box.lower), as_numpy(box.upper)
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
    """The end in a dtype, moved to the next number outward where rounding moved it inward."""
    if end.dtype == dtype:
        return end
    with np.errstate(over="ignore"):
        cast = end.astype(dtype)
    inward = cast > end if limit < 0 else cast < end
    return np.where(inward, np.nextafter(cast, dtype.type(limit)), cast)
