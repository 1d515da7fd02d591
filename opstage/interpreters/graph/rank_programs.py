"""`RankPrograms`: programs of a mesh, recorded for one rank and compiled for all ranks that a process hosts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias, final
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
from ..mesh.meeting import abandon
from ..mesh.ranks import Parts, Ranks, RankValues, axes_of, held_of
from .bounds import kept_bytes
from .cpu.optimise import optimise
from .cpu.scratch import CpuScratch
from .cpu.target import CPU
from .executor import CpuExecutor, Failed
from .graph import Graph
from .hosted import Hosted, RankInput, firsts, host
from .meeting_arrays import MeetingArrays
from .overlap import Ordered, ahead, overlapped
from .programs import Executable, Programs
from .replay import replay

RankResult: TypeAlias = "tuple[Any, ...] | RankValues"
"""A result of each rank, or the input that it is written over."""


class RankTarget(Protocol):
    """The target of rank programs: an interpreter of ops, a lowering, and executors."""

    def eager(self, graph: Graph) -> BaseInterpreter[Any]:
        """Return the interpreter for collectives, or for a whole program that runs op by op."""
        ...

    def prompt(self) -> BaseInterpreter[Any]:
        """Return an interpreter that runs op by op and raises an op's error when it is bound."""
        ...

    def lowered(self, graph: Graph) -> Lowered | None:
        """Return a rank's program, lowered; None for one that runs op by op."""
        ...

    def executor(self, graph: Graph, donated: Collection[int], hosted: Hosted, failed: Failed) -> Executable[Any]:
        """Return the executor of the program of several ranks."""
        ...

    def begin_run(self, fabric: Fabric, called: str, executor: Executable[Any]) -> None:
        """Begin a run of an executor, on all processes."""
        ...


@final
class CpuRanks:
    """The target of ranks on the host, where exchanges are agreed on in every run."""

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
    """Runs programs on refs that hold the ranks' values, and returns the ranks' results."""

    def __init__(self, options: Options, hosting: Hosting, bucket: int, cursor: Cursor, target: RankTarget):
        self.options = options
        self.dtype, self.seed, self.cursor = as_dtype(options.dtype), options.seed, cursor
        self._hosting, self._bucket, self._target = hosting, bucket, target
        self._programs: Programs[RankExecutor] = Programs(self, options.program_memory)

    @property
    def mesh(self) -> Mesh:
        return self._hosting.mesh

    def compile(self, graph: Graph, donated: Collection[int] = ()) -> RankExecutor:
        """Compile the graph of one rank; results may overwrite the inputs at the positions `donated`."""
        return RankExecutor(graph, self._target, self._hosting, self._bucket, donated)

    def execute(self, program: Callable[..., Any], refs: tuple[Any, ...], step: int = 0) -> tuple[RankResult, ...]:
        """Return the ranks' results of `program(ops, *refs)` at a training step."""
        return self._programs.execute(program, refs, step)


@final
class RankExecutor:
    """An `Executable` of a rank's graph for all hosted ranks. It has one plan for each way in which ranks share
    inputs."""

    def __init__(self, graph: Graph, target: RankTarget, hosting: Hosting, bucket: int, donated: Collection[int]):
        self.graph = graph
        self._target, self._hosting, self._donated = target, hosting, donated
        self.nbytes = kept_bytes(graph.body, 0)
        self._ranks = Ranks(target.eager(graph), *hosting)
        self._ranks.begin(graph.body.input_types)
        self._hosted: dict[tuple[RankInput, ...], tuple[Executable[Any], tuple[tuple[int, ...], ...]]] = {}
        self._alone: dict[tuple[str | None, ...], tuple[Executable[Any], tuple[tuple[int, ...], ...]]] = {}
        self._fused: tuple[Lowered, list[FusionGroup], list[Ordered]] | None = None
        lowered = target.lowered(graph)
        if lowered is not None:
            groups = fuse(lowered, ahead(lowered))
            self._fused = lowered, groups, overlapped(lowered, groups, hosting, bucket)
            self._called = _called(lowered)

    def run(self, inputs: Sequence[Any], step: int = 0) -> tuple[RankResult, ...]:
        """Return the ranks' outputs for their inputs."""
        outputs, finish = self.start(inputs, step)
        finish(())
        return outputs

    def start(
        self, inputs: Sequence[Any], step: int = 0, free: Collection[int] = ()
    ) -> tuple[tuple[RankResult, ...], Finish]:
        """See `Executable.start`."""
        if self._fused is None:
            outputs = replay(self._ranks, self.graph, inputs, step)
            self._ranks.raise_pending()
            return tuple([out.values for out in outputs]), at_once
        held, axes = held_of(inputs), axes_of(inputs)
        flat, written = list[Any](), set[int]()
        alone = len(self._ranks.hosted) == 1
        if alone:
            flat, written = [value for (value,) in held], set(free)
            executor, places = self._alone.get(axes) or self._plan_alone(axes)
        else:
            given = tuple(map(_given, held, axes))
            executor, places = self._plan(given)
            for number, (values, first) in enumerate(zip(held, given)):
                for rank in firsts(first.alike):
                    if number in free:
                        written.add(len(flat))
                    flat.append(values[rank])
        abandon(self._ranks)
        self._target.begin_run(self._hosting.fabric, self._called, executor)
        outs, finish = executor.start(flat, step, written)
        if alone:
            over = {id(flat[at]): inputs[at] for at in free if axes[at] is None}
            return tuple([over.get(id(out := outs[place]), (out,)) for (place,) in places]), finish
        return tuple([tuple([outs[place] for place in each]) for each in places]), finish

    def _plan_alone(self, axes: tuple[str | None, ...]) -> tuple[Executable[Any], tuple[tuple[int, ...], ...]]:
        """Return what `_plan` does for a single rank, whose inputs are its own rows along these axes."""
        found = self._alone[axes] = self._plan(tuple([RankInput((0,), axis) for axis in axes]))
        return found

    def _plan(self, given: tuple[RankInput, ...]) -> tuple[Executable[Any], tuple[tuple[int, ...], ...]]:
        """Return the executor for inputs shared in this way, and the positions of the ranks' outputs among its
        outputs."""
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
        """Rerun op by op to raise the error. Other processes do not take part; they are notified of the error."""
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
    """Return whether it computes with fractions, which have no machine representation."""
    return graph.dtype == EXACT or any(t.dtype.kind == "O" for t in graph.body.types)


def _called(lowered: Lowered) -> str:
    """Describe a rank's program by a checksum of all collectives and inputs."""
    parts = [
        f"{e.primitive.name} {sorted(e.static.items())} {lowered.types[e.inputs[0]] if e.inputs else ''}"
        for e in lowered.equations
        if e.primitive.kind is Kind.COLLECTIVE
    ]
    parts += [str(lowered.types[slot]) for slot in lowered.body.inputs]
    return f"a compiled program of {len(lowered.equations)} ops ({crc32(' '.join(parts).encode()):08x})"


def _given(held: tuple[Any, ...], axis: str | None) -> RankInput:
    first: dict[int, int] = {}
    return RankInput(tuple([first.setdefault(id(value), rank) for rank, value in enumerate(held)]), axis)
