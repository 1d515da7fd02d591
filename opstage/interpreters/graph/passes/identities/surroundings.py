"""A rule's view of the body around an equation, with the means to write a replacement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

from .....ops.closed import Equation
from .....ops.dims import Dim, Verdict, equal
from .....ops.primitive import NO_STATIC, Primitive, Static
from .....ops.types import Shape, TensorType
from ..rewrite import Rewrite
from ..uniform import Uniforms

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
