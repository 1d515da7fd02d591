"""Runs a graph op by op on any base interpreter: the reference semantics of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..interpreter import BaseInterpreter
from ..tracer import constants, evaluate
from .graph import Graph


def replay(ops: BaseInterpreter[Any], graph: Graph, inputs: Sequence[Any], step: int = 0) -> tuple[Any, ...]:
    """Return the outputs of the graph for refs of `ops`; errors have the line of the op in the recorded program."""
    body = graph.body

    def program(inner: BaseInterpreter[Any], *refs: Any) -> tuple[Any, ...]:
        every = [*refs, inner.step()] if len(body.inputs) > len(refs) else refs
        return evaluate(inner, body, every, constants(inner, body))

    return ops.execute_each(program, tuple(inputs), step)
