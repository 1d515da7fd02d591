"""Graphs to test on: the training steps of the shipped models, and random programs; whether two graphs are equal."""

from __future__ import annotations

from functools import cache
from typing import Any

from opstage import Options, optim
from opstage.interpreters.graph import Graph, record
from opstage.models import MODELS, model
from opstage.ops.body import Body
from opstage.ops.trees import flatten
from opstage.ops.types import FLOAT64, TensorType
from opstage.training.program_check import record_model
from opstage.transforms.derivatives import value_and_grad
from opstage.transforms.tracer import Composite, graph_statics
from tests.property.programs import RandomProgram
from tests.property.test_random_programs import scalar

NAMES = sorted(MODELS)


@cache
def training_step(name: str) -> Graph:
    """The whole training step of a shipped model, its batch size symbolic."""
    return record_model(model(name), Options(), optim.adamw(lr=0.1))


def with_gradients(program: RandomProgram) -> Graph:
    """A random program made scalar, with its results and gradients."""

    def run(ops: Any, *refs: Any) -> tuple[Any, ...]:
        everything = tuple(range(len(refs)))
        (_, results), grads = value_and_grad(ops, scalar(program), *refs, wrt=everything, has_aux=True)
        return (*results, *flatten(grads)[0])

    return record(run, [TensorType(array.shape, array.dtype) for array in program.arrays()], FLOAT64, 0)


def same_graphs(a: Graph, b: Graph) -> None:
    assert (a.input_names, a.output_names, a.dtype, a.seed) == (b.input_names, b.output_names, b.dtype, b.seed)
    assert described(a.body) == described(b.body)


def described(body: Body) -> Any:
    """All that a body holds, as text and bytes; the types and lines that nothing uses left out."""
    defined = {*body.inputs, *[c.slot for c in body.constants]}.union(*[e.outputs for e in body.equations])
    return (
        body.inputs,
        body.outputs,
        [(c.slot, c.value.dtype, c.value.shape, content(c.value), str(c.type)) for c in body.constants],
        [
            (
                (e.primitive.name,) if type(e.primitive) is Composite else e.primitive,
                [(name, static(value)) for name, value in graph_statics(e).items()],
                e.inputs,
                e.outputs,
                e.region.path,
                e.ordinal,
                e.opened,
                e.backward,
                body.lines.get(e.ordinal),
            )
            for e in body.equations
        ],
        {slot: str(body.types[slot]) for slot in defined},
    )


def content(array: Any) -> Any:
    return list(array.flat) if array.dtype == object else array.tobytes()


def static(value: Any) -> Any:
    if isinstance(value, Body):
        return described(value)
    if type(value) is tuple:
        return tuple(map(static, value))
    return type(value).__name__, repr(value)
