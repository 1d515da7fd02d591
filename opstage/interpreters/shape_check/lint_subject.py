"""`Subject`: a program's trace as the lints query it: the maker of a tensor, the parameters, the loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy.typing as npt

from ...ops.body import Equation
from ...ops.errors import SourceLine
from ...ops.primitive import Primitive
from ...ops.types import TensorType, is_float, show_shape
from ...transforms.scan import SCAN
from .finding import Finding, Severity
from .program import CheckedProgram


@dataclass(frozen=True)
class StepRoles:
    """The roles of inputs and outputs if the program is a whole training step.

    trained   for each parameter, whether it is trained
    hidden    how many of the last inputs are the optimizer's slots and scalars
    new       how many of the last outputs are new parameters and slots
    """

    trained: tuple[bool, ...]
    hidden: int
    new: int


class Leaf(NamedTuple):
    """An input tensor of the program, and its path for messages."""

    slot: int
    path: str
    type: TensorType


@final
class Subject:
    """A program, with the roles of its inputs and outputs.

    parameters  the first argument's leaves, if it is a tree or is called `params`; one tensor of another name is an
                input like the others
    given       the other inputs of the user's program
    results     its outputs
    sound       whether there was no error: unused inputs may be a consequence of one
    written     the user's own function, if known
    """

    def __init__(self, program: CheckedProgram, step: StepRoles | None, *, sound: bool, written: Any = None):
        self.program = program
        self.step = step
        self.written = written
        self.sound = sound and bool(program.body.outputs)
        self.iterations = Iterations(program)
        every = map(Leaf, program.body.inputs, program.names, program.body.input_types)
        inputs = [named for named in every if named.path]  # the others are not arguments: the random step
        parameters = program.parameters
        if step is None and not all("." in named.path or named.path == "params" for named in inputs[:parameters]):
            parameters = 0
        self.parameters: Sequence[Leaf] = inputs[:parameters]
        self.given: Sequence[Leaf] = inputs[parameters : len(inputs) - (step.hidden if step else 0)]
        results = program.body.outputs
        self.results = results[: len(results) - (step.new if step else 0)]

    @property
    def trained(self) -> list[Leaf]:
        """The float parameters that are trained; all of them if that is not specified."""
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
        """All tensors on which some result depends."""
        return sources(self.forward, self.results, self.iterations)

    @cached_property
    def used_by_loss(self) -> set[int]:
        """All tensors on which the loss depends; the other results are metrics and state."""
        if self.loss is None or self.results == (self.loss,):
            return self.used
        return sources(self.forward, [self.loss], self.iterations)

    @cached_property
    def forward(self) -> Sequence[Equation]:
        """The forward ops of the program: in a step without the backward pass and the update."""
        equations, last = self.program.body.equations, max(self.results, default=0)
        if self.step is None:
            return equations
        end = next((i for i, call in enumerate(equations) if call.outputs and call.outputs[0] > last), len(equations))
        while end < len(equations) and not (self.program.is_rule(equations[end]) or equations[end].backward):
            end += 1
        return equations[:end]

    def type(self, slot: int) -> TensorType:
        """Return the type of a tensor, also inside loops."""
        return self.iterations.types[slot]

    @property
    def constants(self) -> Mapping[int, npt.NDArray[Any]]:
        """The constant arrays of the program and its loops."""
        return self.iterations.constants

    # Ops ------------------------------------------------------------------------------------------------------------

    def calls(self, *primitives: Primitive) -> Iterator[Equation]:
        """Yield the user's own calls of some ops, also inside loops, except those with guessed types."""
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
        """Return the op that computed a tensor; None for an input or a constant."""
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
        """Return the user's call that an op is, or implements."""
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
        """Return a finding at an op, with the paths of its operands: name, number and type of each, by default its
        own."""
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


# The body of a loop as ordinary ops -----------------------------------------------------------------------------------


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


# Dependencies between tensors -----------------------------------------------------------------------------------------


def sources(equations: Sequence[Equation], targets: Iterable[int], iterations: Iterations) -> set[int]:
    """Return all tensors on which the targets depend, including the targets."""
    live = set(targets)
    for call in reversed(equations):
        if not live.isdisjoint(call.outputs):
            live.update(_of_loop(call, live, iterations) if call.primitive is SCAN else call.inputs)
    return live


def _of_loop(loop: Equation, live: set[int], iterations: Iterations) -> list[int]:
    """Return the operands of a loop on which its live outputs depend; a carry depends on the previous iteration."""
    iteration, carries = iterations.of(loop), loop.static["carries"]
    made = zip(loop.outputs, (*iteration.outputs, *iteration.inputs))
    inside = {number for outside, number in made if outside in live}
    while True:
        inside = sources(iteration.equations, inside, iterations)
        more = {iteration.outputs[i] for i in range(carries) if iteration.inputs[i] in inside} - inside
        if not more:
            break
        inside |= more
    return [outside for outside, number in zip(loop.inputs, iteration.inputs) if number in inside]
