"""A graph run on any base interpreter, op by op: what its equations mean, in the simplest way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..interpreter import BaseInterpreter
from ..tracer import constants, evaluate
from .graph import Graph


def replay(ops: BaseInterpreter[Any], graph: Graph, inputs: Sequence[Any], step: int = 0) -> tuple[Any, ...]:
    """The outputs of the graph for values of `ops`; an error names the line of the op in the recorded program."""
    body = graph.body

    def program(inner: BaseInterpreter[Any], *refs: Any) -> tuple[Any, ...]:
        every = [*refs, inner.step()] if len(body.inputs) > len(refs) else refs
        return evaluate(inner, body, every, constants(inner, body))

    return ops.execute_each(program, tuple(inputs), step)
