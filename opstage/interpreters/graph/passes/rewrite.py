"""`Rewrite`: rebuilds a body equation by equation, replacing some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from ....ops.body import Body, BodyConstant, Equation, with_opened
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType


@final
class Rewrite:
    """The equations of a new body, in order. Slots keep their numbers; new tensors get new ones.

    types       of every slot, new ones last
    same        for a slot whose equation was removed, its replacement
    """

    __slots__ = ("body", "types", "equations", "constants", "same", "changed")

    def __init__(self, body: Body):
        self.body = body
        self.types: list[TensorType] = list(body.types)
        self.equations: list[Equation] = []
        self.constants: list[BodyConstant] = list(body.constants)
        self.same: dict[int, int] = {}
        self.changed = False

    def inputs(self, equation: Equation) -> tuple[int, ...]:
        """Return the inputs of an old equation, as slots of the new body."""
        same = self.same
        return tuple([same.get(slot, slot) for slot in equation.inputs]) if same else equation.inputs

    def keep(self, equation: Equation, inputs: tuple[int, ...]) -> Equation:
        """Add the equation unchanged, on these inputs."""
        if inputs != equation.inputs:
            equation = equation._replace(inputs=inputs)
        self.equations.append(equation)
        return equation

    def replace(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Replace old slots by slots of the new body."""
        self.changed = True
        self.same.update(zip(old, new))

    def write(
        self,
        primitive: Primitive,
        inputs: tuple[int, ...],
        static: Static,
        results: Sequence[TensorType],
        place: Equation,
    ) -> tuple[int, ...]:
        """Add an equation with results of known types."""
        self.changed = True
        first = len(self.types)
        self.types.extend(results)
        outputs = tuple(range(first, first + len(results)))
        self.equations.append(
            Equation(primitive, static, inputs, outputs, place.region, place.ordinal, False, place.backward)
        )
        return outputs

    def inline(self, body: Body, inputs: tuple[int, ...], place: Equation) -> tuple[int, ...]:
        """Inline `body` on these inputs at the place of an equation, and return its outputs."""
        slots = dict(zip(body.inputs, inputs))
        for constant in body.constants:
            slots[constant.slot] = self.constant(constant.value, constant.type)
        for equation in body.equations:
            operands = tuple([slots[slot] for slot in equation.inputs])
            results = [body.types[slot] for slot in equation.outputs]
            at = place._replace(region=equation.region) if equation.region.path else place
            slots.update(zip(equation.outputs, self.write(equation.primitive, operands, equation.static, results, at)))
        return tuple([slots[slot] for slot in body.outputs])

    def constant(self, value: Any, type: TensorType) -> int:
        """Add a constant and return its slot; `value` is not copied and must not change."""
        self.changed = True
        self.types.append(type)
        slot = len(self.types) - 1
        self.constants.append(BodyConstant(slot, value, type))
        return slot

    def close(self) -> Body:
        """Return the new body, or the old one if nothing changed."""
        if not self.changed:
            return self.body
        same = self.same
        outputs = tuple([same.get(slot, slot) for slot in self.body.outputs])
        return self.body.replace(
            constants=self.constants, equations=with_opened(self.equations, outputs), outputs=outputs, types=self.types
        )
