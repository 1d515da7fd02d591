"""`Box`: the set of tensors between a lower and an upper bound, as an argument or result of bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import optree

from .arrays import as_numpy
from .errors import UsageError
from .trees import flatten


@final
@dataclass(frozen=True)
class Box:
    """The tensors x with lower <= x <= upper, elementwise; both ends have the same shape.

    An element from -inf to inf is unknown; it may even be nan.

    Raises:
        UsageError: ends of other shapes, or lower above upper, where it is used.
    """

    lower: Any
    upper: Any

    @staticmethod
    def around(x: Any, radius: Any, *, least: float = -np.inf, greatest: float = np.inf) -> Box:
        """Return all tensors within `radius` of x, elementwise, clipped to `least` and `greatest`."""
        x = as_numpy(x)
        if x.dtype.kind not in "fiub":
            raise UsageError(f"a box is around a tensor of numbers, not {x.dtype} values")
        return Box(np.maximum(x - radius, least).astype(x.dtype), np.minimum(x + radius, greatest).astype(x.dtype))


flatten(Box(0.0, 0.0))  # registers the class as a node of trees


def is_box(tree: Any) -> bool:
    """Return whether a tree is a box."""
    return type(tree) is Box


def map_boxes(function: Any, tree: Any) -> Any:
    """Map a function over the leaves of a tree, treating boxes as leaves."""
    return optree.tree_map(function, tree, is_leaf=is_box, namespace="opstage")
