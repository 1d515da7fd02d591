"""Proof that a written module computes what the model does: the terms of its graph are those of the model's."""

from __future__ import annotations

from typing import Any

from ...compilation import record
from ...interpreters.graph.graph import Graph
from ...interpreters.graph.notation import digest
from ...ops.errors import OpstageError, UnsupportedError
from ..model import OnnxModel
from .module import ModuleText
from .operands import uniform_value
from .recording import specs_of
from .steps import WIDE, CallStep, text_of_static


def require_same(made: ModuleText, model: OnnxModel) -> None:
    """Raise UnsupportedError where the program of the source is not the model's, in evaluation or in training."""
    program = _program(made, model.state is not None)
    trees: tuple[Any, ...] = (model.params,) if model.state is None else (model.params, model.state)
    for train in (False, True):
        specs = specs_of(model, train)
        expected = record(model, *trees, *specs, options=WIDE, train=train)
        try:
            found = record(program, *trees, *specs, options=WIDE, train=train)
        except OpstageError as error:
            raise UnsupportedError(f"{model.name} cannot be written as source: {error}") from error
        numbers: dict[Any, int] = {}
        if _outputs(expected, numbers) != _outputs(found, numbers):
            raise UnsupportedError(f"{model.name} cannot be written as source: its text would compute something else")


def _program(made: ModuleText, stateful: bool) -> Any:
    """The program of a module whose tensors are at hand, on parameters by the names of the model."""
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
    """A number for each output; equal terms have equal numbers, whatever the order and the regions of their ops."""
    body = graph.body
    terms: dict[int, int] = {}
    uniform: dict[int, Any] = {}

    def learn(slot: int, key: Any) -> None:
        if slot in uniform:  # however a tensor was filled with one number
            key = ("uniform", str(body.types[slot]), _filling(uniform[slot][0]))
        terms[slot] = numbers.setdefault(key, len(numbers))

    for i, slot in enumerate(body.inputs):
        learn(slot, ("input", i))
    for constant in body.constants:
        if constant.value.size == 1:
            uniform[constant.slot] = (constant.value.reshape(-1)[0].item(),)
        learn(constant.slot, ("constant", digest(constant.value)))
    for e in body.equations:
        step = CallStep(e.primitive, e.static, e.inputs, e.outputs, ())
        value = uniform_value(step, uniform)
        if value is not None:
            uniform[e.outputs[0]] = value
        static = tuple((n, text_of_static(v)) for n, v in sorted(e.static.items()) if n != "site")
        read = tuple(terms[slot] for slot in e.inputs)
        for i, slot in enumerate(e.outputs):
            learn(slot, (e.primitive.name, static, read, i))
    return [(name, terms[slot]) for name, slot in zip(graph.output_names, body.outputs)]


def _filling(value: Any) -> str:
    return text_of_static(float(value) if type(value) in (int, bool) else value)
