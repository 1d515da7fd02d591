"""A program as steps in regions, with the differences between training and evaluation, and operands as users write
them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache
from typing import Any, NamedTuple, TypeAlias, final

import numpy.typing as npt

from ...interpreters.graph.graph import Graph
from ...interpreters.graph.notation import digest, show_static
from ...ops.dims import DimFloat
from ...ops.errors import UnsupportedError
from ...ops.primitive import Primitive, Static
from ...ops.protocol import Ops
from ...ops.types import TensorType
from ...options import Options

# Steps ----------------------------------------------------------------------------------------------------------------

Path: TypeAlias = "tuple[tuple[str, int], ...]"
"""The path of a region: names, each with its occurrence number."""

WIDE = Options(dtype="float64")
"""Programs are recorded in the dtype that represents every constant of a file, so that none is rounded."""


@final
@dataclass(frozen=True)
class CallStep:
    """One op. Its inputs are slots, the numbers of tensors, or other operands (see `operands`)."""

    primitive: Primitive
    static: Static
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]
    path: Path


@final
@dataclass(frozen=True)
class ChoiceStep:
    """One node in evaluation and in training.

    results   tensors that both compute: the slot that later steps read, and its slot in each
    """

    evaluated: tuple[CallStep, ...]
    trained: tuple[CallStep, ...]
    results: tuple[tuple[int, int, int], ...]
    path: Path


Step: TypeAlias = "CallStep | ChoiceStep"


@final
@dataclass
class ProgramSteps:
    """A program.

    inputs      the kind and the name of each slot that is an argument: `params`, `state` or `input`
    outputs     the slot of each output, by its name
    """

    inputs: dict[int, tuple[str, str]]
    constants: dict[int, npt.NDArray[Any]]
    types: dict[int, TensorType]
    steps: list[Step]
    outputs: dict[str, int]


def reads(step: Step) -> Iterator[int]:
    """Yield the slots of earlier steps that a step reads."""
    if isinstance(step, CallStep):
        yield from _slots(step)
    else:
        own = {slot for call in (*step.evaluated, *step.trained) for slot in call.outputs}
        both = [*[slot for call in (*step.evaluated, *step.trained) for slot in _slots(call)]]
        both += [slot for _, a, b in step.results for slot in (a, b)]
        yield from (slot for slot in both if slot not in own)


def _slots(call: CallStep) -> Iterator[int]:
    for operand in call.inputs:
        if type(operand) is int:
            yield operand
        elif hasattr(operand, "slot"):
            yield operand.slot


def gives(step: Step) -> tuple[int, ...]:
    """Return the slots that a step defines."""
    if isinstance(step, CallStep):
        return step.outputs
    return tuple(slot for slot, _, _ in step.results) if isinstance(step, ChoiceStep) else ()


def text_of_static(value: Any) -> str:
    """Return a static parameter as text, including the bodies of loops."""
    if value is None:
        return "None"
    bodies: list[Any] = []
    text = show_static(value, bodies)
    return text + "".join(text_of_body(body) for body in bodies)


def text_of_body(body: Any) -> str:
    """Return the computation of a closed body as text, without the regions and lines of its ops."""
    body = body.renumbered()
    lines = [f"{[str(t) for t in body.input_types]} {body.inputs} -> {body.outputs}"]
    lines += [f"{c.slot} {c.type} {digest(c.value)}" for c in body.constants]
    for e in body.equations:
        static = {n: text_of_static(v) for n, v in e.static.items() if n != "site"}
        lines.append(f"{e.primitive.name} {static} {e.inputs} {e.outputs}")
    return "\n".join(lines)


INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "less": "<", "less_equal": "<="}
"""Ops with an infix operator, which broadcasts."""


@final
class StaticNumber(NamedTuple):
    """A static number instead of a tensor."""

    value: Any


@final
class Spread(NamedTuple):
    """A tensor that an operator broadcasts to the shape of the other operand."""

    slot: int


@cache
def number_places(op: str) -> tuple[int, ...]:
    """Return the operands of an op that may be numbers."""
    method = getattr(Ops, op, None)
    parameters = list(inspect.signature(method).parameters.values())[1:] if method is not None else []
    return tuple(i for i, p in enumerate(parameters) if p.kind is p.POSITIONAL_ONLY and "Number" in str(p.annotation))


def uniform_values(found: ProgramSteps) -> dict[int, Any]:
    """Return the values of tensors made by `full`, in the form that methods accept as numbers. Broadcast ones have
    another memory layout, which affects the rounding of products. Methods reject a real-valued size expression next to
    integers."""
    fills = [step for step in _calls(found.steps) if step.primitive.name == "full"]
    return {
        step.outputs[0]: (step.static["value"],)
        for step in fills
        if step.static["dtype"].startswith("float") or not isinstance(step.static["value"], DimFloat)
    }


def _calls(steps: list[Step]) -> list[CallStep]:
    found: list[CallStep] = []
    for step in steps:
        if isinstance(step, CallStep):
            found.append(step)
        elif isinstance(step, ChoiceStep):
            found += [*step.evaluated, *step.trained]
    return found


def simplified(found: ProgramSteps) -> ProgramSteps:
    """Return the same program with numbers and operators instead of constant-filled and broadcast tensors."""
    values = uniform_values(found)
    steps: list[Step] = []
    for step in found.steps:
        if isinstance(step, CallStep):
            step = _with_numbers(step, found.types, values)
        elif isinstance(step, ChoiceStep):
            evaluated, trained = (
                tuple(_with_numbers(each, found.types, values) for each in calls)
                for calls in (step.evaluated, step.trained)
            )
            step = replace(step, evaluated=evaluated, trained=trained)
        steps.append(step)
    steps = _needed(steps, found)
    return replace(found, steps=_needed(_with_operators(steps, found), found))


def _with_numbers(step: CallStep, types: dict[int, TensorType], values: dict[int, Any]) -> CallStep:
    places = number_places(step.primitive.name)
    if len(places) < 2:
        return step
    inputs: list[Any] = list(step.inputs)
    for i in places:
        others = [inputs[j] for j in places if j != i]
        if inputs[i] not in values or any(type(other) is not int or other in values for other in others):
            continue
        if all(str(types[other]) == str(types[inputs[i]]) for other in others):
            inputs[i] = StaticNumber(values[inputs[i]][0])
    return replace(step, inputs=tuple(inputs))


def _with_operators(steps: list[Step], found: ProgramSteps) -> list[Step]:
    """Use operators for ops with an operand that is broadcast for this op only."""
    uses = Counter(slot for step in steps for slot in reads(step))
    uses.update(found.outputs.values())
    broadcasts = {
        step.outputs[0]: step
        for step in steps
        if isinstance(step, CallStep) and step.primitive.name == "broadcast_to" and uses[step.outputs[0]] == 1
    }
    made: list[Step] = []
    for step in steps:
        plain = isinstance(step, CallStep) and not any(isinstance(each, StaticNumber) for each in step.inputs)
        if isinstance(step, CallStep) and plain and step.primitive.name in INFIX:
            inputs = [_spread(each, step, broadcasts, found.types) for each in step.inputs]
            if not all(isinstance(each, Spread) for each in inputs):
                step = replace(step, inputs=tuple(inputs))
        made.append(step)
    return made


def _spread(operand: Any, step: CallStep, broadcasts: dict[int, CallStep], types: dict[int, TensorType]) -> Any:
    before = broadcasts.get(operand) if type(operand) is int else None
    if before is None or before.path != step.path or isinstance(before.inputs[0], (StaticNumber, Spread)):
        return operand
    if str(types[before.inputs[0]]) == str(types[operand]):  # an operator would omit this one
        return operand
    return Spread(before.inputs[0])


def _needed(steps: list[Step], found: ProgramSteps) -> list[Step]:
    """Return the steps without ops whose results are unused."""
    wanted = {*found.outputs.values()}
    kept: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, CallStep) and not wanted.intersection(gives(step)):
            continue
        if isinstance(step, ChoiceStep):
            step = _choice_needed(step)
        wanted.update(reads(step))
        kept.append(step)
    return kept[::-1]


def _choice_needed(step: ChoiceStep) -> ChoiceStep:
    sides = []
    for i, calls in ((1, step.evaluated), (2, step.trained)):
        wanted = {result[i] for result in step.results}
        used = []
        for call in reversed(calls):
            if wanted.intersection(call.outputs):
                wanted.update(reads(call))
                used.append(call)
        sides.append(tuple(used[::-1]))
    return replace(step, evaluated=sides[0], trained=sides[1])


# Two recordings -------------------------------------------------------------------------------------------------------


class MergedRecordings:
    """Two recordings of one program as one: ops that are alike once, others as choices between evaluation and training.

    A tensor is a pair of slots, one in each recording; those of the second are counted behind those of the first.
    """

    def __init__(self, plain: Graph, trained: Graph):
        self.offset = len(plain.body.types)
        types = [*plain.body.types, *trained.body.types]
        constants = {each.slot: each.value for each in plain.body.constants}
        constants |= {each.slot + self.offset: each.value for each in trained.body.constants}
        self.found = ProgramSteps({}, constants, dict(enumerate(types)), [], {})
        mine, theirs = self.calls(plain, 0), self.calls(trained, self.offset)
        names = dict(zip(plain.input_names, plain.body.inputs))
        self.pairs: dict[tuple[int, int], int] = {}
        self.alone: tuple[dict[int, int], dict[int, int]] = ({}, {})  # for each recording, from its slots to joint ones
        for name, slot in zip(trained.input_names, trained.body.inputs):
            if name in names:
                self.pair(names[name], slot + self.offset, names[name])
            else:  # the number of the step, which draws read
                self.found.inputs[slot + self.offset] = ("step", "")
        self.digests = {slot: digest(array) for slot, array in constants.items()}
        keys = [[self.key(each) for each in calls] for calls in (mine, theirs)]
        for tag, a, b, c, d in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
            if tag != "equal":
                self.differ(mine[a:b], theirs[c:d])
            for one, other in zip(mine[a:b], theirs[c:d]) if tag == "equal" else ():
                self.alike(one, other)
        outputs = zip(plain.output_names, plain.body.outputs, trained.body.outputs)
        self.found.outputs = {name: self.slot(a, b + self.offset) for name, a, b in outputs}

    @staticmethod
    def calls(graph: Graph, offset: int) -> list[CallStep]:
        def moved(slots: Sequence[int]) -> tuple[int, ...]:
            return tuple(slot + offset for slot in slots)

        equations = graph.body.equations
        return [CallStep(e.primitive, e.static, moved(e.inputs), moved(e.outputs), e.region.path) for e in equations]

    @staticmethod
    def key(step: CallStep) -> Any:
        static = tuple((n, text_of_static(value)) for n, value in sorted(step.static.items()) if n != "site")
        return step.primitive, static, step.path, len(step.inputs)

    def alike(self, one: CallStep, other: CallStep) -> None:
        """Add an op of both recordings."""
        try:
            inputs = tuple(self.slot(a, b) for a, b in zip(one.inputs, other.inputs))
        except UnsupportedError:
            self.differ([one], [other])
            return
        self.found.steps.append(replace(one, inputs=inputs))
        for a, b in zip(one.outputs, other.outputs):
            self.pair(a, b, a)

    def differ(self, mine: Sequence[CallStep], theirs: Sequence[CallStep]) -> None:
        """Add ops of one recording each, in one choice for each region."""
        for path in dict.fromkeys(each.path for each in (*mine, *theirs)):
            last = self.found.steps[-1] if self.found.steps else None
            if not isinstance(last, ChoiceStep) or last.path != path:
                last = ChoiceStep((), (), (), path)
                self.found.steps.append(last)
            own, others = (
                tuple(replace(c, inputs=tuple(alone.get(s, s) for s in c.inputs)) for c in calls if c.path == path)
                for calls, alone in zip((mine, theirs), self.alone)
            )
            self.found.steps[-1] = replace(last, evaluated=(*last.evaluated, *own), trained=(*last.trained, *others))

    def pair(self, a: int, b: int, slot: int) -> int:
        """Make a slot that of a pair."""
        self.pairs[a, b] = self.alone[0][a] = self.alone[1][b] = slot
        return slot

    def slot(self, a: int, b: int) -> int:
        """Return the slot of a pair; one that no op gives becomes a result of the last choice that computes a part."""
        if a in self.digests and self.digests[a] == self.digests.get(b):
            return a
        if (a, b) in self.pairs:
            return self.pairs[a, b]
        for i, step in reversed(list(enumerate(self.found.steps))):
            calls = (step.evaluated, step.trained) if isinstance(step, ChoiceStep) else ((), ())
            own = [{slot for each in side for slot in each.outputs} for side in calls]
            if isinstance(step, ChoiceStep) and (a in own[0] or b in own[1]):
                mine, theirs = (
                    a if a in own[0] else self.alone[0].get(a, a),
                    b if b in own[1] else self.alone[1].get(b, b),
                )
                new = len(self.found.types)
                self.pairs[a, b] = new
                self.found.types[new] = self.found.types[a]
                self.alone[0].update({a: new} if a in own[0] else {})
                self.alone[1].update({b: new} if b in own[1] else {})
                self.found.steps[i] = replace(step, results=(*step.results, (new, mine, theirs)))
                return new
        raise UnsupportedError("a tensor is another one in training, and no op says which")
