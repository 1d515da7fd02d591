"""The executor of a graph on a device: its plan at fixed addresses, its inputs and outputs.

A captured CUDA graph contains addresses, so every input and result has a fixed place. An input whose buffer is already
there costs nothing; any other is copied there. Results are returned in place. If a result is still in use when the next
run begins, it is moved: buffers refer to memory through handles, which are swapped.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, final

import numpy as np
from typing_extensions import override

from ....compiler.codegen.cuda.source import CUDA
from ....compiler.codegen.lowering import Lowered
from ....compiler.gpu.buffer import DeviceBuffer, Memory
from ....compiler.gpu.device import Device, require_own_process
from ....compiler.gpu.launches import Call, Script
from ....distributed.processes import Hosting
from ....distributed.transport import Transport
from ....ops.body import Body
from ....ops.errors import UsageError
from ....ops.host_arrays import to_wire
from ....ops.primitive import Primitive, Static
from ....options import Options
from ....threads import holding_if_free
from ....transforms.base_program import Action, Finish, at_once
from ....transforms.cond import SWITCH
from ....transforms.control_flow import get_bodies
from ....transforms.interpreter import BaseInterpreter
from ....transforms.transparent import Transparent
from ....transforms.while_loop import WHILE
from ...eager_cuda.interpreter import CudaOps, OnDevice, wrong_device
from ...eager_cuda.kernels.layout import copy, row_major
from ..executor import Failed
from ..graph import Graph
from ..program_cache import Executable, Programs, kept_bytes
from ..rank_lowering import Hosted
from ..rank_programs import RankPrograms
from ..recorder import replay
from .lowering import CudaPlan, HostCall, Spot, optimise, placed

# Scratch memory -------------------------------------------------------------------------------------------------------


@final
class CudaScratch:
    """One block shared by all programs of an interpreter, as large as the largest needs. One run at a time uses and
    references it, so it may be trimmed meanwhile.

    runs    the number of runs that used it
    """

    __slots__ = ("runs", "_device", "_memory", "__weakref__")

    def __init__(self, device: Device):
        self.runs = 0
        self._device = device
        self._memory: Memory | None = None
        device.add_idle(self)

    def take(self, nbytes: int) -> Memory | None:
        """Return at least `nbytes` for a new run; None if it needs none."""
        self.runs += 1
        if nbytes and (self._memory is None or self._memory.nbytes < nbytes):
            self._memory = None  # release it before a larger one is allocated
            self._memory = self._device.memory(nbytes)
        return self._memory if nbytes else None

    def empty_cache(self) -> None:
        """Release the block; the next run allocates again."""
        self._memory = None


# Control flow that depends on data ------------------------------------------------------------------------------------


def chooses(body: Body) -> bool:
    """Return whether a body has a switch or while_loop, which a recorded sequence of launches cannot contain."""
    return any(
        e.primitive in (SWITCH, WHILE) or any(chooses(inner) for _, inner in get_bodies(e.static))
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
        """Do nothing: devices do not prepare calls."""

    def start(
        self, inputs: Sequence[DeviceBuffer], step: int = 0, free: Collection[int] = ()
    ) -> tuple[tuple[DeviceBuffer, ...], Finish]:
        """Return the outputs, which are complete once pending index errors have been raised."""
        outputs = self.run(inputs, step)
        self._eager.raise_pending()

        def finish(then: Sequence[Action]) -> None:
            at_once(then)

        return outputs, finish


# The executor ---------------------------------------------------------------------------------------------------------


@final
class CudaExecutor:
    """Runs a graph on buffers of a device. Results may overwrite inputs at the positions `donated`."""

    def __init__(
        self,
        graph: Graph,
        eager: CudaOps,
        options: Options,
        donated: Collection[int],
        scratch: CudaScratch,
        waiting: list[CudaExecutor],
        hosted: Hosted | None = None,
        failed: Failed | None = None,
    ):
        """`waiting` is the list to which it adds itself after a run that may have met an index out of range.

        `hosted` is the program of several ranks, whose inputs and outputs are then those of the ranks; if it meets such
        an index, `failed` raises the error.
        """
        self.graph = graph
        self._failed = failed
        self._scratch = scratch
        self._waiting = waiting
        self._unsettled: tuple[Sequence[DeviceBuffer], int] | None = None
        self._eager = eager
        self._device: Device = eager.device
        self._graphs = options.cuda_graphs
        self.plan = plan = CudaPlan(hosted or optimise(graph).body, self._device, options.matmul_precision, donated)
        self.nbytes = kept_bytes(graph.body, len(plan.calls), plan.constants.values())
        self._arena: Any = None  # the arena's handle in the scripts
        self._constants = {b: self._device.upload(to_wire(value)) for b, value in plan.constants.items()}
        self._aliased = {plan.aliased[i]: i for i in plan.aliased}  # positions of overwritten inputs
        self._bound: dict[int, Any] = {}  # the handle of each input's and result's block in the scripts
        self._places: dict[int, Memory] = {}  # memory owned by this executor: for copied inputs and for results
        self._scripts: tuple[Script, Script] | None = None
        self._host_calls: list[HostCall] = []  # with operands in the memory of the scripts
        self._starting = threading.Lock()
        self._device.add_idle(self)

    def run(self, inputs: Sequence[DeviceBuffer], step: int = 0) -> tuple[DeviceBuffer, ...]:
        """Return the outputs for `inputs` at training step `step`. Inputs are not overwritten."""
        outputs, finish = self.start(inputs, step)
        finish(())
        return outputs

    def prepared(self, inputs: Sequence[DeviceBuffer], varying: Sequence[int]) -> None:
        """Do nothing: devices do not prepare calls."""

    def start(
        self, inputs: Sequence[DeviceBuffer], step: int = 0, free: Collection[int] = ()
    ) -> tuple[tuple[DeviceBuffer, ...], Finish]:
        """Return the outputs and a function that completes them. The outputs are undefined until it is called.

        The function overwrites inputs at the positions `free` if the plan aliases results to them. Before it is called,
        and also if `start` raises, they are unchanged. They also stay unchanged if an index was out of range; `settle`
        reports that before any result is read. Other aliased inputs are copied first.
        """
        # the lock covers the whole run, so that no other work comes between moving memory and reading it
        with self._starting, self._device.lock:
            return self._start(inputs, step, free)

    def _start(
        self, inputs: Sequence[DeviceBuffer], step: int, free: Collection[int]
    ) -> tuple[tuple[DeviceBuffer, ...], Finish]:
        plan = self.plan
        device = self._device
        self.settle()
        given = list(inputs)
        if len(given) < len(plan.inputs):
            given.append(device.upload(np.asarray(step, np.int64)))
        device.flush()  # deferred launches may read memory that this overwrites
        for buffer in given:
            if buffer.memory.device is not device:
                raise wrong_device(buffer, device)
            buffer.handle  # noqa: B018  # raises if it was freed
        held = Counter(id(buffer.memory) for buffer in given)
        for number in range(len(plan.outputs)):
            if number not in plan.aliased:
                self._result(number)
        for position, buffer in enumerate(given):
            if position in self._aliased:
                self._prepare_overwritten(position, buffer, position in free and held[id(buffer.memory)] == 1)
        for position, buffer in enumerate(given):  # handles are not swapped from here on
            block = plan.inputs[position]
            if position in self._aliased:
                self._stand(block, self._places[block].handle)
            else:
                self._read(block, buffer)
        arena = self._scratch.take(plan.arena_bytes)
        if arena is not None and arena.handle is not self._arena:
            self._arena, self._scripts = arena.handle, None
        if self._scripts is None:
            self._scripts = self._written(arena)
        first, second = self._scripts
        second.prepare()
        first.run()
        for call in self._host_calls:
            call.kernel(device, call.types, *call.operands, **call.static)
        run = self._scratch.runs
        if plan.flag is not None:
            self._unsettled = inputs, step
            if self not in self._waiting:
                self._waiting.append(self)

        kept: list[Any] = [given, arena, *self._places.values()]  # kept alive even if memory is trimmed meanwhile

        def finish(then: Sequence[Action]) -> None:
            with device.lock:
                if run != self._scratch.runs:
                    raise UsageError(
                        "another run started on this interpreter, so the results of this one are lost; "
                        "read them before the next run"
                    )
                device.flush()  # launches deferred meanwhile may read memory that this overwrites
                second.run()
                at_once(then)
                kept.clear()  # no longer read

        return tuple([self._output(i) for i in range(len(plan.outputs))]), finish

    def settle(self) -> None:
        """Raise RangeError if an index was out of range in the last run, which then has overwritten nothing."""
        unsettled, self._unsettled = self._unsettled, None
        if unsettled is None:
            return
        flag = self.plan.flag
        assert flag is not None
        if int(self._device.download(flag)[0]):
            (self._failed or self._replayed)(*unsettled)
            raise AssertionError("an index is out of range that in the program itself is not")

    def _replayed(self, inputs: Sequence[DeviceBuffer], step: int) -> None:
        replay(Prompt(self._eager), self.graph, inputs, step)  # raises the first error with its location

    def empty_cache(self) -> None:
        """Release memory without other owners; a later run allocates it again.

        Does nothing while a run starts, since that run itself may be trimming after running out of memory.
        """
        holding_if_free(self._starting, self._give_back)

    def _give_back(self) -> None:
        self._scripts = self._arena = None
        self._bound.clear()
        self._places.clear()

    # Memory
    # ---------------------------------------------------------------------------------------------------------------

    def _stand(self, block: int, handle: Any) -> None:
        """Set the handle of a block."""
        if self._bound.get(block) is not handle:
            self._bound[block] = handle
            self._scripts = None

    def _read(self, block: int, buffer: DeviceBuffer) -> None:
        """Prepare a read-only input: in place if it is where it was in the previous run, else copied to its own
        memory."""
        if block not in self._bound:
            self._stand(block, buffer.handle)
        if self._bound[block] is buffer.handle:
            return
        if block not in self._places:
            self._places[block] = self._device.memory(self.plan.blocks[block])
            self._stand(block, self._places[block].handle)
        self._copy(self._places[block], buffer)

    def _prepare_overwritten(self, position: int, buffer: DeviceBuffer, free: bool) -> None:
        """Prepare an input that a result overwrites: in place if it was donated, else copied.

        If the buffer is the place of another executor for the same parameter, this executor adopts it. Otherwise two
        alternating executors would copy the parameter in every step.
        """
        block = self.plan.inputs[position]
        here = self._places.get(block)
        known, same = here is not None and here.handle is not None, here is buffer.memory
        del here  # references to the place are counted below
        if free and (not known or sys.getrefcount(buffer.memory) != _ALONE):
            self._places[block] = buffer.memory
        elif not known:
            self._places[block] = self._device.memory(self.plan.blocks[block])
            self._copy(self._places[block], buffer)
        elif not same:
            self._vacate(block, buffer)
            self._copy(self._places[block], buffer)
        else:
            self._leave(block, buffer)

    def _result(self, number: int) -> None:
        """Prepare the memory of a result."""
        like = self.plan.outputs[number]
        block = like.handle.block
        if block not in self._places or self._places[block].handle is None:
            self._places[block] = self._device.memory(self.plan.blocks[block])
        else:
            self._vacate(block, like)
        self._stand(block, self._places[block].handle)

    def _vacate(self, block: int, like: DeviceBuffer) -> None:
        """Move a block's place if anyone else holds it."""
        if sys.getrefcount(self._places[block]) != _ALONE:
            self._leave(block, like)

    def _leave(self, block: int, like: DeviceBuffer) -> None:
        """Replace the memory of a block's place; other holders keep the same elements (typed as `like`) in new memory.

        The handles are swapped, so the recorded calls stay valid.
        """
        memory, fresh = self._places[block], self._device.memory(self.plan.blocks[block])
        self._copy(fresh, DeviceBuffer(like.type, memory))
        memory.handle, fresh.handle = fresh.handle, memory.handle
        memory.nbytes, fresh.nbytes = fresh.nbytes, memory.nbytes
        self._places[block] = fresh

    def _copy(self, to: Memory, buffer: DeviceBuffer) -> None:
        if buffer.size:
            out = DeviceBuffer(buffer.type, to)
            context = self._device.context._replace(op="copy", region="")
            self._device.serve(context, copy, self._device, buffer.shape, out, buffer, strides=row_major(buffer.shape))

    def _output(self, number: int) -> DeviceBuffer:
        buffer = self.plan.outputs[number]
        over = self.plan.aliased.get(number)
        block = buffer.handle.block if over is None else self.plan.inputs[over]
        return DeviceBuffer(buffer.type, self._places[block])

    # Scripts --------------------------------------------------------------------------------------------------------

    def _written(self, arena: Memory | None) -> tuple[Script, Script]:
        """Write the plan's calls with the current memory."""
        plan = self.plan
        aliases = {plan.outputs[i].handle.block: plan.inputs[at] for i, at in plan.aliased.items()}

        def find(spot: Spot, nbytes: int) -> Memory:
            block = aliases.get(spot.block, spot.block)
            if block in plan.offsets:
                assert arena is not None
                whole, offset = arena, plan.offsets[block] + spot.offset
            else:
                constant = self._constants.get(block)
                handle = self._bound[block] if constant is None else constant.handle
                whole, offset = Memory(_NOBODY, handle, plan.blocks[block]), spot.offset
            return Memory(_NOBODY, self._device.part(whole, offset, nbytes), nbytes)

        calls: list[Call] = [placed(call, find) for call in plan.calls]
        self._host_calls = [call._replace(operands=placed(call.operands, find)) for call in plan.host_calls]
        before, after = calls[: plan.split], calls[plan.split :]
        return self._device.script(before, self._graphs), self._device.script(after, self._graphs)


@final
class Prompt(Transparent[DeviceBuffer]):
    """An interpreter that raises for an index out of range as soon as the op is bound."""

    __slots__ = ()

    @override
    def bind(self, primitive: Primitive, refs: tuple[DeviceBuffer, ...], static: Static, /) -> tuple[DeviceBuffer, ...]:
        results = self.inner.bind(primitive, refs, static)
        self.inner.raise_pending()
        return results


class _Nobody:
    """The owner of memory that is a part of other memory; releasing does nothing."""

    def release(self, handle: Any, nbytes: int) -> None:
        pass


_NOBODY = _Nobody()


def _references_of_a_place() -> int:
    places = {0: Memory(_NOBODY, None, 0)}
    return sys.getrefcount(places[0])


_ALONE = _references_of_a_place()


# Programs of a mesh ---------------------------------------------------------------------------------------------------


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

    def begin_run(self, transport: Transport, called: str, executor: Executable[Any]) -> None:
        """See `RankTarget.begin_run`."""
        begin = getattr(transport, "begin_run", None)
        if begin is not None:
            assert isinstance(executor, CudaExecutor)
            begin(self._eager.device, called, executor.plan.sent)


# The interpreter ------------------------------------------------------------------------------------------------------


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
