"""The cotangent of a tensor from those of its slices: one concatenation, not a padded tensor for each of them.

A slice's own rule pads its cotangent to the whole shape. For the parts of a `split`, and for the rows of a loop that is
written out, that moves the tensor once per slice and adds as often; T rows of T take T². Slices that lie apart are the
parts of one tensor, with zeros between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ..ops.dims import Dim, Verdict, at_most, is_zero
from ..ops.elementwise import ADD
from ..ops.primitive import Context, R, Static
from ..ops.slicing import SLICE
from ..ops.types import Shape
from .interpreter import Interpreter

Part: TypeAlias = tuple[Context[R], Static, R]
"""A slice as its rule sees it, its static parameters, and its cotangent."""


def cotangent_of_slices(ops: Interpreter[R], shape: Shape, parts: Sequence[Part[R]]) -> R:
    """Return the cotangent of a tensor of a shape from its slices, which are given in the order of the program.

    Slices that overlap are added, those of different axes too. Elements that no slice has are 0.
    """
    axes: dict[tuple[int, int], list[Part[R]]] = {}
    for part in parts:
        axes.setdefault((part[1]["axis"], part[1]["step"]), []).append(part)
    total: R | None = None
    for (axis, step), of_axis in axes.items():
        for layer in _layers(of_axis) if step == 1 else [[part] for part in of_axis]:
            found = _joined(ops, shape, axis, layer) if len(layer) > 1 else _padded(ops, layer[0])
            total = found if total is None else ops.bind2(ADD, total, found)
    assert total is not None
    return total


def _layers(parts: list[Part[R]]) -> list[list[Part[R]]]:
    """Return slices along one axis in as few groups as they overlap; within a group each lies behind the one before.

    Slices at symbolic places are compared in the order of the program; where that is not known, they are apart.
    """
    if all(type(static["start"]) is int and type(static["length"]) is int for _, static, _ in parts):
        parts = sorted(parts, key=lambda part: part[1]["start"])
    layers: list[list[Part[R]]] = []
    for part in parts:
        start = part[1]["start"]
        layer = next((each for each in layers if at_most(_end(each[-1]), start) is Verdict.proved), None)
        if layer is None:
            layers.append([part])
        else:
            layer.append(part)
    return layers


def _end(part: Part[Any]) -> Dim:
    static = part[1]
    return static["start"] + static["length"]  # type: ignore[no-any-return]


def _joined(ops: Interpreter[R], shape: Shape, axis: int, layer: list[Part[R]]) -> R:
    """Concatenate the cotangents of slices, with zeros where there is none."""
    whole: list[R] = []
    end: Dim = 0

    def fill(until: Dim) -> None:
        if not is_zero(until - end):
            gap = (*shape[:axis], until - end, *shape[axis + 1 :])
            whole.append(ops.full(shape=gap, value=0.0, dtype=layer[0][2].dtype))

    for part in layer:
        fill(part[1]["start"])
        whole.append(part[2])
        end = _end(part)
    fill(shape[axis])
    return ops.concat(whole, axis=axis)


def _padded(ops: Interpreter[R], part: Part[R]) -> R:
    ctx, static, cotangent = part
    rule: Any = SLICE.vjp
    (found,) = rule(ops, ctx, (cotangent,), **static)
    return found  # type: ignore[no-any-return]
