"""Lowers a body to recorded launches: generated kernels for clusters, eager_cuda's kernels for everything else. A plan
has the launches of a graph, and the layout of its memory in one block."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ....compiler.codegen.arena import Item, arrange
from ....compiler.codegen.clusters import FusionGroup, left_in_memory, read_by
from ....compiler.codegen.cuda.kernels import launch
from ....compiler.codegen.cuda.source import CUDA, Generated, cluster_kernel
from ....compiler.codegen.formulas import ASSEMBLE, CONTIGUOUS, FORMULAS, PRODUCTS
from ....compiler.codegen.fusion import fuse
from ....compiler.codegen.lowering import Lowered
from ....compiler.codegen.views import Leading, View, batch_axes, leading_dimension
from ....compiler.gpu.buffer import Aside, DeviceBuffer, MatrixLayout, Memory
from ....compiler.gpu.device import Device
from ....compiler.gpu.launches import Call, OpContext
from ....distributed.compiled_collectives import MEETINGS
from ....ops.body import Body, Equation
from ....ops.errors import UnsupportedError
from ....ops.primitive import Effect, Primitive, Static
from ....ops.reduction import REDUCE_MEAN, SUM
from ....ops.types import TensorType
from ....options import MatmulPrecision
from ...eager_cuda.kernels import KERNELS
from ...eager_cuda.kernels import linalg as padded
from ...eager_cuda.kernels.elementwise import update_kernel
from ...eager_cuda.kernels.layout import copy, fill_kernel, row_major
from ...eager_cuda.kernels.reduction import total
from ..graph import Graph
from ..passes.pipeline import run_passes, standard
from ..rank_lowering import Hosted

# Passes ---------------------------------------------------------------------------------------------------------------

_EXPANDED = frozenset({SUM, REDUCE_MEAN})
"""Composites that are decomposed so that they fuse into generated kernels, which is faster than their own kernels."""


def _stays(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> bool:
    has_kernel = primitive in KERNELS or update_kernel(primitive) is not None
    return primitive in FORMULAS or (has_kernel and primitive not in _EXPANDED)


PASSES = standard(_stays, loops=True)


def optimise(graph: Graph) -> Graph:
    """Optimise the program; loops are unrolled."""
    return run_passes(graph, PASSES)[0]


# The recorder ---------------------------------------------------------------------------------------------------------

# eager_cuda's kernels allocate and launch through a device. On this one, a whole program becomes a list of calls,
# which another device replays on memory that is laid out once.


class Spot(NamedTuple):
    """A symbolic memory handle: the number of a block, and an offset in bytes."""

    block: int
    offset: int


@final
class LaunchRecorder(Device):
    """A device that records launches on numbered blocks, in place of `device`.

    calls       in order
    blocks      the size of each block in bytes
    """

    notes = True

    def __init__(self, device: Device):
        super().__init__(device.grid)
        self.device = device
        self.calls: list[Call] = []
        self.blocks: list[int] = []

    @override
    def holds(self, buffer: DeviceBuffer) -> bool:
        return buffer.memory.device in (self, self.device)

    @override
    def allocate(self, nbytes: int) -> Any:
        self.blocks.append(nbytes)
        return Spot(len(self.blocks) - 1, 0)

    @override
    def deallocate(self, handle: Any, nbytes: int) -> None:
        """Do nothing: blocks live from the first to the last call that uses them."""

    def shifted(self, buffer: DeviceBuffer, shape: tuple[int, ...], offset: int) -> DeviceBuffer:
        """Return a tensor of this shape at an offset in bytes into another's memory."""
        nbytes = math.prod(shape) * buffer.dtype.itemsize
        if nbytes == buffer.memory.nbytes:
            return buffer.reshaped(shape)
        assert offset + nbytes <= buffer.memory.nbytes, (buffer, shape, offset)
        spot = buffer.handle
        memory = Memory(self, Spot(spot.block, spot.offset + offset), nbytes)
        self._used += nbytes
        return DeviceBuffer(TensorType(shape, buffer.dtype), memory)

    @override
    def upload(self, array: npt.NDArray[Any]) -> DeviceBuffer:
        """Upload to the real device: constants that calls read."""
        return self.device.upload(array)

    @override
    def download(self, buffer: DeviceBuffer) -> npt.NDArray[Any]:
        raise AssertionError("a kernel's entry decides by shapes and static arguments, never by values")

    @override
    def launch(self, kernel: Callable[..., None], blocks: int, threads: int, *arguments: Any) -> None:
        self._note("launch", (kernel, blocks, threads, *arguments), {})

    @override
    def product(self, out: DeviceBuffer, x: DeviceBuffer, y: DeviceBuffer, **more: Any) -> None:
        self._note("product", (out, x, y), more)

    @override
    def aside(self, number: int, work: Aside, *buffers: DeviceBuffer) -> None:
        self._note("aside", (number, work, *buffers), {})

    @override
    def join(self, number: int, *buffers: DeviceBuffer) -> None:
        self._note("join", (number, *buffers), {})

    def _note(self, method: str, arguments: tuple[Any, ...], more: Mapping[str, Any]) -> None:
        tuple(spots((arguments, more)))  # reading a buffer's handle first records the deferred work that it waits for
        self.calls.append(Call(method, arguments, more, *self.context[:3]))

    @override
    def part(self, memory: Memory, offset: int, nbytes: int) -> Any:
        spot = memory.handle
        return Spot(spot.block, spot.offset + offset)

    @override
    def empty_cache(self) -> int:
        return 0

    @override
    def synchronize(self) -> None:
        """Do nothing: no work is pending."""


def spots(value: Any) -> Iterator[Spot]:
    """Yield the spots in an argument of a call, or in a call."""
    if type(value) is DeviceBuffer:
        if type(value.handle) is Spot:
            yield value.handle
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from spots(each)
    elif isinstance(value, dict):
        yield from spots(tuple(value.values()))


def placed(value: Any, find: Callable[[Spot, int], Any]) -> Any:
    """Return an argument with its spots replaced by the memory that `find(spot, bytes)` returns."""
    if type(value) is DeviceBuffer:
        if type(value.handle) is not Spot:
            return value
        nbytes = value.size * value.dtype.itemsize
        return DeviceBuffer(value.type, find(value.handle, nbytes))
    if isinstance(value, Call):
        return value._replace(arguments=placed(value.arguments, find), more=placed(value.more, find))
    if type(value) in (tuple, list):
        return type(value)(placed(each, find) for each in value)
    if isinstance(value, Mapping):
        return {name: placed(each, find) for name, each in value.items()}
    return value


# Lowering -------------------------------------------------------------------------------------------------------------

_FEW = 1 << 10
"""The largest constant-filled tensor, in elements, that is kept instead of filled in every run."""


class HostCall(NamedTuple):
    """An op with external effects: the host calls its kernel after all launches that precede updates."""

    kernel: Callable[..., Any]
    types: tuple[TensorType, ...]
    operands: tuple[DeviceBuffer, ...]
    static: Static


@final
class Lowering:
    """The lowering of a body to launches on a device.

    host_calls  ops with external effects, in order
    aliased     outputs that overwrite a donated input, and that input, by position. Only parameter updates do so: they
                read and write each element once, and nothing else reads that input once they have begun
    """

    def __init__(
        self,
        program: Body | Hosted,
        recorder: LaunchRecorder,
        precision: MatmulPrecision,
        donated: Collection[int] = (),
    ):
        """`donated` are the positions of inputs that may be overwritten."""
        if isinstance(program, Body):
            self.lowered = Lowered(program, CUDA, own_outputs=True)
            self.groups = fuse(self.lowered)
        else:
            self.lowered, self.groups = program.lowered, program.groups
        lowered = self.lowered
        self._device = recorder
        self._precision = precision
        self._read = read_by(lowered, self.groups)
        self._results = {lowered.views[slot].root for slot in lowered.outputs}
        self.aliased = self._overwritten_inputs(donated)
        self._buffers: dict[int, DeviceBuffer] = {}
        self.host_calls: list[HostCall] = []

    def inputs(self) -> list[DeviceBuffer]:
        """Allocate memory for the inputs."""
        return [self._own(slot) for slot in self.lowered.body.inputs]

    @property
    def constants(self) -> list[tuple[DeviceBuffer, Any]]:
        """Return the memory and value of each constant that is read."""
        return [(self._buffers[s], value) for s, value in self.lowered.constants.items() if s in self._buffers]

    def record(self) -> tuple[int, list[DeviceBuffer]]:
        """Record everything; return the number of calls before the first that overwrites an input, and the outputs."""
        over = {self.lowered.outputs[place] for place in self.aliased}
        later = [group for group in self.groups if over.intersection(group.equations[0].outputs)]
        for place, group in enumerate(self.groups):
            if group not in later:
                self._group(group, place)
        self._device.flush()
        first = len(self._device.calls)
        for group in later:
            self._equation(group.equations[0])
        self._device.flush()
        return first, [self._operand(slot) for slot in self.lowered.outputs]

    def _overwritten_inputs(self, donated: Collection[int]) -> dict[int, int]:
        lowered = self.lowered
        free = {lowered.body.inputs[place]: place for place in donated}
        updates = {
            place: group.equations[0]
            for place, group in enumerate(self.groups)
            if update_kernel(group.equations[0].primitive) is not None
            and not any(self._read.get(slot, set()) for slot in group.equations[0].outputs)
        }
        over: dict[int, int] = {}
        for place, e in updates.items():
            if not set(e.outputs) <= set(lowered.outputs):
                continue
            # p and the moments in the order of the outputs: (p, g, *state, …) -> (p, *state)
            for slot, out in zip((e.inputs[0], *e.inputs[2:]), e.outputs):
                root = lowered.views[slot].root if slot not in lowered.literals else -1
                alone = not self._read.get(root, set()).intersection(updates) - {place}
                if root in free and alone and lowered.types[root] == lowered.types[out] and e.inputs.count(slot) == 1:
                    over[lowered.outputs.index(out)] = free.pop(root)
        return over

    # Memory ---------------------------------------------------------------------------------------------------------

    def _own(self, root: int) -> DeviceBuffer:
        """Return the memory of a root; parts use the memory of their whole."""
        root = self.lowered.in_memory(self.lowered.views[root]).root
        found = self._buffers.get(root)
        if found is None:
            found = self._buffers[root] = self._device.empty(self.lowered.types[root])
        return found

    def _operand(self, slot: int) -> DeviceBuffer:
        """Return a packed tensor in place."""
        view = self.lowered.views[slot]
        if not view.size:
            return self._device.empty(self.lowered.types[slot])
        return self._device.shifted(self._own(view.root), view.shape, self._byte_offset(view))

    def _rest(self, view: View) -> DeviceBuffer:
        """Return the memory of a view, from its first element on."""
        buffer, before = self._own(view.root), self._byte_offset(view)
        return self._device.shifted(buffer, (buffer.size - before // buffer.dtype.itemsize,), before)

    def _byte_offset(self, view: View) -> int:
        """Return the offset of a view's first element in the root's memory, in bytes."""
        return self.lowered.in_memory(view).offset * self.lowered.types[view.root].dtype.itemsize

    # Fusion groups
    # --------------------------------------------------------------------------------------------------------

    def _group(self, group: FusionGroup, place: int) -> None:
        if group.cluster is None:
            self._equation(group.equations[0])
            return
        e = group.equations[0]
        stored = left_in_memory(self.lowered, group, place, self._read, self._results)
        if len(group.equations) == 1 and self._is_constant(e):
            (out,) = e.outputs
            self.lowered.constants[out] = np.full(
                self.lowered.views[out].shape, self.lowered.literals[e.inputs[0]], self.lowered.types[out].dtype
            )
        elif stored:
            self._device.serve(self._context(e), self._cluster, cluster_kernel(group.cluster, group.equations, stored))

    def _cluster(self, made: Generated) -> None:
        # a rerun op by op reports which index it was
        watched = self._device.watched((), self._device.flag) if made.checks else 0
        self._buffers.update(launch(self._device, self.lowered, made, self._own, total, watched))

    def _context(self, e: Equation) -> OpContext:
        return OpContext(e.primitive.name, e.region.name, self._precision, self._device.context.watch)

    def _is_constant(self, e: Equation) -> bool:
        """Return whether it fills a small tensor with a number that is the same in every run."""
        (out,) = e.outputs
        if e.primitive is not CONTIGUOUS or e.inputs[0] not in self.lowered.literals:
            return False
        return out not in self._results and out not in self.lowered.parts and self.lowered.views[out].size <= _FEW

    def _equation(self, e: Equation) -> None:
        lowered = self.lowered
        if e.primitive is ASSEMBLE:
            self._own(e.outputs[0])  # its parts are already in place
            return
        if e.primitive is CONTIGUOUS:
            assert not lowered.views[e.outputs[0]].size, "what is not empty is copied by a cluster"
            self._own(e.outputs[0])
            return
        if e.primitive in MEETINGS:
            self._meeting(e)
            return
        a_product = e.primitive in PRODUCTS and all(lowered.views[slot].size for slot in (*e.inputs, *e.outputs))
        self._device.serve(self._context(e), self._product if a_product else self._by_kernel, e)

    def _by_kernel(self, e: Equation) -> None:
        kernel = KERNELS.get(e.primitive) or update_kernel(e.primitive)
        if kernel is None:
            hint = "; give its custom_op a decomposition=, or kernels={'cuda': …}" if e.primitive.declared else ""
            raise UnsupportedError(
                f"{e.primitive} is not supported on device 'cuda': it has neither a kernel nor a decomposition{hint}"
            )
        types = tuple([self.lowered.types[slot] for slot in e.outputs])
        # run by the host after the launches; readers of its results need not wait
        if Effect.EXTERNAL in e.primitive.effects:
            self.host_calls.append(HostCall(kernel, types, tuple(map(self._operand, e.inputs)), e.static))
            for slot, type_ in zip(e.outputs, types):
                self._own(slot)
                self.lowered.constants[slot] = np.zeros(type_.shape, type_.dtype)
            return
        results = kernel(self._device, types, *map(self._operand, e.inputs), **e.static)
        self._buffers.update(zip(e.outputs, results))

    def _meeting(self, e: Equation) -> None:
        """Record a collective of the hosted ranks, through the calls of the eager interpreter."""
        device = self._device
        watch = device.context.watch  # the interpreter that meets has its own
        device.context = self._context(e)
        types = tuple([self.lowered.types[slot] for slot in e.outputs])
        operands = list(map(self._operand, e.inputs))
        found = KERNELS[e.primitive](device, types, *operands, **e.static)
        device.context = device.context._replace(watch=watch)
        taken = {buffer.handle.block for buffer in operands}
        for slot, buffer in zip(e.outputs, found):
            if buffer.handle.block in taken:  # a rank already owns it, and results do not share memory
                buffer = self._copied(e, buffer)
            taken.add(buffer.handle.block)
            self._buffers[slot] = buffer

    def _copied(self, e: Equation, buffer: DeviceBuffer) -> DeviceBuffer:
        made = self._device.empty(TensorType(buffer.shape, buffer.dtype))
        if buffer.size:
            self._device.serve(
                self._context(e), copy, self._device, buffer.shape, made, buffer, strides=row_major(buffer.shape)
            )
        return made

    def _product(self, e: Equation) -> None:
        a, b = (self.lowered.views[slot] for slot in e.inputs)
        left, right = leading_dimension(a), leading_dimension(b)
        assert left is not None and right is not None
        _, a_step, b_step = (batch_axes(a, b) or [(1, 0, 0)])[0]
        padded.padded_product(
            self._device,
            self._own(e.outputs[0]),
            self._rest(a),
            self._rest(b),
            x_transposed=left.transposed,
            y_transposed=right.transposed,
            x_layout=_layout(a, left, a_step),
            y_layout=_layout(b, right, b_step),
        )


def _layout(view: View, lies: Leading, step: int) -> MatrixLayout:
    rows, columns = view.shape[-2:][::-1] if lies.transposed else view.shape[-2:]
    return MatrixLayout(rows, columns, lies.dimension, step)


# The plan -------------------------------------------------------------------------------------------------------------

ALIGNMENT = 256
"""Bytes, as required by cuBLASLt and by vectorized loads."""


@final
class CudaPlan:
    """The launches of a graph, on numbered blocks of memory.

    calls, split    all calls, and the number of calls before the first that overwrites an input
    host_calls      ops that the host runs between those two parts, in order
    inputs          the block of each input
    outputs         each output on its block
    aliased         outputs that overwrite a donated input, and that input, by position
    constants       blocks with constant content
    offsets         of blocks in the arena, which has `arena_bytes`
    sent            bytes that a run sends to other processes
    flag            a word on the device, nonzero after an index was out of range; None if no call checks indices
    """

    def __init__(
        self, program: Body | Hosted, device: Device, precision: MatmulPrecision, donated: Collection[int] = ()
    ):
        recorder = LaunchRecorder(device)
        lowering = Lowering(program, recorder, precision, donated)
        taken = lowering.inputs()
        self.inputs = [_block(buffer) for buffer in taken]
        self.split, self.outputs = lowering.record()
        self.calls: list[Call] = recorder.calls
        self.sent = sum(call.arguments[1].sent for call in self.calls if call.method == "aside")
        self.constants = {_block(buffer): value for buffer, value in lowering.constants}
        self.blocks = recorder.blocks
        self.aliased = lowering.aliased
        self.flag = recorder.flag if recorder.watches else None
        if self.flag is not None:  # an interrupted run may have set it
            recorder.each(fill_kernel, 1, self.flag, np.int32(0))
            self.calls.insert(0, self.calls.pop())
            self.split += 1
        results = {_block(buffer) for buffer in self.outputs}
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, call in enumerate(self.calls):
            for spot in spots((call.arguments, call.more)):
                first.setdefault(spot.block, i)
                last[spot.block] = i
        self.host_calls = lowering.host_calls
        for spot in spots([call.operands for call in self.host_calls]):  # read after the first part
            first.setdefault(spot.block, 0)
            last[spot.block] = max(last.get(spot.block, 0), self.split)
        fixed = {*self.inputs, *self.constants, *results}
        items = [Item(b, self.blocks[b], at, last[b]) for b, at in first.items() if b not in fixed]
        offsets, self.arena_bytes = arrange(items, ALIGNMENT)
        self.offsets: dict[Any, int] = dict(offsets)


def _block(buffer: DeviceBuffer) -> int:
    spot: Spot = buffer.handle
    return spot.block
