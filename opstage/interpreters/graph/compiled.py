"""`CompiledOps`: programs are recorded once per signature, then replayed. `Options(backend="compiled")` on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, final

import numpy as np
from typing_extensions import override

from ...distributed.processes import Hosting
from ...ops.host_arrays import Array
from ...ops.primitive import Primitive, Static
from ...ops.trees import Structure
from ...ops.types import as_dtype
from ...options import Options
from ...transforms.base_program import BaseProgram
from ..eager_cpu.interpreter import HostArrays, NumpyOps
from ..eager_cpu.memory import located
from .cpu.scratch import CpuScratch
from .executor import CpuExecutor
from .graph import Graph
from .programs import Programs
from .rank_programs import CpuRanks, RankPrograms


@final
class CompiledOps(HostArrays):
    """An interpreter whose refs are host arrays. `Programs` decides what is compiled, and when."""

    __slots__ = ("options", "programs", "_eager", "_scratch")

    def __init__(self, options: Options):
        super().__init__(as_dtype(options.dtype), options.seed)
        self.options = options
        self._eager = NumpyOps(options)
        self._scratch = CpuScratch()
        self.programs: Programs[CpuExecutor] = Programs(self, options.program_memory)

    def compile(self, graph: Graph, donated: Collection[int] = ()) -> CpuExecutor:
        """Compile a graph; results may overwrite the inputs at the positions `donated`."""
        return CpuExecutor(graph, self.options, donated, self._scratch)

    def on_ranks(self, hosting: Hosting, bucket: int) -> RankPrograms:
        """Return the programs of the ranks of a mesh, which exchange buckets of about `bucket` bytes; 0 disables
        buckets."""
        return RankPrograms(self.options, hosting, bucket, self.cursor, CpuRanks(self.options, self._scratch))

    @override
    def has_kernel(self, primitive: Primitive) -> bool:
        return self._eager.has_kernel(primitive)

    @override
    def trim(self) -> None:
        self._scratch.trim()
        self._eager.trim()

    @override
    def bind(self, primitive: Primitive, refs: tuple[Array, ...], static: Static, /) -> tuple[Array, ...]:
        return self.programs.bind(primitive, refs, static)

    @override
    def execute_each(
        self, program: Callable[..., tuple[Array, ...]], refs: tuple[Array, ...], step: int = 0
    ) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):  # as on the eager interpreter
            return super().execute_each(program, refs, step)

    @override
    def prepared(
        self, program: BaseProgram, refs: tuple[Array, ...], varying: Sequence[int]
    ) -> tuple[Callable[[Sequence[Array]], Any], Callable[[], bool], Structure] | None:
        return self.programs.prepared(program, refs, varying)

    @override
    def execute(
        self, program: Callable[..., tuple[Array, ...]], refs: tuple[Array, ...], step: int = 0
    ) -> tuple[Array, ...]:
        try:
            return self.programs.execute(program, refs, step)
        except MemoryError as error:
            raise located(error) from None
