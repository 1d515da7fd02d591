"""`RankPrograms`: programs of a mesh, recorded for one rank and compiled for all ranks that a process hosts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, final
from zlib import crc32

import numpy as np
from typing_extensions import override

from ...compiler.codegen.clusters import FusionGroup
from ...compiler.codegen.fusion import fuse
from ...compiler.codegen.lowering import Lowered
from ...distributed.compiled_collectives import abandon
from ...distributed.processes import Hosting
from ...distributed.ranks import Parts, Ranks, RankValues
from ...distributed.transport import EXCHANGE_START, Silent, Transport, begin_exchange
from ...ops.dispatch import Cursor
from ...ops.host_arrays import Array
from ...ops.mesh import Mesh
from ...ops.primitive import Kind, Primitive, Static
from ...ops.types import as_dtype
from ...options import Options
from ...transforms.base_program import Finish, at_once
from ...transforms.interpreter import BaseInterpreter
from ..eager_cpu.interpreter import HostArrays, NumpyOps
from ..eager_cpu.kernels import kernel_table
from .cpu.kernel_library import CPU
from .cpu.plan import optimise
from .executor import CpuExecutor, CpuScratch, Failed
from .graph import Graph
from .program_cache import Executable, Programs, kept_bytes
from .rank_lowering import Hosted, RankInput, firsts, host
from .rank_schedule import Ordered, ahead, overlapped
from .recorder import replay

# Arrays of meetings ---------------------------------------------------------------------------------------------------

# Compiled steps have generated loops for everything else; the ops of collectives split, join and add what the ranks
# exchange, each by one call of a kernel of the eager interpreter, so the bits are equal. Shapes are not checked here;
# recording checked them.


@final
class MeetingArrays(HostArrays):
    """The eager interpreter of collectives in a compiled step. Sent arrays are not overwritten before they arrive."""

    __slots__ = ("_kernels",)

    def __init__(self, options: Options):
        super().__init__(as_dtype(options.dtype), options.seed)
        self._kernels = {**kernel_table(options.dtype, options.fast_kernels), EXCHANGE_START: begin_exchange}

    @override
    def sendable(self, x: Array) -> Array:
        return x

    @override
    def bind(self, primitive: Primitive, refs: tuple[Array, ...], static: Static, /) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):  # infinity less infinity is nan, without a warning
            out = self._kernels[primitive](*refs, **static)
        return out if type(out) is tuple else (np.asarray(out),)


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

    def begin_run(self, transport: Transport, called: str, executor: Executable[Any]) -> None:
        """Begin a run of an executor, on all processes."""
        ...


@final
class CpuRanks:
    """The target of ranks on the host, where exchanges are agreed on in every run."""

    def __init__(self, options: Options, scratch: CpuScratch):
        self._options, self._scratch = options, scratch

    def eager(self, graph: Graph) -> BaseInterpreter[Any]:
        """See `RankTarget.eager`."""
        return NumpyOps(self._options) if graph.is_exact else MeetingArrays(self._options)

    def prompt(self) -> BaseInterpreter[Any]:
        """See `RankTarget.prompt`."""
        return NumpyOps(self._options)

    def lowered(self, graph: Graph) -> Lowered | None:
        """See `RankTarget.lowered`."""
        return None if graph.is_exact else Lowered(optimise(graph)[0].body, CPU)

    def executor(self, graph: Graph, donated: Collection[int], hosted: Hosted, failed: Failed) -> Executable[Any]:
        """See `RankTarget.executor`."""
        return CpuExecutor(graph, self._options, donated, self._scratch, hosted, failed)

    def begin_run(self, transport: Transport, called: str, executor: Executable[Any]) -> None:
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

    def execute(self, program: Callable[..., Any], refs: tuple[Any, ...], step: int = 0) -> tuple[Any, ...]:
        """Return the ranks' results of `program(ops, *refs)` at a training step; see `RankExecutor.run`."""
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
        self._alone: dict[tuple[str | None, ...], tuple[Executable[Any], tuple[int, ...]]] = {}
        self._lone = len(self._ranks.hosted) == 1
        self._fused: tuple[Lowered, list[FusionGroup], list[Ordered]] | None = None
        lowered = target.lowered(graph)
        if lowered is not None:
            groups = fuse(lowered, ahead(lowered))
            self._fused = lowered, groups, overlapped(lowered, groups, hosting, bucket)
            self._called = _called(lowered)

    def run(self, inputs: Sequence[Any], step: int = 0) -> tuple[Any, ...]:
        """Return the ranks' outputs for their inputs, of each a value for every rank; of a lone rank the values."""
        outputs, finish = self.start(inputs, step)
        finish(())
        return outputs

    def prepared(self, inputs: Sequence[Any], varying: Sequence[int]) -> None:
        """It has no such calls."""

    def start(self, inputs: Sequence[Any], step: int = 0, free: Collection[int] = ()) -> tuple[tuple[Any, ...], Finish]:
        """See `Executable.start`."""
        if self._fused is None:
            refs = [x if type(x) is RankValues else self._ranks.each((x,)) for x in inputs]
            replayed = [out.values for out in replay(self._ranks, self.graph, refs, step)]
            self._ranks.raise_pending()
            return tuple([own for (own,) in replayed] if self._lone else replayed), at_once
        if self._lone:
            return self._start_lone(inputs, step, free)
        held = [ref.local_values for ref in inputs]
        given = tuple(map(_rank_input, held, [ref.axis for ref in inputs]))
        executor, places = self._plan(given)
        flat, written = list[Any](), set[int]()
        for number, (values, first) in enumerate(zip(held, given)):
            for rank in firsts(first.alike):
                if number in free:
                    written.add(len(flat))
                flat.append(values[rank])
        outs, finish = self._begun(executor, flat, step, written)
        return tuple([tuple([outs[place] for place in each]) for each in places]), finish

    def _start_lone(self, inputs: Sequence[Any], step: int, free: Collection[int]) -> tuple[tuple[Any, ...], Finish]:
        """`start` where a single rank is here, whose inputs are values, and its own rows of a batch."""
        axes: tuple[str | None, ...] = ()
        if RankValues in set(map(type, inputs)):
            axes = tuple([x.axis if type(x) is RankValues else None for x in inputs])
            inputs = [x.local_values[0] if type(x) is RankValues else x for x in inputs]
        found = self._alone.get(axes)
        if found is None:
            executor, every = self._plan(tuple([RankInput((0,), axis) for axis in axes or [None] * len(inputs)]))
            found = self._alone[axes] = executor, tuple([place for (place,) in every])
        executor, places = found
        outs, finish = self._begun(executor, inputs, step, free)
        return tuple([outs[place] for place in places]), finish

    def _begun(
        self, executor: Executable[Any], inputs: Sequence[Any], step: int, free: Collection[int]
    ) -> tuple[tuple[Any, ...], Finish]:
        abandon(self._ranks)  # if a run was interrupted at just the wrong moment
        self._target.begin_run(self._hosting.transport, self._called, executor)
        try:
            return executor.start(inputs, step, free)
        except BaseException:
            abandon(self._ranks)  # at once: another program may need memory that the others have yet to read
            raise

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
        mesh, transport = self._hosting
        ranks = Ranks(self._target.prompt(), mesh, Silent(transport))
        coming = iter(inputs)
        refs = []
        for each, type_ in zip(given, self.graph.body.input_types):
            values = {rank: next(coming) for rank in firsts(each.alike)}
            held = tuple([values[rank] for rank in each.alike])
            cut = None if each.axis is None else Parts(each.axis, held)
            refs.append(ranks.each(held) if cut is None else RankValues(ranks, None, type_, parts=cut))
        replay(ranks, self.graph, refs, step)


def _called(lowered: Lowered) -> str:
    """Describe a rank's program by a checksum of all collectives and inputs."""
    parts = [
        f"{e.primitive.name} {sorted(e.static.items())} {lowered.types[e.inputs[0]] if e.inputs else ''}"
        for e in lowered.equations
        if e.primitive.kind is Kind.COLLECTIVE
    ]
    parts += [str(lowered.types[slot]) for slot in lowered.body.inputs]
    return f"a compiled program of {len(lowered.equations)} ops ({crc32(' '.join(parts).encode()):08x})"


def _rank_input(held: tuple[Any, ...], axis: str | None) -> RankInput:
    first: dict[int, int] = {}
    return RankInput(tuple([first.setdefault(id(value), rank) for rank, value in enumerate(held)]), axis)
