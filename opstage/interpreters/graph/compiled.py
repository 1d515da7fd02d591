"""The compiled interpreters: `CompiledOps` compiles whole programs, `Deferred` what a session records op by op.

`Options(backend="compiled")` selects them. `Programs` decides what is compiled, and when.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any, final

import numpy as np
from typing_extensions import override

from ...distributed.processes import Hosting
from ...ops.body import Body
from ...ops.errors import ProgramError
from ...ops.host_arrays import Array
from ...ops.primitive import Primitive, Static
from ...ops.trees import Structure
from ...ops.types import DType, TensorType, as_dtype
from ...options import Options
from ...transforms.base_program import BaseProgram
from ...transforms.interpreter import BaseInterpreter, Variable
from ...transforms.transparent import Imperative, Moment, own_array
from ..eager_cpu.interpreter import HostArrays, NumpyOps
from ..eager_cpu.memory import as_out_of_memory
from .executor import CpuExecutor, CpuScratch
from .graph import Graph
from .passes.cse import body_key
from .program_cache import Executable, ProgramCache, Programs
from .rank_programs import CpuRanks, RankPrograms
from .recorder import Recorder, replay

_log = logging.getLogger(__name__)


@final
class CompiledOps(HostArrays):
    """An interpreter on the CPU that records each program once per signature and replays it. Refs are host arrays."""

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
    def empty_cache(self) -> None:
        self._scratch.empty_cache()
        self._eager.empty_cache()

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
            raise as_out_of_memory(error) from None


# Ops recorded as they are called --------------------------------------------------------------------------------------


@final
class Deferred(Imperative[Variable]):
    """An imperative interpreter that records every op into one growing graph. Requesting a value runs the part of the
    graph that the value depends on, from the leaves.

    Each such part is compiled once: a training loop that records the same ops in every step compiles in the first step.
    Scalar constants belong to the graph. All other values, including array constants, are inputs.
    """

    def __init__(self, store: BaseInterpreter[Any], compile: Callable[[Graph], Executable[Any]], options: Options):
        """`store` is the compiled interpreter of `options`; `compile` makes a graph executable on it."""
        self._recorder = Recorder(store.dtype, store.seed)
        super().__init__(self._recorder)
        self.options = options
        self._store = store
        self._compile = compile
        self._executors: ProgramCache[Executable[Any]] = ProgramCache(
            options.program_memory, attrgetter("nbytes"), lambda key, _: [hash(key)]
        )
        self.begin(0)

    @property
    @override
    def store(self) -> BaseInterpreter[Any]:
        return self._store

    @override
    def begin(self, step: int) -> None:
        self.inner = self._recorder = Recorder(self.dtype, self.seed)
        self.cursor = self._recorder.cursor
        self._at_step = step
        self._held: dict[int, Any] = {}  # inputs by slot
        self._live: dict[int, Callable[[], Any]] = {}  # inputs that change
        self._known: dict[int, Any] = {}  # results by slot, valid while the live inputs equal _at
        self._at: Moment = {}

    @override
    def empty_cache(self) -> None:
        self._store.empty_cache()

    # The seam -------------------------------------------------------------------------------------------------------

    @override
    def bind(self, primitive: Primitive, refs: tuple[Variable, ...], static: Static, /) -> tuple[Variable, ...]:
        return self._recorder.bind(primitive, refs, static)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> Variable:
        array = own_array(value)
        if array.ndim:
            return self.lift(self._store.const(array, dtype=dtype))
        return self._recorder.const(array, dtype=dtype)

    @override
    def put(self, value: Any, /) -> Variable:
        return self.lift(self._store.put(value))

    @override
    def get(self, ref: Variable, /) -> Any:
        return self._store.get(self.fetch([ref])[0])

    # Sessions
    # -------------------------------------------------------------------------------------------------------------

    @override
    def admit(self, what: str) -> None:
        equations = self._recorder.trace.equations
        if equations and equations[-1].ordinal:  # 0: the seed of a backward pass before there was an op
            raise ProgramError(
                f"{what} comes after the first op: a session with backend 'compiled' records a graph, and its leaves "
                "(use, input, leaf, nat, nat_vec) all come before its ops; call it earlier, or start again with "
                "reset_tape()"
            )

    @override
    def failed(self) -> None:
        equations, cursor = self._recorder.trace.equations, self.cursor
        while equations and equations[-1].ordinal == cursor.ordinal and not cursor.quiet:
            equations.pop()

    @override
    def lift(self, value: Any) -> Variable:
        variable = self._recorder.input(TensorType(value.shape, value.dtype))
        self._held[variable.slot] = value
        return variable

    @override
    def live(self, read: Callable[[], Any]) -> Variable:
        known: list[Any] = [None, None]  # a host array, and its copy on the store

        def put() -> Any:
            array = read()
            if known[0] is not array:
                known[:] = array, self._store.put(array)
            return known[1]

        value = put()
        variable = self._recorder.input(TensorType(value.shape, value.dtype))
        self._live[variable.slot] = put
        return variable

    @override
    def moment(self) -> Moment:
        return {slot: read() for slot, read in self._live.items()}

    @override
    def fetch(self, refs: Sequence[Variable], moment: Moment | None = None) -> Sequence[Any]:
        now = {**self.moment(), **(moment or {})}
        if any(now[slot] is not value for slot, value in self._at.items()):
            self._known = {}
        self._at = now
        inputs = {**self._held, **now}
        wanted = list(dict.fromkeys(r.slot for r in refs if r.slot not in inputs and r.slot not in self._known))
        if wanted:
            self._known.update(zip(wanted, self._evaluate(wanted, inputs)))
        return [inputs[r.slot] if r.slot in inputs else self._known[r.slot] for r in refs]

    # Evaluation
    # -----------------------------------------------------------------------------------------------------------

    def _evaluate(self, wanted: Sequence[int], inputs: dict[int, Any]) -> tuple[Any, ...]:
        recorder, trace = self._recorder, self._recorder.trace
        body = trace.close((), wanted, recorder.lines, prune=True)
        read = body.read()
        taken = [slot for slot in inputs if slot in read]
        step = recorder.step_input
        body = body.taking(taken if step is None or step.slot not in read else [*taken, step.slot]).renumbered()
        values = [inputs[slot] for slot in taken]
        if self.options.detect_anomaly:  # op by op, each watched
            return replay(self._store, self._graph(body), values, self._at_step)
        return self._executor(body).run(values, self._at_step)

    def _executor(self, body: Body) -> Executable[Any]:
        key = body_key(body)
        executor = self._executors.get(key)
        if executor is None:
            self._executors.compiling(hash(key))
            _log.debug("compiling for %s", ", ".join(map(str, body.input_types)))
            executor = self._compile(self._graph(body))
            self._executors.add(key, executor)
        return executor

    def _graph(self, body: Body) -> Graph:
        inputs = [f"input {i}" for i in range(len(body.inputs))]
        outputs = [f"output {i}" for i in range(len(body.outputs))]
        return Graph(body, inputs, outputs, self.dtype, self.seed)
