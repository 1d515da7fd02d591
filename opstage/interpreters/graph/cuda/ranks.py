"""`CudaRanks`: the programs of a mesh, compiled for the ranks that a process hosts on its GPU."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, final

from ....compiler.codegen.cuda.source import CUDA
from ....compiler.codegen.lowered import Lowered
from ....options import Options
from ...eager_cuda.interpreter import CudaOps
from ...interpreter import BaseInterpreter
from ...mesh.fabric import Fabric
from ..executor import Failed
from ..graph import Graph
from ..hosted import Hosted
from ..programs import Executable
from .executor import CudaExecutor, Prompt
from .scratch import CudaScratch
from .stepwise import chooses
from .target import optimise


@final
class CudaRanks:
    """The target of ranks on a GPU, see `RankTarget`. Exchanges are part of the captured calls, so the processes agree
    on the whole program once before a run, not on each exchange."""

    def __init__(self, options: Options, eager: CudaOps, scratch: CudaScratch, waiting: list[CudaExecutor]):
        self._options, self._eager, self._scratch, self._waiting = options, eager, scratch, waiting
        self._sent: dict[int, int] = {}

    def eager(self, graph: Graph) -> BaseInterpreter[Any]:
        """See `RankTarget.eager`."""
        return self._eager

    def prompt(self) -> BaseInterpreter[Any]:
        """See `RankTarget.prompt`."""
        return Prompt(self._eager)

    def lowered(self, graph: Graph) -> Lowered | None:
        """See `RankTarget.lowered`."""
        return None if chooses(graph.body) else Lowered(optimise(graph).body, CUDA, own_outputs=True)

    def executor(self, graph: Graph, donated: Collection[int], hosted: Hosted, failed: Failed) -> Executable[Any]:
        """See `RankTarget.executor`."""
        return CudaExecutor(graph, self._eager, self._options, donated, self._scratch, self._waiting, hosted, failed)

    def begin_run(self, fabric: Fabric, called: str, executor: Executable[Any]) -> None:
        """See `RankTarget.begin_run`."""
        begin = getattr(fabric, "begin_run", None)
        if begin is not None:
            assert isinstance(executor, CudaExecutor)
            begin(self._eager.device, called, executor.plan.sent)
