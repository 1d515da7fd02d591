"""The executor of a graph with data-dependent control flow: it runs op by op, since the host reads the conditions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import final

from ....ops.closed import Body
from ...at_once import Action, at_once
from ...base_program import Finish
from ...branching import SWITCH
from ...control import bodies_of
from ...eager_cuda.interpreter import CudaOps
from ...gpu.buffer import DeviceBuffer
from ...looping import WHILE
from ..graph import Graph
from ..programs import kept_bytes
from ..recorder import replay


def chooses(body: Body) -> bool:
    """Return whether a body has a switch or while_loop, which a recorded sequence of launches cannot contain."""
    return any(
        e.primitive in (SWITCH, WHILE) or any(chooses(inner) for _, inner in bodies_of(e.static))
        for e in body.equations
    )


@final
class StepwiseExecutor:
    """Runs a graph on buffers of a device by the eager kernels. Inputs are never overwritten."""

    def __init__(self, graph: Graph, eager: CudaOps):
        self.graph = graph
        self.nbytes = kept_bytes(graph.body, 0)
        self._eager = eager

    def run(self, inputs: Sequence[DeviceBuffer], step: int = 0) -> tuple[DeviceBuffer, ...]:
        """Return the outputs for `inputs` at training step `step`."""
        return replay(self._eager, self.graph, inputs, step)

    def prepared(self, inputs: Sequence[DeviceBuffer], varying: Sequence[int]) -> None:
        """It has no such calls."""

    def start(
        self, inputs: Sequence[DeviceBuffer], step: int = 0, free: Collection[int] = ()
    ) -> tuple[tuple[DeviceBuffer, ...], Finish]:
        """Return the outputs, which are complete once pending index errors have been raised."""
        outputs = self.run(inputs, step)
        self._eager.raise_pending()

        def finish(then: Sequence[Action]) -> None:
            at_once(then)

        return outputs, finish
