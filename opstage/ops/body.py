"""Closed bodies: a part of a program traced once, as equations between numbered tensors, to be run many times.

A body has no free variables: it reads inputs, its own constants, and results of earlier equations. So it can be a
static parameter of a primitive (`scan`). Every tensor has a number, its *slot*.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from .dims import Dim
from .dispatch import Cursor, Region
from .errors import SourceLine
from .primitive import Cost, Effect, Primitive, Static
from .types import TensorType, is_float


class Equation(NamedTuple):
    """An op of a body: outputs and residuals = primitive(inputs), with the cursor's state when it was bound."""

    primitive: Primitive
    static: Static
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    region: Region
    ordinal: int
    opened: bool = False
    """Whether a residual of this composite is read. The residual then has a cotangent, so differentiation must expand
    the composite."""
    backward: int = 0
    """1 if it belongs to the backward pass, and `RULE` if a rule that a user declared made it there."""

    @property
    def effects(self) -> frozenset[Effect]:
        """Return the effects of the primitive and of bodies in its static parameters."""
        found = self.primitive.effects
        for value in self.static.values():
            if type(value) is Body:
                found |= value.effects
        return found


class BodyConstant(NamedTuple):
    """A host array in a body."""

    slot: int
    value: npt.NDArray[Any]
    type: TensorType


@final
class Body:
    """An immutable closed program, made by `Trace.close`; compared and hashed by identity.

    inputs, outputs   slots, in the order of operands and results
    types             the type of every slot
    lines             the user's line of every op, by ordinal, for errors when the body runs
    """

    __slots__ = ("inputs", "constants", "equations", "outputs", "types", "lines", "_cost", "_effects", "_last")

    def __init__(
        self,
        inputs: tuple[int, ...],
        constants: tuple[BodyConstant, ...],
        equations: tuple[Equation, ...],
        outputs: tuple[int, ...],
        types: tuple[TensorType, ...],
        lines: Mapping[int, SourceLine | None],
    ):
        self.inputs = inputs
        self.constants = constants
        self.equations = equations
        self.outputs = outputs
        self.types = types
        self.lines = lines
        self._cost: Cost | None = None
        self._effects: frozenset[Effect] | None = None
        self._last: tuple[tuple[int, ...], ...] | None = None

    def replace(
        self,
        *,
        inputs: Sequence[int] | None = None,
        constants: Sequence[BodyConstant] | None = None,
        equations: Sequence[Equation] | None = None,
        outputs: Sequence[int] | None = None,
        types: Sequence[TensorType] | None = None,
        lines: Mapping[int, SourceLine | None] | None = None,
    ) -> Body:
        """Return a copy with the given fields replaced."""
        return Body(
            tuple(inputs) if inputs is not None else self.inputs,
            tuple(constants) if constants is not None else self.constants,
            tuple(equations) if equations is not None else self.equations,
            tuple(outputs) if outputs is not None else self.outputs,
            tuple(types) if types is not None else self.types,
            lines if lines is not None else self.lines,
        )

    def __repr__(self) -> str:
        count = len(self.types)  # a malformed body, found by the checker, can be shown too
        taken, given = (
            ", ".join(str(self.types[slot]) if 0 <= slot < count else f"%{slot}" for slot in slots)
            for slots in (self.inputs, self.outputs)
        )
        return f"<body of {len(self.equations)} ops: ({taken}) -> ({given})>"

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        return tuple([self.types[slot] for slot in self.inputs])

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple([self.types[slot] for slot in self.outputs])

    def read(self) -> set[int]:
        """Return the slots that are read by an equation or are outputs."""
        return set(self.outputs).union(*[equation.inputs for equation in self.equations])

    def last_reads(self) -> tuple[tuple[int, ...], ...]:
        """Return, for each equation, the slots of operands and results that are not read after it."""
        if self._last is None:
            later = {*self.inputs, *[constant.slot for constant in self.constants], *self.outputs}
            last = []
            for equation in reversed(self.equations):
                dropped = {slot for slot in (*equation.inputs, *equation.outputs) if slot not in later}
                later |= dropped
                last.append(tuple(sorted(dropped)))
            self._last = tuple(last[::-1])
        return self._last

    def taking(self, inputs: Sequence[int]) -> Body:
        """Return the same body with other inputs; omitted inputs must be unused."""
        return self.replace(inputs=inputs)

    def renumbered(self) -> Body:
        """Return the same body with slots renumbered in the order of inputs, constants and results, without gaps."""
        order = [*self.inputs, *[c.slot for c in self.constants], *[slot for e in self.equations for slot in e.outputs]]
        number = {slot: i for i, slot in enumerate(order)}
        inputs, outputs = ([number[slot] for slot in slots] for slots in (self.inputs, self.outputs))
        return self.replace(
            inputs=inputs,
            constants=[c._replace(slot=number[c.slot]) for c in self.constants],
            equations=[
                e._replace(inputs=tuple([number[s] for s in e.inputs]), outputs=tuple([number[s] for s in e.outputs]))
                for e in self.equations
            ],
            outputs=outputs,
            types=[self.types[slot] for slot in order],
        )

    @property
    def effects(self) -> frozenset[Effect]:
        """Return the effects of its ops."""
        if self._effects is None:
            self._effects = frozenset().union(*[equation.effects for equation in self.equations])
        return self._effects

    def reach(self, moving: Sequence[bool]) -> tuple[bool, ...]:
        """Return which outputs may change with the inputs marked `moving`: along floats, through differentiable ops."""
        reached = {slot for slot, moves in zip(self.inputs, moving) if moves}
        for equation in self.equations:
            if equation.primitive.differentiable and not reached.isdisjoint(equation.inputs):
                reached.update(slot for slot in equation.outputs if is_float(self.types[slot].dtype))
        return tuple([slot in reached for slot in self.outputs])

    def moving(self, operands: Sequence[bool], carries: int) -> tuple[list[bool], tuple[bool, ...]]:
        """Return which inputs and outputs may change when `operands` do, if the first outputs feed back into the first
        inputs."""
        moving = list(operands)
        while True:
            moved = self.reach(moving)
            grown = [before or after for before, after in zip(moving[:carries], moved)]
            if grown == moving[:carries]:
                return moving, moved
            moving[:carries] = grown

    def cost(self) -> Cost:
        """Return flops and bytes of one run."""
        if self._cost is None:
            total = Cost(0, 0)
            for equation in self.equations:
                inputs, outputs = (tuple([self.types[i] for i in slots]) for slots in equation[2:4])
                cost = equation.primitive.cost(inputs, outputs, equation.static)
                total = Cost(total.flops + cost.flops, total.bytes + cost.bytes)
            self._cost = total
        return self._cost


class ScanParameters(NamedTuple):
    """The static parameters of `scan`.

    carries, entries   the number of operands that are carries, then xs; captured operands follow
    kept               the stacked outputs of the body that a backward pass reads; trailing ones may exist only for it
    reread             the xs, by number, that a backward pass reads in addition
    """

    body: Body
    reverse: bool
    length: Dim
    carries: int
    entries: int
    kept: tuple[int, ...]
    reread: tuple[int, ...]

    def incoming(self) -> dict[int, int]:
        """Return, by carry number, the body output that equals the incoming carry."""
        carries = self.body.inputs[: self.carries]
        return {carries.index(s): i for i, s in enumerate(self.body.outputs) if i >= self.carries and s in carries}


class WhileParameters(NamedTuple):
    """The static parameters of `while_loop`. Both bodies take the carries, then what either captured.

    test    returns a boolean scalar: whether to run another iteration
    body    returns the next carries; the last one, an int64 scalar, counts iterations
    limit   the largest number of iterations; None if undeclared
    """

    test: Body
    body: Body
    limit: Dim | None


@final
class Trace:
    """A body under construction."""

    __slots__ = ("types", "constants", "equations")

    def __init__(self) -> None:
        self.types: list[TensorType] = []
        self.constants: list[BodyConstant] = []
        self.equations: list[Equation] = []

    def slot(self, type: TensorType) -> int:
        """Add a tensor and return its slot."""
        self.types.append(type)
        return len(self.types) - 1

    def constant(self, value: Any, type: TensorType) -> int:
        """Add a constant, copied to its dtype, since compiled programs read its bytes directly."""
        kept = np.array(value, type.dtype)
        assert kept.shape == type.shape
        kept.flags.writeable = False
        slot = self.slot(type)
        self.constants.append(BodyConstant(slot, kept, type))
        return slot

    def equation(
        self, primitive: Primitive, inputs: tuple[int, ...], static: Static, types: Sequence[TensorType], cursor: Cursor
    ) -> tuple[int, ...]:
        """Add an op with results of the given types at the cursor; return the slots of outputs and residuals."""
        first = len(self.types)
        self.types.extend(types)
        outputs = tuple(range(first, len(self.types)))
        self.equations.append(
            Equation(primitive, static, inputs, outputs, cursor.region, cursor.ordinal, False, cursor.backward)
        )
        return outputs

    def needed(self, outputs: Sequence[int], *, effects: bool = False, given: Collection[int] = ()) -> set[int]:
        """Return the slots on which the outputs depend, including themselves; with `effects`, also those of external
        effects.

        The results of ops with external effects are then included. Slots in `given` count as inputs.
        """
        needed = set(outputs)
        for equation in reversed(self.equations):
            if effects and Effect.EXTERNAL in equation.effects:
                needed.update(equation.outputs)
            if any(slot in needed and slot not in given for slot in equation.outputs):
                needed.update(equation.inputs)
        return needed

    def close(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        lines: Mapping[int, SourceLine | None],
        *,
        prune: bool = False,
        effects: bool = False,
    ) -> Body:
        """Return the body from `inputs` to `outputs`; with `prune`, without ops on which no output depends.

        With `effects`, ops with external effects are kept: the body is the program, not a rule that reruns it. An input
        may be a result of an op: the op is then left out unless another of its results is needed.
        """
        given = set(inputs)
        needed = self.needed(outputs, effects=effects, given=given) if prune else None
        equations = [
            e._replace(outputs=tuple([self.slot(self.types[s]) if s in given else s for s in e.outputs]))
            if not given.isdisjoint(e.outputs)
            else e
            for e in self.equations
            if needed is None or any(slot in needed and slot not in given for slot in e.outputs)
        ]
        read = set(outputs).union(*[equation.inputs for equation in equations])
        return Body(
            tuple(inputs),
            tuple([constant for constant in self.constants if constant.slot in read]),
            tuple(with_opened(equations, outputs)),
            tuple(outputs),
            tuple(self.types),
            lines,
        )


def with_opened(equations: list[Equation], outputs: Sequence[int]) -> list[Equation]:
    """Return the equations with `opened` set where residuals are read."""
    with_residuals = [i for i, equation in enumerate(equations) if equation.primitive.residuals]
    if not with_residuals:
        return equations
    read = set(outputs).union(*[equation.inputs for equation in equations])
    for i in with_residuals:
        equation = equations[i]
        opened = not read.isdisjoint(equation.outputs[-len(equation.primitive.residuals) :])
        if opened != equation.opened:
            equations[i] = equation._replace(opened=opened)
    return equations
