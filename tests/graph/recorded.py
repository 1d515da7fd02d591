"""Graphs to test on: the shipped models' training steps, and random programs with their gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

from opstage import Options, optim
from opstage.interpreters.graph import Graph, record
from opstage.models import MODELS, model
from opstage.ops.trees import flatten
from opstage.ops.types import FLOAT64, TensorType
from opstage.training.program_check import record_model
from opstage.transforms.derivatives import value_and_grad
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
