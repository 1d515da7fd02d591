"""`RankPrograms`: programs of a mesh, recorded for one rank and compiled for the ranks that a process hosts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, final

from ...ops.cursor import Cursor
from ...ops.mesh import Mesh
from ...ops.types import EXACT, as_dtype
from ...options import Options
from ..at_once import at_once
from ..base_program import Finish
from ..codegen.clusters import FusionGroup
from ..codegen.fusion import fuse
from ..codegen.lowered import Lowered
from ..eager_cpu.interpreter import NumpyOps
from ..host import Array
from ..mesh.fabric import Silent
from ..mesh.hosting import Hosting
from ..mesh.ranks import Parts, Ranks, RankValues
from .bounds import kept_bytes
from .cpu.optimise import optimise
from .cpu.scratch import CpuScratch
from .cpu.target import CPU
from .executor import CpuExecutor
from .graph import Graph
from .hosted import RankInput, firsts, host
from .meeting_arrays import MeetingArrays
from .overlap import Ordered, overlapped
from .programs import Programs
from .replay import replay


@final
class RankPrograms:
    """Runs programs on refs that are the ranks' values; what comes out are theirs too."""

    def __init__(self, options: Options, hosting: Hosting, bucket: int, cursor: Cursor, scratch: CpuScratch):
        self.options = options
        self.dtype, self.seed, self.cursor = as_dtype(options.dtype), options.seed, cursor
        self._hosting, self._bucket = hosting, bucket
        self._scratch = scratch
        self._programs: Programs[RankExecutor] = Programs(self, options.program_memory)

    @property
    def mesh(self) -> Mesh:
        return self._hosting.mesh

    def compile(self, graph: Graph, donated: Collection[int] = ()) -> RankExecutor:
        """Compile the graph of one rank; results may be written over the inputs at the positions `donated`."""
        return RankExecutor(graph, self.options, self._hosting, self._bucket, donated, self._scratch)

    def execute(
        self, program: Callable[..., Any], refs: tuple[Any, ...], step: int = 0
    ) -> tuple[tuple[Array, ...], ...]:
        """The ranks' results of `program(ops, *refs)` at a training step."""
        return self._programs.execute(program, refs, step)


@final
class RankExecutor:
    """An `Executable` of a rank's graph for all ranks here: one plan for each way in which their inputs are alike."""

    def __init__(
        self,
        graph: Graph,
        options: Options,
        hosting: Hosting,
        bucket: int,
        donated: Collection[int],
        scratch: CpuScratch,
    ):
        self.graph = graph
        self._options, self._hosting, self._donated, self._scratch = options, hosting, donated, scratch
        self.nbytes = kept_bytes(graph.body, 0)
        exact = graph.dtype == EXACT or any(t.dtype.kind == "O" for t in graph.body.types)
        self._ranks = Ranks(NumpyOps(options) if exact else MeetingArrays(options), *hosting)
        self._ranks.begin(graph.body.input_types)
        self._hosted: dict[tuple[RankInput, ...], tuple[CpuExecutor, tuple[tuple[int, ...], ...]]] = {}
        self._fused: tuple[Lowered, list[FusionGroup], list[Ordered]] | None = None
        if not exact:
            lowered = Lowered(optimise(graph)[0].body, CPU)
            groups = fuse(lowered)
            self._fused = lowered, groups, overlapped(lowered, groups, hosting, bucket)

    def run(self, inputs: Sequence[Any], step: int = 0) -> tuple[tuple[Array, ...], ...]:
        """The ranks' outputs for their inputs."""
        outputs, finish = self.start(inputs, step)
        finish(())
        return outputs

    def start(
        self, inputs: Sequence[Any], step: int = 0, free: Collection[int] = ()
    ) -> tuple[tuple[tuple[Array, ...], ...], Finish]:
        """See `CpuExecutor.start`."""
        if self._fused is None:  # fractions have no machine form
            return tuple([out.values for out in replay(self._ranks, self.graph, inputs, step)]), at_once
        given = tuple([_given(ref) for ref in inputs])
        executor, places = self._plan(given)
        flat, written = list[Array](), set[int]()
        for number, (ref, first) in enumerate(zip(inputs, given)):
            for rank in firsts(first.alike):
                if number in free:
                    written.add(len(flat))
                flat.append(ref.held[rank])
        outs, finish = executor.start(flat, step, written)
        return tuple([tuple([outs[place] for place in each]) for each in places]), finish

    def _plan(self, given: tuple[RankInput, ...]) -> tuple[CpuExecutor, tuple[tuple[int, ...], ...]]:
        """The executor for inputs that are alike so, and where the ranks' outputs stand among its own."""
        found = self._hosted.get(given)
        if found is None:
            assert self._fused is not None
            donated, first = set[int](), 0
            for number, each in enumerate(given):
                places = range(first, first + len(firsts(each.alike)))
                donated.update(places if number in self._donated else ())
                first = places.stop
            step = [RankInput((0,) * len(self._ranks.hosted))] * (len(self.graph.body.inputs) - len(given))
            hosted = host(*self._fused, [*given, *step], self._ranks)

            def failed(inputs: Sequence[Array], step: int) -> None:
                self._raise(given, inputs, step)

            executor = CpuExecutor(self.graph, self._options, donated, self._scratch, hosted, failed)
            self.nbytes += executor.nbytes
            found = self._hosted[given] = executor, hosted.places
        return found

    def _raise(self, given: tuple[RankInput, ...], inputs: Sequence[Array], step: int) -> None:
        """Run op by op, to the error. Other processes are not there: they have gone on, and hear of it."""
        mesh, fabric = self._hosting
        ranks = Ranks(NumpyOps(self._options), mesh, Silent(fabric))
        coming = iter(inputs)
        refs = []
        for each, type_ in zip(given, self.graph.body.input_types):
            values = {rank: next(coming) for rank in firsts(each.alike)}
            held = tuple([values[rank] for rank in each.alike])
            cut = None if each.axis is None else Parts(each.axis, held)
            refs.append(ranks.each(held) if cut is None else RankValues.of_parts(ranks, type_, cut))
        replay(ranks, self.graph, refs, step)


def _given(ref: Any) -> RankInput:
    first: dict[int, int] = {}
    alike = tuple([first.setdefault(id(value), rank) for rank, value in enumerate(ref.held)])
    return RankInput(alike, None if ref.parts is None else ref.parts.axis)
