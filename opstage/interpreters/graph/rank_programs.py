"""`RankPrograms`: programs of a mesh, recorded for one rank and compiled for the ranks that a process hosts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, final
from zlib import crc32

from ...ops.cursor import Cursor
from ...ops.kinds import Kind
from ...ops.mesh import Mesh
from ...ops.types import EXACT, as_dtype
from ...options import Options
from ..at_once import at_once
from ..base_program import Finish
from ..codegen.clusters import FusionGroup
from ..codegen.fusion import fuse
from ..codegen.lowered import Lowered
from ..eager_cpu.interpreter import NumpyOps
from ..interpreter import BaseInterpreter
from ..mesh.fabric import Fabric, Silent
from ..mesh.hosting import Hosting
from ..mesh.ranks import Parts, Ranks, RankValues
from .bounds import kept_bytes
from .cpu.optimise import optimise
from .cpu.scratch import CpuScratch
from .cpu.target import CPU
from .executor import CpuExecutor, Failed
from .graph import Graph
from .hosted import Hosted, RankInput, firsts, host
from .meeting_arrays import MeetingArrays
from .overlap import Ordered, overlapped
from .programs import Executable, Programs
from .replay import replay


class RankTarget(Protocol):
    """The target of the programs of ranks: an interpreter of ops, a lowered form, and executors."""

    def eager(self, graph: Graph) -> BaseInterpreter[Any]:
        """The interpreter by which collectives of a rank's program are done, or all of one that is run op by op."""
        ...

    def prompt(self) -> BaseInterpreter[Any]:
        """One that computes op by op, and raises the error of an op as soon as that is bound."""
        ...

    def lowered(self, graph: Graph) -> Lowered | None:
        """A rank's program, lowered; None for one that is run op by op."""
        ...

    def executor(self, graph: Graph, donated: Collection[int], hosted: Hosted, failed: Failed) -> Executable[Any]:
        """The executor of the program of several ranks."""
        ...

    def begin_run(self, fabric: Fabric, called: str, executor: Executable[Any]) -> None:
        """A run of an executor begins, on all processes."""
        ...


@final
class CpuRanks:
    """Ranks that compute on the host, where each exchange is asked for anew in every run."""

    def __init__(self, options: Options, scratch: CpuScratch):
        self._options, self._scratch = options, scratch

    def eager(self, graph: Graph) -> BaseInterpreter[Any]:
        """See `RankTarget.eager`."""
        return NumpyOps(self._options) if _is_exact(graph) else MeetingArrays(self._options)

    def prompt(self) -> BaseInterpreter[Any]:
        """See `RankTarget.prompt`."""
        return NumpyOps(self._options)

    def lowered(self, graph: Graph) -> Lowered | None:
        """See `RankTarget.lowered`."""
        return None if _is_exact(graph) else Lowered(optimise(graph)[0].body, CPU)

    def executor(self, graph: Graph, donated: Collection[int], hosted: Hosted, failed: Failed) -> Executable[Any]:
        """See `RankTarget.executor`."""
        return CpuExecutor(graph, self._options, donated, self._scratch, hosted, failed)

    def begin_run(self, fabric: Fabric, called: str, executor: Executable[Any]) -> None:
        """See `RankTarget.begin_run`."""


@final
class RankPrograms:
    """Runs programs on refs that are the ranks' values; what comes out are theirs too."""

    def __init__(self, options: Options, hosting: Hosting, bucket: int, cursor: Cursor, target: RankTarget):
        self.options = options
        self.dtype, self.seed, self.cursor = as_dtype(options.dtype), options.seed, cursor
        self._hosting, self._bucket, self._target = hosting, bucket, target
        self._programs: Programs[RankExecutor] = Programs(self, options.program_memory)

    @property
    def mesh(self) -> Mesh:
        return self._hosting.mesh

    def compile(self, graph: Graph, donated: Collection[int] = ()) -> RankExecutor:
        """Compile the graph of one rank; results may be written over the inputs at the positions `donated`."""
        return RankExecutor(graph, self._target, self._hosting, self._bucket, donated)

    def execute(self, program: Callable[..., Any], refs: tuple[Any, ...], step: int = 0) -> tuple[tuple[Any, ...], ...]:
        """The ranks' results of `program(ops, *refs)` at a training step."""
        return self._programs.execute(program, refs, step)


@final
class RankExecutor:
    """An `Executable` of a rank's graph for all ranks here: one plan for each way in which their inputs are alike."""

    def __init__(self, graph: Graph, target: RankTarget, hosting: Hosting, bucket: int, donated: Collection[int]):
        self.graph = graph
        self._target, self._hosting, self._donated = target, hosting, donated
        self.nbytes = kept_bytes(graph.body, 0)
        self._ranks = Ranks(target.eager(graph), *hosting)
        self._ranks.begin(graph.body.input_types)
        self._hosted: dict[tuple[RankInput, ...], tuple[Executable[Any], tuple[tuple[int, ...], ...]]] = {}
        self._fused: tuple[Lowered, list[FusionGroup], list[Ordered]] | None = None
        lowered = target.lowered(graph)
        if lowered is not None:
            groups = fuse(lowered)
            self._fused = lowered, groups, overlapped(lowered, groups, hosting, bucket)
            self._called = _called(lowered)

    def run(self, inputs: Sequence[Any], step: int = 0) -> tuple[tuple[Any, ...], ...]:
        """The ranks' outputs for their inputs."""
        outputs, finish = self.start(inputs, step)
        finish(())
        return outputs

    def start(
        self, inputs: Sequence[Any], step: int = 0, free: Collection[int] = ()
    ) -> tuple[tuple[tuple[Any, ...], ...], Finish]:
        """See `Executable.start`."""
        if self._fused is None:
            outputs = replay(self._ranks, self.graph, inputs, step)
            self._ranks.raise_pending()
            return tuple([out.values for out in outputs]), at_once
        given = tuple([_given(ref) for ref in inputs])
        executor, places = self._plan(given)
        flat, written = list[Any](), set[int]()
        for number, (ref, first) in enumerate(zip(inputs, given)):
            for rank in firsts(first.alike):
                if number in free:
                    written.add(len(flat))
                flat.append(ref.held[rank])
        self._target.begin_run(self._hosting.fabric, self._called, executor)
        outs, finish = executor.start(flat, step, written)
        return tuple([tuple([outs[place] for place in each]) for each in places]), finish

    def _plan(self, given: tuple[RankInput, ...]) -> tuple[Executable[Any], tuple[tuple[int, ...], ...]]:
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

            def failed(inputs: Sequence[Any], step: int) -> None:
                self._raise(given, inputs, step)

            executor = self._target.executor(self.graph, donated, hosted, failed)
            self.nbytes += executor.nbytes
            found = self._hosted[given] = executor, hosted.places
        return found

    def _raise(self, given: tuple[RankInput, ...], inputs: Sequence[Any], step: int) -> None:
        """Run op by op, to the error. Other processes are not there: they have gone on, and hear of it."""
        mesh, fabric = self._hosting
        ranks = Ranks(self._target.prompt(), mesh, Silent(fabric))
        coming = iter(inputs)
        refs = []
        for each, type_ in zip(given, self.graph.body.input_types):
            values = {rank: next(coming) for rank in firsts(each.alike)}
            held = tuple([values[rank] for rank in each.alike])
            cut = None if each.axis is None else Parts(each.axis, held)
            refs.append(ranks.each(held) if cut is None else RankValues.of_parts(ranks, type_, cut))
        replay(ranks, self.graph, refs, step)


def _is_exact(graph: Graph) -> bool:
    """Whether it computes with fractions, which have no machine form."""
    return graph.dtype == EXACT or any(t.dtype.kind == "O" for t in graph.body.types)


def _called(lowered: Lowered) -> str:
    """A rank's program in words, with a sum over all that ranks send each other in it, and its inputs."""
    told = [
        f"{e.primitive.name} {sorted(e.static.items())} {lowered.types[e.inputs[0]] if e.inputs else ''}"
        for e in lowered.equations
        if e.primitive.kind is Kind.COLLECTIVE
    ]
    told += [str(lowered.types[slot]) for slot in lowered.body.inputs]
    return f"a compiled program of {len(lowered.equations)} ops ({crc32(' '.join(told).encode()):08x})"


def _given(ref: Any) -> RankInput:
    first: dict[int, int] = {}
    alike = tuple([first.setdefault(id(value), rank) for rank, value in enumerate(ref.held)])
    return RankInput(alike, None if ref.parts is None else ref.parts.axis)
