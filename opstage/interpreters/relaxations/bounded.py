"""Linear bounds of a program's results over boxes of its arguments, as a program of the interpreter beneath."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import optree

from ...ops.box import Box, is_box
from ...ops.cursor import Quietly
from ...ops.trees import unflatten
from ..interpreter import Interpreter
from ..intervals.bounded import bounded_by, ends, shown
from .interpreter import Related, Relaxed
from .separate import NotSeparate

MOST = 1024
"""The most elements of a sample for which the inputs of an activation are bounded by relaxations too."""


def bounds(ops: Interpreter[Any], f: Callable[..., Any], *trees: Any, most: int = MOST) -> Any:
    """A tree of boxes for the results of `f(ops', *trees)`, by CROWN.

    Where all boxes have one size along their leading axis, and the program keeps those apart, each is bounded by itself
    in one pass for all; else all of them are one box.
    """
    samples = _samples(trees)
    if samples > 1:
        place = ops.cursor.mark()
        try:
            return _bounds(ops, f, trees, samples, most)
        except NotSeparate:
            ops.cursor.rewind(place)
    return _bounds(ops, f, trees, 1, most)


def _samples(trees: tuple[Any, ...]) -> int:
    boxes = [
        leaf
        for leaf in optree.tree_leaves(cast("Any", trees), is_leaf=is_box, namespace="opstage")
        if isinstance(leaf, Box)
    ]
    sizes = {int(box.lower.shape[0]) if box.lower.shape else 0 for box in boxes}
    return max(sizes) if len(sizes) == 1 else 1


def _bounds(ops: Interpreter[Any], f: Callable[..., Any], trees: tuple[Any, ...], samples: int, most: int) -> Any:
    relaxed = Relaxed(ops, samples, most)

    def box(lower: Any, upper: Any) -> Related[Any]:
        return Related(relaxed.intervals.between(*ends(ops, lower, upper)), relaxed)

    found, structure = bounded_by(relaxed, box, f, trees)
    with Quietly(ops.cursor):
        for ref in found:
            if ref.dtype.kind == "f":
                ref.tight = ref.relation is None
                relaxed.most = 1 << 62
                relaxed.tightened(ref)
        return unflatten(structure, [shown(ops, ref.interval) for ref in found])
