"""Layout identities: inverse permutations, slices of joined tensors, repeated broadcasts; what surrounds an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

from ....ops.body import Equation
from ....ops.dims import Dim, Verdict, equal
from ....ops.layout import (
    BROADCAST_TO,
    FLATTEN,
    PERMUTE,
    RESHAPE,
    SQUEEZE,
    SWAP_ADJACENT_AT_DEPTH,
    TRANSPOSE2D,
    TRANSPOSE3D_FIRST_TO_LAST,
    TRANSPOSE3D_LAST_TO_FIRST,
    TRANSPOSE3D_LAST_TWO,
    UNSQUEEZE,
)
from ....ops.primitive import NO_STATIC, Primitive, Static
from ....ops.slicing import CONCAT, PAD, SLICE
from ....ops.types import Shape, TensorType
from .constants import Uniforms
from .rewrite import Rewrite

# Surroundings ---------------------------------------------------------------------------------------------------------


Inputs: TypeAlias = "tuple[int, ...]"
Rule: TypeAlias = "Callable[[Surroundings, Inputs, Static, TensorType], int | None]"
"""(around, operands, static parameters, type of the result) -> the slot of an equivalent result, or None to keep the
op."""


@final
class Surroundings:
    """The new body so far. Rules inspect the equations that define an op's operands.

    place       the equation that is being replaced
    """

    __slots__ = ("rewrite", "rules", "place", "_uniforms", "_made")
    place: Equation

    def __init__(self, rewrite: Rewrite, rules: Mapping[Primitive, tuple[Rule, ...]]):
        self.rewrite = rewrite
        self.rules = rules
        self._uniforms = Uniforms(rewrite.constants)
        self._made: dict[int, Equation] = {}

    def see(self, equation: Equation) -> None:
        """Note an equation of the new body."""
        if len(equation.outputs) == 1:
            self._made[equation.outputs[0]] = equation
            self._uniforms.see(equation, equation.inputs, self.rewrite.types)

    def made(self, slot: int, by: Primitive) -> Equation | None:
        """Return the equation that defines `slot`, if its primitive is `by`."""
        equation = self._made.get(slot)
        return equation if equation is not None and equation.primitive is by else None

    def number(self, slot: int) -> Any:
        """Return the number that the tensor holds everywhere, or None."""
        return self._uniforms.get(slot)

    def type(self, slot: int) -> TensorType:
        return self.rewrite.types[slot]

    def shape(self, slot: int) -> Shape:
        return self.rewrite.types[slot].shape

    def simpler(self, primitive: Primitive, inputs: Inputs, static: Static, out: TensorType) -> int | None:
        """Return the slot that replaces this op, by the first rule that applies."""
        for rule in self.rules.get(primitive, ()):
            slot = rule(self, inputs, static, out)
            if slot is not None:
                return slot
        return None

    def bind(self, primitive: Primitive, *inputs: int, **static: Any) -> int:
        """Add an op at the place of the equation, simplified if possible, and return its result."""
        place, types = self.place, self.rewrite.types
        (out,) = primitive.infer(tuple([types[slot] for slot in inputs]), static, place.region.name)
        slot = self.simpler(primitive, inputs, static, out)
        if slot is None:
            (slot,) = self.rewrite.write(primitive, inputs, static or NO_STATIC, (out,), place)
            self.see(self.rewrite.equations[-1])
        return slot


def same_size(a: Dim, b: Dim) -> bool:
    """Return whether two sizes are provably equal."""
    if type(a) is int and type(b) is int:
        return a == b
    return a is b or equal(a, b) is Verdict.proved


def same_shape(x: Shape, y: Shape) -> bool:
    """Return whether two shapes are provably equal."""
    return x is y or (len(x) == len(y) and all(map(same_size, x, y)))


def is_one(size: Dim) -> bool:
    """Return whether a size is the literal 1."""
    return type(size) is int and size == 1


# Canonical ops: `reshape` for any change of shape, `permute` for any change of axis order -----------------------------


def _as_reshape(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    return around.bind(RESHAPE, *inputs, shape=out.shape)


def _as_permute(*axes: int) -> Rule:
    return lambda around, inputs, static, out: around.bind(PERMUTE, *inputs, axes=axes)


def _swap(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    depth, rank = static["depth"], len(out.shape)
    axes = (*range(depth), depth + 1, depth, *range(depth + 2, rank))
    return around.bind(PERMUTE, *inputs, axes=axes)


def _reshape(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    (x,) = inputs
    if same_shape(around.shape(x), out.shape):
        return x
    if before := around.made(x, RESHAPE):
        return around.bind(RESHAPE, *before.inputs, shape=out.shape)
    if any(type(size) is int and size == -1 for size in static["shape"]):
        return around.bind(RESHAPE, x, shape=out.shape)
    return None


def _permute(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    (x,), axes = inputs, static["axes"]
    shape = around.shape(x)
    if list(axes) == list(range(len(shape))):
        return x
    if before := around.made(x, PERMUTE):
        first = before.static["axes"]
        return around.bind(PERMUTE, *before.inputs, axes=tuple([first[axis] for axis in axes]))
    moved = [axis for axis in axes if not is_one(shape[axis])]
    return around.bind(RESHAPE, x, shape=out.shape) if moved == sorted(moved) else None


def _broadcast_to(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    (x,) = inputs
    shape = around.shape(x)
    added = len(out.shape) - len(shape)
    if all(map(is_one, out.shape[:added])) and same_shape(shape, out.shape[added:]):
        return around.bind(RESHAPE, x, shape=out.shape)
    if before := around.made(x, BROADCAST_TO):
        return around.bind(BROADCAST_TO, *before.inputs, shape=out.shape)
    if before := around.made(x, RESHAPE):  # a reshape that only adds leading axes of size 1
        (source,) = before.inputs
        front = len(shape) - len(around.shape(source))
        if front >= 0 and all(map(is_one, shape[:front])) and same_shape(around.shape(source), shape[front:]):
            return around.bind(BROADCAST_TO, source, shape=out.shape)
    return None


# Concatenation and slicing
# ----------------------------------------------------------------------------------------------


_MOST_PARTS = 64
"""Joined tensors with more parts are not flattened into a join, so that a chain of joins takes linear time."""


def _concat(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    axis: int = static["axis"]
    parts: list[int] = []
    for x in inputs:
        inner = around.made(x, CONCAT)
        opens = inner is not None and inner.static["axis"] == axis and len(inner.inputs) <= _MOST_PARTS
        parts.extend(inner.inputs if inner is not None and opens else (x,))
    filled = [x for x in parts if not same_size(around.shape(x)[axis], 0)] or parts[:1]
    joined: list[int] = []
    for x in filled:
        together = _adjacent(around, joined[-1], x, axis) if joined else None
        if together is None:
            joined.append(x)
        else:
            joined[-1] = together
    if len(joined) == 1:
        return joined[0]
    return around.bind(CONCAT, *joined, axis=axis) if tuple(joined) != inputs else None


def _adjacent(around: Surroundings, x: int, y: int, axis: int) -> int | None:
    """Merge two adjacent slices of one tensor into one slice."""
    first, second = around.made(x, SLICE), around.made(y, SLICE)
    if first is None or second is None or first.inputs != second.inputs:
        return None
    a, b = first.static, second.static
    if not (a["axis"] == b["axis"] == axis and a["step"] == b["step"] == 1):
        return None
    if not same_size(a["start"] + a["length"], b["start"]):
        return None
    return around.bind(SLICE, *first.inputs, axis=axis, start=a["start"], length=a["length"] + b["length"], step=1)


def _slice(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    (x,), axis, start, length, step = inputs, static["axis"], static["start"], static["length"], static["step"]
    if step != 1 and is_one(length):
        return around.bind(SLICE, x, axis=axis, start=start, length=length, step=1)
    if step == 1 and same_size(start, 0) and same_size(length, around.shape(x)[axis]):
        return x
    before = around.made(x, SLICE)
    if before and before.static["axis"] == axis:
        outer = before.static
        start, step = outer["start"] + start * outer["step"], step * outer["step"]
        return around.bind(SLICE, *before.inputs, axis=axis, start=start, length=length, step=step)
    if before := around.made(x, BROADCAST_TO):
        (source,) = before.inputs
        own = axis - len(out.shape) + len(around.shape(source))
        if own < 0 or is_one(around.shape(source)[own]):
            return around.bind(BROADCAST_TO, source, shape=out.shape)
    if type(start) is int and type(length) is int and length > 0:
        if joined := around.made(x, CONCAT):
            return (
                _part(around, joined.inputs, joined.static["axis"], static) if joined.static["axis"] == axis else None
            )
        if padded := around.made(x, PAD):
            return _inside(around, padded.inputs[0], padded.static, static)
    return None


def _part(around: Surroundings, parts: Inputs, axis: int, static: Static) -> int | None:
    """Return a slice of one of the joined tensors that contains it."""
    start, last = static["start"], static["start"] + (static["length"] - 1) * static["step"]
    at = 0
    for x in parts:
        size = around.shape(x)[axis]
        if type(size) is not int:
            return None
        if at <= start and last < at + size:
            return around.bind(SLICE, x, **{**static, "start": start - at})
        at += size
    return None


def _inside(around: Surroundings, x: int, padded: Static, static: Static) -> int | None:
    """Return a slice of the unpadded tensor, if only the slice's axis is padded and the slice excludes the padding."""
    axis: int = static["axis"]
    size: Dim = around.shape(x)[axis]
    others = [pair for i, pair in enumerate(padded["padding"]) if i != axis]
    if any(padded["interior"]) or any(not same_size(amount, 0) for pair in others for amount in pair):
        return None
    before, start = padded["padding"][axis][0], static["start"]
    last = start + (static["length"] - 1) * static["step"]
    if type(before) is not int or type(size) is not int or not before <= start <= last < before + size:
        return None
    return around.bind(SLICE, x, **{**static, "start": start - before})


def _pad(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    nothing = not any(static["interior"]) and all(same_size(a, 0) for pair in static["padding"] for a in pair)
    return inputs[0] if nothing else None


LAYOUT: dict[Primitive, tuple[Rule, ...]] = {
    FLATTEN: (_as_reshape,),
    SQUEEZE: (_as_reshape,),
    UNSQUEEZE: (_as_reshape,),
    RESHAPE: (_reshape,),
    TRANSPOSE2D: (_as_permute(1, 0),),
    TRANSPOSE3D_FIRST_TO_LAST: (_as_permute(1, 2, 0),),
    TRANSPOSE3D_LAST_TO_FIRST: (_as_permute(2, 0, 1),),
    TRANSPOSE3D_LAST_TWO: (_as_permute(0, 2, 1),),
    SWAP_ADJACENT_AT_DEPTH: (_swap,),
    PERMUTE: (_permute,),
    BROADCAST_TO: (_broadcast_to,),
    CONCAT: (_concat,),
    SLICE: (_slice,),
    PAD: (_pad,),
}
