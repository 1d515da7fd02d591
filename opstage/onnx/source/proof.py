"""Prove that a written module computes the model: the terms of both graphs are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...compilation import record
from ...imported.network import Network, of_several
from ...interpreters.graph.graph import Graph
from ...interpreters.graph.notation import digest
from ...ops.closed import Body
from ...ops.errors import OpstageError, UnsupportedError
from .module import ModuleText
from .steps import WIDE, CallStep, text_of_static


def require_same(made: ModuleText, model: Network) -> None:
    """Raise UnsupportedError unless the program of the source equals the model's, in evaluation and in training."""
    program = _program(made, model.state is not None)
    trees: tuple[Any, ...] = (model.params,) if model.state is None else (model.params, model.state)
    for train in (False, True):
        specs = of_several(model) if train else model.batch
        expected = record(model.program, *trees, *specs, options=WIDE, train=train)
        try:
            found = record(program, *trees, *specs, options=WIDE, train=train)
        except OpstageError as error:
            raise UnsupportedError(f"{model.name} cannot be written as source: {error}") from error
        numbers: dict[Any, int] = {}
        if _outputs(expected, numbers) != _outputs(found, numbers):
            raise UnsupportedError(f"{model.name} cannot be written as source: its text would compute something else")


def _program(made: ModuleText, stateful: bool) -> Any:
    """Return the program of a module with given tensors, on parameters under the names of the model."""
    namespace: dict[str, Any] = {"__name__": __name__, "TENSORS": made.tensors}
    exec(compile(made.text.replace(made.reading, ""), "<imported>", "exec"), namespace)

    back = {new: name for name, new in made.names.items()}

    def program(ops: Any, *given: Any, train: bool = False) -> Any:
        trees, inputs = given[: 1 + stateful], given[1 + stateful :]
        named = [{made.names.get(name, name): ref for name, ref in tree.items()} for tree in trees]
        result = namespace["program"](ops, *named, *inputs, train=train)
        return (result[0], {back.get(name, name): ref for name, ref in result[1].items()}) if stateful else result

    return program


def _outputs(graph: Graph, numbers: dict[Any, int]) -> list[tuple[str, int]]:
    """Return a number for each output; equal terms have equal numbers, independent of order and regions of their
    ops."""
    inputs = [numbers.setdefault(("input", i), len(numbers)) for i in range(len(graph.body.inputs))]
    return list(zip(graph.output_names, _terms(graph.body, inputs, numbers, 0)))


def _terms(body: Body, inputs: Sequence[int], numbers: dict[Any, int], depth: int) -> list[int]:
    """Return the numbers of a body's outputs, given those of its inputs."""
    terms: dict[int, int] = {}

    def learn(slot: int, key: Any) -> None:
        terms[slot] = numbers.setdefault(key, len(numbers))

    terms.update(zip(body.inputs, inputs))
    for constant in body.constants:
        learn(constant.slot, ("constant", digest(constant.value)))
    for e in body.equations:
        step = CallStep(e.primitive, e.static, e.inputs, e.outputs, ())
        read = tuple(terms[slot] for slot in e.inputs)
        static = []
        for name, each in sorted(e.static.items()):
            if name != "site":
                if e.primitive.name == "full" and name == "value":
                    each = float(each) if type(each) in (int, bool) else each  # 0 and 0.0 are equal
                static.append((name, text_of_static(each) if not _bodies(each) else None))
        key: tuple[Any, ...] = (e.primitive.name, tuple(static), read)
        if any(_bodies(each) for each in e.static.values()):
            key = (e.primitive.name, tuple(static), *_closed(step, read, numbers, depth))
        for i, slot in enumerate(e.outputs):
            learn(slot, (*key, i))
    return [terms[slot] for slot in body.outputs]


def _closed(step: CallStep, read: tuple[int, ...], numbers: dict[Any, int], depth: int) -> tuple[Any, ...]:
    """Return the operands of a loop or choice that it does not capture, and its bodies, with captures numbered as
    outside, in any order."""
    static, name = step.static, step.primitive.name
    if name == "switch":
        own, captured = 0, read[1:]
    else:
        own = static["carries"] + static["entries"] if name == "scan" else len(static["body"].outputs)
        captured = read[own:]
    inside = [numbers.setdefault(("own", depth, i, read[i]), len(numbers)) for i in range(own)]
    bodies = [each for value in static.values() for each in _bodies(value)]
    return read[: own or 1], tuple(tuple(_terms(each, [*inside, *captured], numbers, depth + 1)) for each in bodies)


def _bodies(value: Any) -> list[Body]:
    if isinstance(value, Body):
        return [value]
    return [each for entry in value for each in _bodies(entry)] if isinstance(value, tuple) else []
