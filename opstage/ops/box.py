"""`Box`: all tensors between a lower and an upper one, as an argument or a result of bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import optree

from .trees import flatten


@final
@dataclass(frozen=True)
class Box:
    """The tensors x with lower <= x <= upper, element by element; both ends are of one shape.

    An element from -inf to inf is one of which nothing is known, not even that it is a number.

    Raises:
        UsageError: ends of other shapes, or lower above upper, where it is used.
    """

    lower: Any
    upper: Any

    @staticmethod
    def around(x: Any, radius: Any, *, least: float = -np.inf, greatest: float = np.inf) -> Box:
        """All tensors within `radius` of x, element by element, that are nowhere below `least` or above `greatest`."""
        x = np.asarray(x)
        return Box(np.maximum(x - radius, least).astype(x.dtype), np.minimum(x + radius, greatest).astype(x.dtype))


flatten(Box(0.0, 0.0))  # registers the class as a node of trees


def is_box(tree: Any) -> bool:
    """Whether a tree is a box."""
    return type(tree) is Box


def map_boxes(function: Any, tree: Any) -> Any:
    """The tree with `function(leaf)` for every leaf, where a box is one leaf."""
    return optree.tree_map(function, tree, is_leaf=is_box, namespace="opstage")
