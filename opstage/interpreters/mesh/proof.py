"""`agreement`: that all ranks of a mesh end a step with the same numbers, proved on its trace and not by running it.

Over an axis of the mesh a tensor is alike on all ranks, or it differs; `vary` makes a *copy*, which has yet to meet one
that differs. One that differs may be a *part*: linear in the
cotangents that the ranks' backward passes carry, so that the sum over ranks is the gradient of all of them. The rules:

- what meets a tensor that differs, differs; parts stay parts in what is linear in them
- a sum, a maximum or a gathering of what is alike is a fault: there would be as many of it as there are ranks
- `vary` and `shard` are of what is alike
- before the loss, a float that is alike meets none that differs unless it is `vary`-ed, but for constants
- behind the loss a sum is of parts: one that comes behind an update, or a square, adds up something else
- what a step returns is alike on all ranks, but for what each keeps for itself

So a collective that is missing, doubled or in another place is found, or moves no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TypeAlias

from ...ops.catalogue.collective import ALL_GATHER, ALL_MAX, ALL_REDUCE, AXIS_INDEX, SHARD, VARY
from ...ops.catalogue.logic import FULL
from ...ops.closed import Body, Equation
from ...ops.errors import SourceLine
from ...ops.kinds import Effect, Kind
from ...ops.primitive import Linearity
from ..control import bodies_of
from ..structural import SCAN


class Over(IntEnum):
    """How the ranks' values of a tensor stand to each other along one axis of a mesh."""

    ALIKE = 0
    COPY = 1
    PART = 2
    DIFFERS = 3


States: TypeAlias = "Mapping[str, Over]"
"""By axis; ALIKE for one without an entry."""

_NOTHING: States = {}


class Fault(Exception):
    """A collective in a wrong place, or a result that differs between ranks; `ordinal` is that of the op."""

    def __init__(self, reason: str, ordinal: int = -1, source: SourceLine | None = None):
        super().__init__(reason)
        self.reason = reason
        self.ordinal = ordinal
        self.source = source


def agreement(body: Body, kept: Mapping[int, str] | None = None) -> list[States]:
    """The states of the outputs of a step's body.

    `kept` has, by its number, the axis over which an input varies: what a rank keeps for itself. Raises Fault for a
    collective in a wrong place.
    """
    own = kept or {}
    inputs: list[States] = [{own[i]: Over.DIFFERS} if i in own else _NOTHING for i in range(len(body.inputs))]
    return _Agreeing(body, inputs).outputs


def require_alike(outputs: Sequence[States], names: Sequence[str], kept: Mapping[str, str] | None = None) -> None:
    """Raise Fault for an output that differs over an axis, other than that over which, by its name, it is `kept`."""
    own = kept or {}
    for number, states in enumerate(outputs):
        name = names[number] if number < len(names) else f"output {number}"
        for axis, over in states.items():
            if over > Over.COPY and own.get(name) != axis:
                more = "; its gradient is not summed over them" if name.startswith("params.") else ""
                raise Fault(f"{name} differs between the ranks of mesh axis {axis!r}{more}")


class _Agreeing:
    """One pass over a body; `outputs` are the states of its results."""

    def __init__(self, body: Body, inputs: Sequence[States], *, backward: bool = False):
        self._backward = backward
        self._begun = backward  # whether cotangents have begun
        self._of: dict[int, States] = dict(zip(body.inputs, inputs))
        self._lines = body.lines
        self._types = body.types
        self._constant = {constant.slot for constant in body.constants}
        self._zero: set[int] = set()
        for equation in body.equations:
            states = self._after(equation)
            for slot in equation.outputs:
                self._of[slot] = states
        self.outputs = [self._of.get(slot, _NOTHING) for slot in body.outputs]

    def _after(self, equation: Equation) -> States:
        given = [self._of.get(slot, _NOTHING) for slot in equation.inputs]
        self._begun = self._begun or equation.backward
        if equation.primitive.kind is Kind.COLLECTIVE:
            return self._collective(equation, given)
        if any(_communicates(body) for _, body in bodies_of(equation.static)):
            return self._loop(equation, given)
        if self._constant.issuperset(equation.inputs):
            self._constant.update(equation.outputs)
        value = equation.static.get("value")
        if equation.primitive is FULL and isinstance(value, (int, float)) and not value:
            self._zero.update(equation.outputs)
        axes = dict.fromkeys(axis for states in given for axis, over in states.items() if over)
        if axes and not self._begun and Effect.DRAWS not in equation.effects:
            self._require_varied(equation, given, axes)
        return {axis: self._met(equation, [states.get(axis, Over.ALIKE) for states in given]) for axis in axes}

    def _require_varied(self, equation: Equation, given: Sequence[States], axes: Iterable[str]) -> None:
        for slot, states in zip(equation.inputs, given):
            if slot in self._constant or self._types[slot].dtype.kind != "f":
                continue
            for axis in axes:
                if not states.get(axis, Over.ALIKE):
                    raise self._fault(
                        equation,
                        f"an operand that is alike on all ranks of mesh axis {axis!r} meets one that differs, and is "
                        "not varied: a sum over them would count it once for each rank",
                    )

    def _met(self, equation: Equation, given: Sequence[Over]) -> Over:
        """The state, over one axis, of a result of operands that are not all alike."""
        top = max(given)
        if Over.PART not in given:
            return top
        if equation.backward or self._backward:  # the rules of derivatives are linear in cotangents
            return Over.PART
        linearity = equation.primitive.linearity
        parts = [over is Over.PART or slot in self._zero for slot, over in zip(equation.inputs, given)]
        if linearity is Linearity.JOINT and all(parts):
            return Over.PART
        if linearity is Linearity.EACH and sum(over is Over.PART for over in given) == 1 and top is Over.PART:
            return Over.PART
        return Over.DIFFERS

    def _collective(self, equation: Equation, given: Sequence[States]) -> States:
        primitive, static = equation.primitive, equation.static
        axis: str = static["axis"]
        if primitive is AXIS_INDEX:
            return {axis: Over.DIFFERS}
        (x,) = given
        before = x.get(axis, Over.ALIKE)
        back = equation.backward or self._backward
        if primitive in (VARY, SHARD):
            if before is not Over.ALIKE and not (before is Over.COPY and primitive is SHARD):
                raise self._fault(equation, f"x differs between the ranks of mesh axis {axis!r} already")
            return {**x, axis: Over.PART if back else Over.COPY if primitive is VARY else Over.DIFFERS}
        zeros = self._begun and equation.inputs[0] in self._constant  # a gradient that nothing reaches
        if before is Over.ALIKE and not zeros:
            raise self._fault(
                equation,
                f"all ranks of mesh axis {axis!r} have the same x: it was gathered or summed before, or is none of "
                "theirs to sum",
            )
        if self._begun and before is Over.DIFFERS and primitive is not ALL_GATHER:
            raise self._fault(
                equation,
                f"behind the loss only gradients are summed over mesh axis {axis!r}, and x is none: it is no longer "
                "linear in them",
            )
        replicated = primitive in (ALL_REDUCE, ALL_MAX) or static.get("replicated")
        after = Over.ALIKE if replicated else Over.PART if back else Over.DIFFERS
        return {**x, axis: after}

    def _loop(self, equation: Equation, given: Sequence[States]) -> States:
        """Of a loop or choice with collectives in its bodies: every result is as the least alike of them."""
        joined: dict[str, Over] = {}
        for _ in range(len(Over)):
            found: dict[str, Over] = dict(joined)
            for _, body in bodies_of(equation.static):
                operands = [*given, *[joined] * len(body.inputs)][: len(body.inputs)]
                if equation.primitive is SCAN:  # a carry is what any turn before has left
                    carries: int = equation.static["carries"]
                    operands[:carries] = [_least(states, joined) for states in operands[:carries]]
                reading = _Agreeing(body, operands, backward=equation.backward or self._backward)
                for states in reading.outputs:
                    found = _least(found, states)
            if found == joined:
                break
            joined = found
        return joined

    def _fault(self, equation: Equation, reason: str) -> Fault:
        return Fault(f"{equation.primitive.name}: {reason}", equation.ordinal, self._lines.get(equation.ordinal))


def _least(a: States, b: States) -> dict[str, Over]:
    return {axis: max(a.get(axis, Over.ALIKE), b.get(axis, Over.ALIKE)) for axis in dict.fromkeys((*a, *b))}


def _communicates(body: Body) -> bool:
    return any(
        e.primitive.kind is Kind.COLLECTIVE or any(_communicates(inner) for _, inner in bodies_of(e.static))
        for e in body.equations
    )


def collectives(body: Body) -> Iterable[Equation]:
    """Those of a body and of the bodies in it, in the order in which ranks reach them."""
    for equation in body.equations:
        if equation.primitive.kind is Kind.COLLECTIVE:
            yield equation
        for _, inner in bodies_of(equation.static):
            yield from collectives(inner)
