"""`agreement`: a proof, on the trace of a step, that all ranks of a mesh end it with the same numbers.

Over a mesh axis a tensor is replicated over all ranks, or it differs; `vary` makes a *copy*, which is yet to meet a
differing tensor. A differing tensor may be a *part*: linear in the cotangents of the ranks' backward passes, so that
the sum over ranks is the total gradient. The rules:

- an op on a differing tensor has differing results; parts stay parts under ops that are linear in them
- a sum, maximum or gather of what is alike is a fault: it would count the value once per rank
- `vary` and `shard` require operands that are alike
- before the loss, floats that are alike must be `vary`-ed before they meet differing ones, except constants
- after the loss, sums are over parts: a sum after an update or a square would add something else
- the results of a step are replicated, except those that each rank keeps for itself

So a collective that is missing, duplicated or misplaced is found, or changes no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import reduce
from typing import TypeAlias

from ..ops.body import Body, Equation
from ..ops.collective import ALL_GATHER, ALL_MAX, ALL_REDUCE, AXIS_INDEX, SHARD, VARY
from ..ops.elementwise import ADD, SUB
from ..ops.errors import SourceLine
from ..ops.logic import FULL
from ..ops.primitive import Kind, Linearity
from ..ops.random import DRAWS
from ..transforms.cond import SWITCH
from ..transforms.control_flow import communicates, get_bodies
from ..transforms.scan import SCAN
from ..transforms.while_loop import WHILE


class Over(IntEnum):
    """The relation between the ranks' values of a tensor along one mesh axis."""

    REPLICATED = 0
    COPY = 1
    PARTIAL = 2
    VARYING = 3


States: TypeAlias = "Mapping[str, Over]"
"""By axis; a missing axis means REPLICATED."""

_NOTHING: States = {}


class Fault(Exception):
    """A misplaced collective, or a result that differs between ranks; `ordinal` is the op's."""

    def __init__(self, reason: str, ordinal: int = -1, source: SourceLine | None = None):
        super().__init__(reason)
        self.reason = reason
        self.ordinal = ordinal
        self.source = source


def agreement(body: Body, kept: Mapping[int, str] | None = None) -> list[States]:
    """Return the states of the outputs of a step's body.

    `kept` maps the numbers of inputs that ranks keep for themselves to the axis over which they differ. Raises Fault
    for a misplaced collective.
    """
    own = kept or {}
    inputs: list[States] = [{own[i]: Over.VARYING} if i in own else _NOTHING for i in range(len(body.inputs))]
    return _Check(body, inputs, loss=body.outputs[0]).outputs


def require_replicated(outputs: Sequence[States], names: Sequence[str], kept: Mapping[str, str] | None = None) -> None:
    """Raise Fault for an output that differs over an axis, unless `kept` has that axis under the output's name."""
    own = kept or {}
    for number, states in enumerate(outputs):
        name = names[number] if number < len(names) else f"output {number}"
        for axis, over in states.items():
            if over > Over.COPY and own.get(name) != axis:
                more = "; its gradient is not summed over them" if name.startswith("params.") else ""
                raise Fault(f"{name} differs between the ranks of mesh axis {axis!r}{more}")


class _Check:
    """One pass over a body; `outputs` are the states of its results."""

    def __init__(
        self,
        body: Body,
        inputs: Sequence[States],
        *,
        backward: bool = False,
        strict: bool = True,
        forward: Sequence[Body] = (),
        zeros: Sequence[int] = (),
        loss: int | None = None,
    ):
        self._body = body
        self._backward = backward
        self._strict = strict
        self._forward = [*forward]  # the bodies of loops before, of which a backward loop computes parts again
        self._begun = backward  # whether cotangents have begun, those of the loss: it may hold derivatives itself
        self._loss = loss
        self._of: dict[int, States] = dict(zip(body.inputs, inputs))
        self._lines = body.lines
        self._types = body.types
        self._constant = {constant.slot for constant in body.constants}
        self._zero = {body.inputs[i] for i in zeros}
        for equation in body.equations:
            states = self._infer(equation)
            each = states if isinstance(states, list) else [states] * len(equation.outputs)
            self._of.update(zip(equation.outputs, each))
        self.outputs = [self._of.get(slot, _NOTHING) for slot in body.outputs]

    def _infer(self, equation: Equation) -> States | list[States]:
        """Return the state of an op's results, or of each of them."""
        given = [self._of.get(slot, _NOTHING) for slot in equation.inputs]
        self._begun = self._begun or (bool(equation.backward) and self._loss in self._of)
        if self._zero.issuperset(equation.inputs) and (
            equation.primitive.kind in (Kind.LAYOUT, Kind.COLLECTIVE) or equation.primitive in (ADD, SUB)
        ):
            self._zero.update(equation.outputs if equation.inputs else ())
        if equation.primitive.kind is Kind.COLLECTIVE:
            return self._collective(equation, given)
        if communicates(equation.static):
            return self._loop(equation, given)
        if self._constant.issuperset(equation.inputs):
            self._constant.update(equation.outputs)
        value = equation.static.get("value")
        if equation.primitive is FULL and isinstance(value, (int, float)) and not value:
            self._zero.update(equation.outputs)
        axes = dict.fromkeys(axis for states in given for axis, over in states.items() if over)
        if axes and not self._begun and equation.primitive not in DRAWS:
            self._require_varied(equation, given, axes)
        met = {axis: self._met(equation, [states.get(axis, Over.REPLICATED) for states in given]) for axis in axes}
        if equation.primitive in DRAWS:  # a draw is made again in a backward loop, and is no gradient
            return {axis: Over.COPY if over is Over.PARTIAL else over for axis, over in met.items()}
        return met

    def _require_varied(self, equation: Equation, given: Sequence[States], axes: Iterable[str]) -> None:
        for slot, states in zip(equation.inputs, given):
            if slot in self._constant or self._types[slot].dtype.kind != "f":
                continue
            for axis in axes:
                if not states.get(axis, Over.REPLICATED):
                    self._refuse(
                        equation,
                        f"an operand that is replicated over mesh axis {axis!r} meets a varying one, and is "
                        "not varied: a sum over them would count it once for each rank",
                    )

    def _is_back(self, equation: Equation) -> bool:
        return self._backward or (self._begun and bool(equation.backward))

    def _met(self, equation: Equation, given: Sequence[Over]) -> Over:
        """Return the state, over one axis, of a result with operands that are not all alike."""
        top = max(given)
        if Over.PARTIAL not in given:
            return top
        linearity = equation.primitive.linearity
        parts = [over is Over.PARTIAL or slot in self._zero for slot, over in zip(equation.inputs, given)]
        if self._is_back(equation):  # the rules of derivatives are linear in cotangents, but not in each
            floats = [part for part, slot in zip(parts, equation.inputs) if self._types[slot].dtype.kind == "f"]
            adds = linearity is Linearity.JOINT or equation.primitive in (ADD, SUB)
            return Over.PARTIAL if all(floats) or not adds else Over.VARYING
        if linearity is Linearity.JOINT and all(parts):
            return Over.PARTIAL
        if linearity is Linearity.EACH and sum(over is Over.PARTIAL for over in given) == 1 and top is Over.PARTIAL:
            return Over.PARTIAL
        return Over.VARYING

    def _collective(self, equation: Equation, given: Sequence[States]) -> States:
        primitive, static = equation.primitive, equation.static
        axis: str = static["axis"]
        if primitive is AXIS_INDEX:
            return {axis: Over.VARYING}
        (x,) = given
        before = x.get(axis, Over.REPLICATED)
        back = self._is_back(equation)
        if primitive in (VARY, SHARD):
            if before is not Over.REPLICATED and not (before is Over.COPY and primitive is SHARD):
                self._refuse(equation, f"x varies over mesh axis {axis!r} already")
            return {**x, axis: Over.PARTIAL if back else Over.COPY if primitive is VARY else Over.VARYING}
        # the zero gradient of a parameter that what is differentiated does not depend on
        zeros = equation.inputs[0] in self._zero
        if before is Over.REPLICATED and not zeros:
            self._refuse(
                equation,
                f"all ranks of mesh axis {axis!r} have the same x: it was gathered or summed before, or is not "
                "theirs to sum",
            )
        again = self._backward and before is Over.VARYING and self._is_again(equation)
        if self._begun and before is Over.VARYING and primitive is not ALL_GATHER and not again:
            self._refuse(
                equation,
                f"after the loss only gradients are summed over mesh axis {axis!r}, and x is not a gradient: it is not "
                "linear in them",
            )
        replicated = primitive in (ALL_REDUCE, ALL_MAX) or static.get("replicated")
        after = Over.REPLICATED if replicated else Over.PARTIAL if back and not again else Over.VARYING
        return {**x, axis: after}

    def _loop(self, equation: Equation, given: Sequence[States]) -> list[States]:
        """Return the state of each result of a loop or switch with collectives.

        A carry differs as it does in any iteration. One that begins with zeros has no say: they are part of any sum.
        """
        primitive, bodies = equation.primitive, dict(get_bodies(equation.static))
        test = bodies.pop("test", None)
        first = 1 if primitive is SWITCH else 0
        carries = 0
        if primitive in (SCAN, WHILE):
            carries = equation.static["carries"] if primitive is SCAN else len(bodies["body"].outputs)
        backward = self._is_back(equation)
        decided: States = given[0] if first else _NOTHING
        zero = [slot in self._zero for slot in equation.inputs[:carries]]

        def read(operands: Sequence[States], strict: bool) -> list[States]:
            outs = [
                _Check(body, operands[first:], backward=backward, strict=strict, forward=self._forward, zeros=zeros)
                for body in bodies.values()
            ]
            found = [reduce(_least, each) for each in zip(*[reading.outputs for reading in outs])]
            return [{**_least(states, decided), **{a: o for a, o in states.items() if o}} for states in found]

        states, before = [*given], None
        zeros: list[int] = []
        while states != before:
            before = [*states]
            zeros = [i for i, is_zero in enumerate(zero) if is_zero and states[i] == given[i]]
            if test is not None:
                decided = _Check(test, states, strict=False).outputs[0]
            outs = read(states, strict=False)
            states[:carries] = [_carried(*each) for each in zip(states, outs, zero)]
        strict = self._strict
        zeros = []
        self._forward += [] if backward else bodies.values()
        read([states[i] if i < carries and zero[i] else own for i, own in enumerate(given)], strict)
        return read(states, strict)

    def _is_again(self, equation: Equation) -> bool:
        """Return whether a collective of a backward loop sends what one of a forward loop has sent."""
        return any(
            _same(body, each.outputs[0], self._body, equation.outputs[0])
            for body in self._forward
            for each in body.equations
            if each.primitive is equation.primitive
        )

    def _refuse(self, equation: Equation, reason: str) -> None:
        """Raise Fault, unless it is not known yet what a loop carries."""
        if self._strict:
            source = self._lines.get(equation.ordinal)
            raise Fault(f"{equation.primitive.name}: {reason}", equation.ordinal, source)


def _same(a: Body, x: int, b: Body, y: int) -> bool:
    """Return whether y of body b is computed as x of body a is, from what b is given of it."""
    made = next((e for e in b.equations if y in e.outputs), None)
    if made is None:
        return a.types[x] == b.types[y]
    own = next((e for e in a.equations if x in e.outputs), None)
    return (
        own is not None
        and (own.primitive, own.static, own.outputs.index(x)) == (made.primitive, made.static, made.outputs.index(y))
        and all(_same(a, i, b, j) for i, j in zip(own.inputs, made.inputs, strict=True))
    )


def _carried(own: States, out: States, zero: bool) -> States:
    """Return the state of a carry that comes as `own` and leaves as `out`. Numbers that become parts of a gradient in
    an iteration, and were none before, are none; zeros are parts of any."""
    joined = _least(own, out)
    new = [axis for axis, over in joined.items() if over is Over.PARTIAL is not own.get(axis)]
    return joined if zero else {**joined, **dict.fromkeys(new, Over.VARYING)}


def _least(a: States, b: States) -> dict[str, Over]:
    return {axis: max(a.get(axis, Over.REPLICATED), b.get(axis, Over.REPLICATED)) for axis in dict.fromkeys((*a, *b))}
