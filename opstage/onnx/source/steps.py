"""An imported program as steps in regions: its ops, and the differences between training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy.typing as npt

from ...interpreters.graph.notation import digest, show_static
from ...ops.primitive import Primitive, Static
from ...ops.types import TensorType
from ...options import Options

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
