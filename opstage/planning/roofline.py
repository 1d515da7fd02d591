"""The kernels of a training step, in order: what each computes, and the cache distance of the bytes it moves."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from ..compiler.codegen.lowering import Lowered
from ..interpreters.graph.cpu.cost import Work, works
from ..interpreters.graph.cpu.plan import ControlStep, CpuPlan, HostStep
from ..interpreters.graph.outline import phase_of
from ..interpreters.shape_check.allocations import KernelRun
from ..ops.body import Equation
from ..ops.dispatch import Region
from ..ops.primitive import Kind, Primitive
from ..ops.types import TensorType
from ..training.memory import StepMemory
from ..transforms.cond import SWITCH
from ..transforms.while_loop import WHILE
from .rates import Rates, hot_seconds

_PAGE = 1 << 16


@dataclass(frozen=True)
class CountedOp:
    """An op in the form used to look up its rate: its name, its FLOPs, and the elements of its operands and results."""

    name: str
    flops: int
    sizes: tuple[int, ...] = ()
    contraction: bool = False
    """Whether its results are sums of products: then its rate depends on its shape."""


@dataclass(frozen=True)
class Move:
    """Bytes that a kernel reads or writes, and how many bytes all kernels have touched since these were last
    touched."""

    nbytes: int
    distance: int


@dataclass(frozen=True)
class PlannedKernel:
    """A kernel of a step.

    ops         the ops that it computes
    fused       it is one generated loop over all of its ops, not the kernel of a single op
    looped      it is in the body of a loop
    parallel    all threads share it
    region      path of the block in which its ops were called
    asked       the op requested from the interpreter, of which this may be a part
    unit        in a compiled step: the index of its unit of work in the plan, or that of the loop that contains it
    """

    name: str
    ops: tuple[CountedOp, ...]
    moves: tuple[Move, ...]
    region: tuple[str, ...]
    phase: str
    times: int = 1
    fused: bool = False
    looped: bool = False
    parallel: bool = False
    asked: str = ""
    unit: int = -1

    @property
    def flops(self) -> int:
        """Return the FLOPs of one run."""
        return sum(op.flops for op in self.ops)

    @property
    def nbytes(self) -> int:
        """Return the bytes of one run."""
        return sum(move.nbytes for move in self.moves)


@final
@dataclass(frozen=True)
class StepKernels:
    """The kernels of a step, and sentences on what is not counted."""

    kernels: tuple[PlannedKernel, ...]
    not_counted: tuple[str, ...] = ()


def step_kernels(step: StepMemory, sizes: Mapping[str, int]) -> StepKernels:
    """Return the kernels of a step on the interpreter named by its options."""
    if step.options.backend == "compiled":
        return compiled_kernels(step.plan(**sizes))
    return eager_kernels(step, sizes)


# Eager ----------------------------------------------------------------------------------------------------------------


def eager_kernels(step: StepMemory, sizes: Mapping[str, int]) -> StepKernels:
    """Return the kernels of a step on the eager interpreter, one per op."""
    noted: list[tuple[KernelRun, _Types, list[tuple[Hashable, int]]]] = []
    owners: dict[int, int] = {}
    numbers = itertools.count()
    lost: dict[str, None] = {}

    def watch(run: KernelRun) -> None:
        if not run.results:
            lost[_UNKNOWN[run.primitive]] = None
            return
        shared = {id(tensor.buffer) for tensor in run.operands}
        touched: list[tuple[Hashable, int]] = []
        fresh = [tensor for tensor in run.results if id(tensor.buffer) not in shared]
        for tensor in fresh:
            owners[id(tensor.buffer)] = next(numbers)  # the same memory may be allocated again
        if fresh:
            for tensor in (*run.operands, *fresh):
                if id(tensor.buffer) not in owners:
                    owners[id(tensor.buffer)] = next(numbers)
                touched.append((owners[id(tensor.buffer)], _nbytes(tensor.type)))
        types = tuple([t.type for t in run.operands]), tuple([t.type for t in run.results])
        noted.append((run._replace(operands=(), results=()), types, touched))

    step.kernel_runs(watch, **sizes)
    distances = _Distances()
    for _, _, touched in noted:  # as the previous step leaves the caches
        distances.moves(touched)
    calls = [_eager_kernel(run, types, distances.moves(touched)) for run, types, touched in noted]
    return StepKernels(tuple(calls), tuple(lost))


_Types = tuple[tuple[TensorType, ...], tuple[TensorType, ...]]
_UNKNOWN: Mapping[Primitive, str] = {
    WHILE: "the iterations of a while_loop, of which nobody knows how many there are: the first three are counted",
    SWITCH: "which branch of a choice runs: all of them are counted",
}


def _eager_kernel(run: KernelRun, types: _Types, moves: tuple[Move, ...]) -> PlannedKernel:
    region, phase = region_names(run.region), phase_of(run.region, run.backward)
    asked = str(run.part_of or run.primitive)
    op = count_op(run.primitive, types, run.static)
    return PlannedKernel(run.primitive.name, (op,), moves, region, phase, run.times, looped=run.looped, asked=asked)


def count_op(primitive: Primitive, types: _Types, static: Mapping[str, Any]) -> CountedOp:
    """Return the op with operands and results of these types."""
    inputs, outputs = types
    flops: Any = primitive.flops(inputs, outputs, **static)
    sizes = tuple([_size(t) for t in (*inputs, *outputs)])
    return CountedOp(primitive.name, int(flops), sizes, primitive.kind is Kind.CONTRACTION)


def region_names(region: Region) -> tuple[str, ...]:
    """Return the names of the blocks around an op, outermost first."""
    return tuple([Region((part,)).name for part in region.path])


def _size(type_: TensorType) -> int:
    size: Any = type_.size
    return int(size)


def _nbytes(type_: TensorType) -> int:
    nbytes: Any = type_.nbytes
    return int(nbytes)


# Compiled -------------------------------------------------------------------------------------------------------------


def compiled_kernels(plan: CpuPlan) -> StepKernels:
    """Return the kernels of a plan, including those of its loops, in order."""
    lost: dict[str, None] = {}
    found = _plan_kernels(plan, lost, 1, (), None)
    distances = _Distances()
    for _, touched in found:
        distances.moves(touched)
    calls = [replace(call, moves=distances.moves(touched)) for call, touched in found]
    return StepKernels(tuple(calls), tuple(lost))


_Touched = list[tuple[Hashable, int]]


def _plan_kernels(
    plan: CpuPlan, lost: dict[str, None], times: int, inside: tuple[int, ...], loop: PlannedKernel | None
) -> list[tuple[PlannedKernel, _Touched]]:
    found: list[tuple[PlannedKernel, _Touched]] = []
    before: PlannedKernel | None = None
    for unit, work in enumerate(works(plan)):
        step = plan.steps[work.first]
        kernel = _compiled_kernel(plan.lowered, work, times, bool(inside), before)
        kernel = replace(kernel, unit=unit) if loop is None else _in_loop(kernel, loop)
        if isinstance(step, ControlStep):
            e = step.equation
            lost.update({_UNKNOWN[e.primitive]: None} if e.primitive in _UNKNOWN else {})
            many = times * int(e.static.get("length", 1))
            for number, inner in enumerate(step.plans):
                found += _plan_kernels(inner, lost, many, (*inside, work.first, number), loop or kernel)
            continue
        if isinstance(step, HostStep):
            lost.setdefault(f"the call of Python that computes {step.equation.primitive} in a compiled step", None)
        before = kernel
        touched = [page for slot, nbytes in work.traffic for page in _pages(plan, slot, nbytes, inside)]
        if not work.ops:
            touched = [((*inside, "sums", work.first), int(work.cost.bytes))]
        found.append((kernel, touched))
    return found


def _compiled_kernel(
    lowered: Lowered, work: Work, times: int, looped: bool, before: PlannedKernel | None
) -> PlannedKernel:
    alone = len(work.ops) == 1 and bool(work.detail)
    ops = tuple([lowered_op(lowered, e) for e in work.ops])
    if work.ops:
        e = _main(work.ops, ops)
        region, phase = region_names(e.region), phase_of(e.region, e.backward)
    else:  # it sums the partial sums of the loop before it
        ops = (CountedOp("add", int(work.cost.flops)),)
        region, phase = (before.region, before.phase) if before is not None else ((), "forward")
    name = f"{work.name} ({work.detail})" if work.detail else work.name
    return PlannedKernel(name, ops, (), region, phase, times, not alone, looped, work.parallel)


def _in_loop(kernel: PlannedKernel, loop: PlannedKernel) -> PlannedKernel:
    """Return a kernel of a loop's body, with the loop's region and phase."""
    return replace(kernel, unit=loop.unit, region=loop.region, phase=loop.phase)


def _main(equations: tuple[Equation, ...], ops: tuple[CountedOp, ...]) -> Equation:
    """Return the equation whose region represents a kernel: the one with the most FLOPs."""
    return max(zip(equations, ops), key=lambda pair: pair[1].flops)[0]


def lowered_op(lowered: Lowered, e: Equation) -> CountedOp:
    """Return the op of an equation of a plan."""
    types = tuple([lowered.types[slot] for slot in e.inputs]), tuple([lowered.types[slot] for slot in e.outputs])
    return count_op(e.primitive, types, e.static)


def _pages(plan: CpuPlan, slot: int, nbytes: int, inside: tuple[int, ...]) -> Iterable[tuple[Hashable, int]]:
    """Yield memory in pages, those of the arena by address, so that reused memory counts as recently touched."""
    start = plan.offsets.get(slot)
    slot = plan.aliased.get(slot, slot)
    while nbytes > 0:
        if start is None:
            yield (inside, slot), nbytes
            return
        length = min(nbytes, _PAGE - start % _PAGE)
        yield (*inside, "arena", start // _PAGE), length
        start, nbytes = start + length, nbytes - length


@final
class _Distances:
    """How many bytes were touched since each piece of memory was last touched; for memory never touched before, the
    kernel's own bytes."""

    def __init__(self) -> None:
        self._total = 0
        self._last: dict[Hashable, int] = {}

    def moves(self, touched: Iterable[tuple[Hashable, int]]) -> tuple[Move, ...]:
        """Return the moves of a kernel that touches these pieces."""
        pieces = [*touched]
        own = sum(nbytes for _, nbytes in pieces)
        found: dict[int, int] = {}
        for key, nbytes in pieces:
            at = self._last.get(key)
            distance = own if at is None else self._total - at + own
            found[distance] = found.get(distance, 0) + nbytes
        self._total += own
        for key, _ in pieces:
            self._last[key] = self._total
        return tuple([Move(nbytes, distance) for distance, nbytes in found.items()])


# The time of a kernel: the longer of its compute time and its memory time, plus the overhead of each call -------------

COMPUTE, MEMORY, OVERHEAD = "compute", "memory", "overhead"
PLAIN = "mul"
"""The op whose rate is used for ops that were not measured."""


@dataclass(frozen=True)
class KernelTime:
    """The predicted seconds of one run of a kernel: overhead + max(compute, memory).

    rated   whether its op was measured; otherwise the rate of other ops is used
    """

    kernel: PlannedKernel
    compute: float
    memory: float
    overhead: float
    rated: bool

    @property
    def seconds(self) -> float:
        """Return the seconds of all its runs together."""
        return self.kernel.times * (self.overhead + max(self.compute, self.memory))

    @property
    def bound(self) -> str:
        """Return the limiting factor: compute, memory or overhead."""
        if self.overhead >= max(self.compute, self.memory):
            return OVERHEAD
        return COMPUTE if self.compute >= self.memory else MEMORY


def predict_time(kernel: PlannedKernel, rates: Rates) -> KernelTime:
    """Return the predicted time of a kernel."""
    spread = kernel.parallel or not kernel.fused
    memory = sum(move.nbytes / rates.bandwidth(move.distance, parallel=spread) for move in kernel.moves)
    overhead = rates.looped_call if kernel.looped else rates.call
    if kernel.parallel and kernel.fused:
        overhead += rates.parallel_call
    compute = sum(op.flops / rates.loop_rate(op.name) for op in kernel.ops) / (rates.threads if spread else 1)
    if kernel.fused or not rates.kernels:
        return KernelTime(kernel, compute, memory, overhead, True)
    (op,) = kernel.ops
    points = rates.kernels.get(op.name)
    if points:
        compute = hot_seconds(points, op.sizes, op.flops, kernel.nbytes, op.contraction)
    elif PLAIN in rates.kernels:
        compute = max(compute, hot_seconds(rates.kernels[PLAIN], op.sizes, op.flops, kernel.nbytes, False))
    return KernelTime(kernel, compute, memory, overhead, points is not None or not kernel.nbytes)
