"""An imported program as steps in regions: its ops, and where training differs from evaluation."""

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
"""That of a region: names, each with the number of its occurrence."""

WIDE = Options(dtype="float64")
"""A program is recorded in the dtype that holds every constant of a file, so that none of them is rounded."""


@final
@dataclass(frozen=True)
class CallStep:
    """One op. Its inputs are slots, the numbers of tensors, or stand for other operands (see `operands`)."""

    primitive: Primitive
    static: Static
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]
    path: Path


@final
@dataclass(frozen=True)
class KeepStep:
    """A buffer of the model takes a new value."""

    name: str
    slot: int
    path: Path


@final
@dataclass(frozen=True)
class ChoiceStep:
    """One node in evaluation and in training.

    results   tensors that both give: the slot that later steps read, and what it is in each
    kept      buffers that training moves
    """

    evaluated: tuple[CallStep, ...]
    trained: tuple[CallStep, ...]
    results: tuple[tuple[int, int, int], ...]
    kept: tuple[KeepStep, ...]
    path: Path


Step: TypeAlias = "CallStep | KeepStep | ChoiceStep"


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
    """The slots that a step reads from before it."""
    if isinstance(step, CallStep):
        yield from _slots(step)
    elif isinstance(step, KeepStep):
        yield step.slot
    else:
        own = {slot for call in (*step.evaluated, *step.trained) for slot in call.outputs}
        both = [*[slot for call in (*step.evaluated, *step.trained) for slot in _slots(call)]]
        both += [slot for _, a, b in step.results for slot in (a, b)] + [kept.slot for kept in step.kept]
        yield from (slot for slot in both if slot not in own)


def _slots(call: CallStep) -> Iterator[int]:
    for operand in call.inputs:
        if type(operand) is int:
            yield operand
        elif hasattr(operand, "slot"):
            yield operand.slot


def gives(step: Step) -> tuple[int, ...]:
    """The slots that a step gives to those after it."""
    if isinstance(step, CallStep):
        return step.outputs
    return tuple(slot for slot, _, _ in step.results) if isinstance(step, ChoiceStep) else ()


def same_static(a: Static, b: Static) -> bool:
    """Whether two calls have the same static parameters, but for the sites of random draws."""
    names = {*a, *b} - {"site"}
    return all(name in a and name in b and text_of_static(a[name]) == text_of_static(b[name]) for name in names)


def text_of_static(value: Any) -> str:
    """A static parameter as text, the bodies of loops included."""
    if value is None:
        return "None"
    bodies: list[Any] = []
    text = show_static(value, bodies)
    return text + "".join(text_of_body(body) for body in bodies)


def text_of_body(body: Any) -> str:
    """The computation of a closed body, but for the regions and lines of its ops."""
    body = body.renumbered()
    lines = [f"{[str(t) for t in body.input_types]} {body.inputs} -> {body.outputs}"]
    lines += [f"{c.slot} {c.type} {digest(c.value)}" for c in body.constants]
    for e in body.equations:
        static = {n: text_of_static(v) for n, v in e.static.items() if n != "site"}
        lines.append(f"{e.primitive.name} {static} {e.inputs} {e.outputs}")
    return "\n".join(lines)
