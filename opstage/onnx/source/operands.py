"""Operands as a reader would write them: a number for a constant-filled tensor, an operator for an implied
broadcast."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, final

from ...ops.dims import DimFloat
from ...ops.protocol import Ops
from ...ops.types import TensorType
from .steps import CallStep, ChoiceStep, ProgramSteps, Step, gives, reads

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
