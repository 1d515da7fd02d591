"""`Subject`: what a program did, as the lints ask for it: who made a tensor, what is a parameter, what is the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy.typing as npt

from ....ops.closed import Equation
from ....ops.errors import SourceLine
from ....ops.primitive import Primitive
from ....ops.types import TensorType, is_float, show_shape
from ...structural import SCAN
from ..finding import Finding, Severity
from ..program import CheckedProgram
from .iterations import Iterations
from .reach import sources


@dataclass(frozen=True)
class StepRoles:
    """The roles of inputs and outputs where the program is a whole training step.

    trained   for each parameter, whether it is trained
    hidden    how many of the last inputs the optimizer takes: its slots and scalars
    new       how many of the last outputs are new parameters and slots
    """

    trained: tuple[bool, ...]
    hidden: int
    new: int


class Leaf(NamedTuple):
    """A tensor that the program was given, and its path for messages."""

    slot: int
    path: str
    type: TensorType


@final
class Subject:
    """A program, and what its inputs and outputs are for.

    parameters  the first argument's leaves, if it is a tree or is called `params`; one tensor of another name is an
                input like the others
    given       the other inputs that the user's program takes
    results     what it returns
    sound       whether there was no error: after one, what is unused may be its consequence
    written     the user's own function, where it is known
    """

    def __init__(self, program: CheckedProgram, step: StepRoles | None, *, sound: bool, written: Any = None):
        self.program = program
        self.step = step
        self.written = written
        self.sound = sound and bool(program.body.outputs)
        self.iterations = Iterations(program)
        every = map(Leaf, program.body.inputs, program.names, program.body.input_types)
        inputs = [named for named in every if named.path]  # the others are no arguments: the random step
        parameters = program.parameters
        if step is None and not all("." in named.path or named.path == "params" for named in inputs[:parameters]):
            parameters = 0
        self.parameters: Sequence[Leaf] = inputs[:parameters]
        self.given: Sequence[Leaf] = inputs[parameters : len(inputs) - (step.hidden if step else 0)]
        results = program.body.outputs
        self.results = results[: len(results) - (step.new if step else 0)]

    @property
    def trained(self) -> list[Leaf]:
        """The float parameters whose gradient is wanted: where nothing says which, all of them."""
        flags = self.step.trained if self.step else (True,) * len(self.parameters)
        return [named for named, wanted in zip(self.parameters, flags) if wanted and is_float(named.type.dtype)]

    @cached_property
    def loss(self) -> int | None:
        """The loss: the first result, if it is a float scalar."""
        if not self.results:
            return None
        number = self.results[0]
        maker = self.maker(number)
        if maker is None:
            return None
        type_ = self.type(number)
        return number if not type_.shape and is_float(type_.dtype) else None

    @cached_property
    def used(self) -> set[int]:
        """All on which some result depends."""
        return sources(self.forward, self.results, self.iterations)

    @cached_property
    def used_by_loss(self) -> set[int]:
        """All on which the loss depends; the other results are metrics and state."""
        if self.loss is None or self.results == (self.loss,):
            return self.used
        return sources(self.forward, [self.loss], self.iterations)

    @cached_property
    def forward(self) -> Sequence[Equation]:
        """The forward ops of the program: of a step neither the backward pass nor the update."""
        equations, last = self.program.body.equations, max(self.results, default=0)
        if self.step is None:
            return equations
        end = next((i for i, call in enumerate(equations) if call.outputs and call.outputs[0] > last), len(equations))
        while end < len(equations) and not (self.program.is_rule(equations[end]) or equations[end].backward):
            end += 1
        return equations[:end]

    def type(self, slot: int) -> TensorType:
        """Of a tensor, those in loops too."""
        return self.iterations.types[slot]

    @property
    def constants(self) -> Mapping[int, npt.NDArray[Any]]:
        """The arrays that the program and its loops hold."""
        return self.iterations.constants

    # Ops ------------------------------------------------------------------------------------------------------------

    def calls(self, *primitives: Primitive) -> Iterator[Equation]:
        """The user's own calls of some ops, those in loops too; none whose types are guesses."""
        for primitive in primitives:
            yield from self._calls.get(primitive, ())

    @cached_property
    def _calls(self) -> dict[Primitive, list[Equation]]:
        found: dict[Primitive, list[Equation]] = {}

        def walk(equations: Sequence[Equation]) -> None:
            for call in equations:
                if not (self.program.is_rule(call) or call.backward or self.iterations.are_doubtful(call.outputs)):
                    found.setdefault(call.primitive, []).append(call)
                    if call.primitive is SCAN:
                        walk(self.iterations.of(call).equations)

        walk(self.forward)
        return found

    def maker(self, number: int) -> Equation | None:
        """The op that made a tensor; None for an input or a constant."""
        return self._makers.get(number)

    @cached_property
    def _makers(self) -> dict[int, Equation]:
        makers: dict[int, Equation] = {}

        def walk(equations: Sequence[Equation]) -> None:
            for call in equations:
                for number in call.outputs:
                    makers[number] = call
                if call.primitive is SCAN:
                    walk(self.iterations.of(call).equations)

        walk(self.forward)
        return makers

    # Findings -------------------------------------------------------------------------------------------------------

    def source(self, call: Equation | None) -> SourceLine | None:
        """The user's call that an op is, or serves."""
        return self.program.source(call)

    def at(
        self,
        call: Equation,
        rule: str,
        reason: str,
        fix: str = "",
        *,
        severity: Severity = "warning",
        operands: Sequence[tuple[str, int, TensorType]] | None = None,
        constraint: str | None = None,
    ) -> Finding:
        """A finding at an op, with the paths of its operands: name, number and type of each, by default its own."""
        if operands is None:
            names = call.primitive.operand_names(call.static, len(call.inputs))
            operands = list(zip(names, call.inputs, map(self.type, call.inputs)))
        paths = dict(zip(self.program.body.inputs, self.program.names))
        return Finding(
            call.primitive.name,
            reason,
            call.region.name,
            self.source(call),
            tuple(f"{name} is {paths[n]} {show_shape(type_.shape)}" for name, n, type_ in operands if paths.get(n)),
            rule=rule,
            severity=severity,
            fix=fix,
            constraint=constraint,
        )
