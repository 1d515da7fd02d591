"""The body of a loop as ordinary ops, so that lints apply to it."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy.typing as npt

from ....ops.closed import Equation
from ..program import CheckedProgram


class Iteration(NamedTuple):
    """One iteration of a loop: its ops, inputs and outputs. Captured tensors keep their outer slots."""

    equations: tuple[Equation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@final
class Iterations:
    """The iterations of a program's scans, each built once; their tensors are numbered after those of the program.

    types, constants, doubtful   for program and iterations together
    """

    def __init__(self, program: CheckedProgram):
        self.types = list(program.body.types)
        self.constants: dict[int, npt.NDArray[Any]] = {c.slot: c.value for c in program.body.constants}
        self.doubtful = set(program.doubtful)
        self._made: dict[int, Iteration] = {}

    def of(self, loop: Equation) -> Iteration:
        """Return one iteration of a scan."""
        iteration = self._made.get(id(loop))
        if iteration is None:
            iteration = self._made[id(loop)] = self._make(loop)
        return iteration

    def are_doubtful(self, slots: tuple[int, ...]) -> bool:
        """Whether the types of some of these are guesses."""
        return not self.doubtful.isdisjoint(slots)

    def _make(self, loop: Equation) -> Iteration:
        body, captured = loop.static["body"], loop.static["carries"] + loop.static["entries"]
        first = len(self.types)
        self.types += body.types
        number = list(range(first, len(self.types)))
        for slot, outside in zip(body.inputs[captured:], loop.inputs[captured:]):
            number[slot] = outside
        self.constants.update((number[constant.slot], constant.value) for constant in body.constants)
        equations = [
            equation._replace(
                inputs=tuple([number[slot] for slot in equation.inputs]),
                outputs=tuple([number[slot] for slot in equation.outputs]),
                backward=equation.backward or loop.backward,
            )
            for equation in body.equations
        ]
        if self.are_doubtful(loop.outputs):
            self.doubtful.update(*[equation.outputs for equation in equations])
        inputs, outputs = ([number[slot] for slot in slots] for slots in (body.inputs, body.outputs))
        return Iteration(tuple(equations), tuple(inputs), tuple(outputs))
