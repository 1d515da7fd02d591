"""What runs a graph on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ...options import Options
from ..eager_cpu.interpreter import Array, NumpyOps
from .graph import Graph
from .replay import replay


@final
class Executor:
    """Runs a graph on arrays."""

    __slots__ = ("graph", "_eager")

    def __init__(self, graph: Graph, options: Options):
        self.graph = graph
        self._eager = NumpyOps(options)

    def run(self, inputs: Sequence[Array], step: int = 0) -> tuple[Array, ...]:
        """The outputs for `inputs`, at training step `step`."""
        return replay(self._eager, self.graph, inputs, step)
