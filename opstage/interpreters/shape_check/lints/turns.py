"""The body of a loop as ops like any other, so that a lint sees into it."""

from __future__ import annotations

from typing import NamedTuple, final

from ....ops.primitive import Cost
from ..history import Entry, History

_FREE = Cost(0, 0)


class Turn(NamedTuple):
    """One turn of a loop: its ops, and its inputs and outputs. What the body captured keeps its number from outside."""

    entries: tuple[Entry, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@final
class Turns:
    """The turns of a history's scans, each made once. The constants that a body holds join those of the history."""

    def __init__(self, history: History):
        self._history = history
        self._made: dict[int, Turn] = {}
        self._numbers = -1  # of tensors inside; those of the program itself are above 0

    def of(self, loop: Entry) -> Turn:
        """One turn of a scan."""
        turn = self._made.get(loop.outputs[0])
        if turn is None:
            turn = self._made[loop.outputs[0]] = self._make(loop)
        return turn

    def _make(self, loop: Entry) -> Turn:
        body, captured = loop.static["body"], loop.static["carries"] + loop.static["entries"]
        types, history = body.types, self._history
        number = [self._numbers - slot for slot in range(len(types))]
        self._numbers -= len(types)
        for slot, outside in zip(body.inputs[captured:], loop.inputs[captured:]):
            number[slot] = outside
        for constant in body.constants:
            history.constants[number[constant.slot]] = constant.value
        entries = [
            Entry(
                equation.primitive,
                equation.static,
                tuple([number[slot] for slot in equation.inputs]),
                tuple([types[slot] for slot in equation.inputs]),
                tuple([number[slot] for slot in equation.outputs]),
                tuple([types[slot] for slot in equation.outputs]),
                _FREE,
                equation.region.path,
                equation.ordinal,
                False,
                equation.backward or loop.backward,
                history.places.get(equation.ordinal),
                loop.doubtful,
            )
            for equation in body.equations
        ]
        inputs, outputs = ([number[slot] for slot in slots] for slots in (body.inputs, body.outputs))
        return Turn(tuple(entries), tuple(inputs), tuple(outputs))
