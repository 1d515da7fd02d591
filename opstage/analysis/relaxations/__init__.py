"""Linear bounds over any interpreter (CROWN): each ref has lines below and above it, in terms of its source refs.

`bounds` turns a program into one that returns boxes, as a program of the inner interpreter. A rule is `(relaxed, refs,
static, intervals) -> refs`, or None without lines: then the interval is the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import optree

from ...ops.dispatch import Quietly
from ...ops.primitive import Primitive
from ...ops.transform import Box, is_box
from ...ops.trees import unflatten
from ...transforms.interpreter import Interpreter
from ..intervals import bound_leaves, ends, shown
from . import linear, unary
from .interpreter import NotSeparate, PhaseArrays, Phases, Related, Relaxed

MOST = 1024
"""The most elements of a sample for which relaxations bound the inputs of an activation too."""


def bounds(ops: Interpreter[Any], f: Callable[..., Any], *trees: Any, most: int = MOST) -> Any:
    """Return a tree of boxes for the results of `f(ops', *trees)`, by CROWN.

    If all boxes have one size along their leading axis, and the program keeps these samples separate, each is bounded
    on its own in one pass for all. Otherwise all of them are one box.
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


def region_bounds(
    ops: Interpreter[Any], f: Callable[..., Any], arrays: PhaseArrays | None, samples: int, *trees: Any
) -> tuple[Any, Box]:
    """Return bounds by CROWN in a region of each of `samples` boxes, and those of the operands of all relus there.

    The operands' bounds have one row for each sample, in the order of `PhaseArrays`. In an empty region an end of them
    may lie on the wrong side of the other.

    Raises:
        NotSeparate: the program mixes samples.
    """
    phases = Phases(arrays)
    found = _bounds(ops, f, trees, samples, MOST, phases)
    with Quietly(ops.cursor):
        if not phases.lowers:
            nothing = ops.full(shape=(samples, 0), value=0.0, dtype=ops.dtype)
            return found, Box(nothing, nothing)
        return found, Box(ops.concat(phases.lowers, axis=1), ops.concat(phases.uppers, axis=1))


def _bounds(
    ops: Interpreter[Any],
    f: Callable[..., Any],
    trees: tuple[Any, ...],
    samples: int,
    most: int,
    phases: Phases | None = None,
) -> Any:
    relaxed = Relaxed(ops, samples, most, phases)

    def box(lower: Any, upper: Any) -> Related[Any]:
        return Related(relaxed.intervals.between(*ends(ops, lower, upper)), relaxed)

    found, structure = bound_leaves(relaxed, box, f, trees)
    with Quietly(ops.cursor):
        for ref in found:
            if ref.dtype.kind == "f":
                ref.tight = ref.relation is None
                relaxed.most = 1 << 62
                relaxed.tighten(ref)
        return unflatten(structure, [shown(ops, ref.interval) for ref in found])


# Relations by primitive: lines below and above the results of an op, in its operands ----------------------------------

RULES: dict[Primitive, Callable[..., Any]] = {**linear.RULES, **unary.RULES}
