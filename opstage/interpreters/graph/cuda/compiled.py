"""`CompiledCudaOps`: programs are recorded once per signature, then replayed on a GPU as captured CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, final

from typing_extensions import override

from ....ops.primitive import Primitive, Static
from ....options import Options
from ...eager_cuda.interpreter import CudaOps, OnDevice
from ...gpu.buffer import DeviceBuffer
from ...gpu.device import Device
from ...gpu.device.alone import require_own_process
from ...mesh.hosting import Hosting
from ..graph import Graph
from ..programs import Programs
from ..rank_programs import RankPrograms
from .executor import CudaExecutor
from .ranks import CudaRanks
from .scratch import CudaScratch
from .stepwise import StepwiseExecutor, chooses


@final
class CompiledCudaOps(OnDevice):
    """An interpreter whose refs are device buffers. `Programs` decides what is compiled, and when."""

    __slots__ = ("options", "programs", "_eager", "_scratch", "_waiting")

    def __init__(self, options: Options, device: Device | None = None):
        super().__init__(options, device)
        self.options = options
        self._eager = CudaOps(options, self.device)
        self._scratch = CudaScratch(self.device)
        self._waiting: list[CudaExecutor] = []
        self.programs: Programs[CudaExecutor | StepwiseExecutor] = Programs(self, options.program_memory)

    def compile(self, graph: Graph, donated: Collection[int] = ()) -> CudaExecutor | StepwiseExecutor:
        """Compile a graph; results may overwrite the inputs at the positions `donated`.

        A graph with data-dependent control flow runs op by op.
        """
        if chooses(graph.body):
            return StepwiseExecutor(graph, self._eager)
        return CudaExecutor(graph, self._eager, self.options, donated, self._scratch, self._waiting)

    def on_ranks(self, hosting: Hosting, bucket: int) -> RankPrograms:
        """Return the programs of the ranks of a mesh, which exchange buckets of about `bucket` bytes; 0 disables
        buckets."""
        target = CudaRanks(self.options, self._eager, self._scratch, self._waiting)
        return RankPrograms(self.options, hosting, bucket, self.cursor, target)

    @override
    def has_kernel(self, primitive: Primitive) -> bool:
        return self._eager.has_kernel(primitive)

    @override
    def get(self, ref: DeviceBuffer, /) -> Any:
        require_own_process()
        with self.programs.lock:  # a concurrent run may move it
            self.raise_pending()
            return super().get(ref)

    @override
    def raise_pending(self) -> None:
        require_own_process()
        with self.programs.lock:
            while self._waiting:
                self._waiting.pop(0).settle()
            super().raise_pending()

    @override
    def bind(self, primitive: Primitive, refs: tuple[DeviceBuffer, ...], static: Static, /) -> tuple[DeviceBuffer, ...]:
        require_own_process()  # otherwise it might wait for a thread that does not exist after the fork
        return self.programs.bind(primitive, refs, static)

    @override
    def execute(
        self, program: Callable[..., tuple[DeviceBuffer, ...]], refs: tuple[DeviceBuffer, ...], step: int = 0
    ) -> tuple[DeviceBuffer, ...]:
        require_own_process()
        return self.programs.execute(program, refs, step)
