"""The work of a plan's loops: arithmetic, and memory traffic.

Arithmetic is counted by each op's formula. Traffic is the unavoidable minimum: each operand from other loops is read
once, and each stored result is written once. Values between the ops of one loop and a loop's own workspaces are free,
since they stay in registers and caches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....compiler.codegen.clusters import FusionGroup, Level
from ....compiler.codegen.cpu.arguments import Address
from ....compiler.codegen.cpu.kernels import NativeStep
from ....compiler.codegen.lowering import Lowered
from ....compiler.codegen.views import View
from ....compiler.native.blas import one_thread
from ....compiler.native.thread_pool import workers
from ....ops.body import Equation
from ....ops.indexing import GATHER_ROWS, GATHER_VEC
from ....ops.pooling import MAX_POOL_GATHER
from ....ops.primitive import Cost
from ....ops.types import dtype_name
from ....transforms.scan import SCAN
from .plan import ControlStep, CpuPlan, HostStep

_GATHERS = frozenset({GATHER_ROWS, GATHER_VEC, MAX_POOL_GATHER})
"""Ops that read at most as much of their first operand as they return."""


class Work(NamedTuple):
    """Consecutive steps of a plan that form a unit, and their cost: `steps` of them, starting at `first`.

    name      of the kernels
    detail    operand sizes, for an op that is not fused with others; else empty
    ops       the equations that it computes, of the plan's `lowered`; empty for loops that add partial sums
    traffic   slots with memory of their own, and the bytes read or written there
    parallel  whether the workers share it
    """

    name: str
    detail: str
    first: int
    steps: int
    cost: Cost
    ops: tuple[Equation, ...] = ()
    traffic: tuple[tuple[int, int], ...] = ()
    parallel: bool = False


def works(plan: CpuPlan) -> list[Work]:
    """Return the work of all steps, in order."""
    found: list[Work] = []
    at = 0
    while at < len(plan.steps):
        group = plan.groups[plan.steps[at].group]
        count = sum(1 for step in plan.steps[at:] if step.group == plan.steps[at].group)
        if group.cluster is None:
            found.append(_single(plan, group, at, count))
        else:
            found += _cluster(plan, group, at, count)
        at += count
    return found


def _single(plan: CpuPlan, group: FusionGroup, first: int, count: int) -> Work:
    """Return the work of a single op with the loops that prepare and complete it."""
    (e,) = group.equations
    detail = " · ".join(_sizes(plan.lowered, slot) for slot in e.inputs)
    step = plan.steps[first]
    if isinstance(step, ControlStep) and e.primitive is SCAN:
        iterations = int(e.static["length"])
        inner = [work.cost for work in works(step.plans[0])]
        cost = Cost(iterations * sum(int(c.flops) for c in inner), iterations * sum(int(c.bytes) for c in inner))
        return Work(f"scan, {iterations} iterations", "", first, count, cost, (e,))
    if isinstance(step, ControlStep):
        name = f"{e.primitive} of values"
    elif isinstance(step, HostStep):
        name = f"{e.primitive.name} (eager_cpu)"
    else:
        names = [s.loop.kernel.name for s in plan.steps[first : first + count] if isinstance(s, NativeStep)]
        name = " + ".join(names)
    parallel = any(isinstance(s, NativeStep) and s.parallel for s in plan.steps[first : first + count])
    traffic = _traffic(plan, group)
    return Work(name, detail, first, count, _cost(plan, group, traffic), (e,), traffic, parallel)


def _cluster(plan: CpuPlan, group: FusionGroup, first: int, count: int) -> list[Work]:
    """Return the work of a fused loop, and of the loops that add its partial sums."""
    lowered = plan.lowered
    main, *sums = [s for s in plan.steps[first : first + count] if isinstance(s, NativeStep)]
    traffic = _traffic(plan, group)
    cost = _cost(plan, group, traffic)
    found: list[Work] = []
    for i, step in enumerate(sums, 1):
        _, result, parts, _ = step.loop.words
        assert isinstance(result, Address) and isinstance(parts, int)
        size = step.loop.tasks * lowered.types[result.slot].dtype.itemsize
        name = f"{step.loop.kernel.name} of {main.loop.kernel.name}"
        found.append(Work(name, "", first + i, 1, Cost((parts - 1) * step.loop.tasks, (parts + 1) * size)))
        cost = Cost(cost.flops, cost.bytes + (parts - 1) * size)  # the partial sums are written instead of the sum
        traffic = (*traffic, (result.slot, (parts - 1) * size))
    return [Work(main.loop.kernel.name, "", first, 1, cost, tuple(group.equations), traffic, main.parallel), *found]


def _cost(plan: CpuPlan, group: FusionGroup, traffic: tuple[tuple[int, int], ...]) -> Cost:
    return Cost(sum(_flops(plan.lowered, e) for e in group.equations), sum(nbytes for _, nbytes in traffic))


def _traffic(plan: CpuPlan, group: FusionGroup) -> tuple[tuple[int, int], ...]:
    lowered = plan.lowered
    made = {slot for e in group.equations for slot in e.outputs}
    read: dict[int, dict[View, int]] = {}  # by root: the bytes of each view of it
    for e in group.equations:
        for slot in e.inputs:
            view = lowered.views.get(slot)
            if slot in lowered.literals or view is None or view.root in made:
                continue
            size = _shown(view) * lowered.types[slot].dtype.itemsize
            if e.primitive in _GATHERS and slot == e.inputs[0]:
                size = min(size, int(lowered.types[e.outputs[0]].nbytes))
            read.setdefault(view.root, {})[view] = size
    moved = [(root, min(sum(views.values()), int(lowered.types[root].nbytes))) for root, views in read.items()]
    stored = [slot for slot in sorted(made) if _is_stored(plan, group, slot)]
    return (*moved, *[(slot, int(lowered.types[slot].nbytes)) for slot in stored])


def _flops(lowered: Lowered, e: Equation) -> int:
    inputs = tuple([lowered.types[slot] for slot in e.inputs])
    outputs = tuple([lowered.types[slot] for slot in e.outputs])
    flops: Any = e.primitive.flops(inputs, outputs, **e.static)
    return int(flops)


def _is_stored(plan: CpuPlan, group: FusionGroup, slot: int) -> bool:
    if group.cluster is None or group.cluster.levels[slot] is Level.COLUMN:
        return True
    return slot in plan.results or slot in plan.lowered.parts or slot in plan.offsets


def _shown(view: View) -> int:
    """Return the number of distinct elements in a view; broadcast elements count once."""
    return math.prod(n for n, stride in zip(view.shape, view.strides) if stride)


def _sizes(lowered: Lowered, slot: int) -> str:
    type_ = lowered.types[slot]
    shape = "×".join(map(str, type_.shape)) or "1"
    return shape if type_.dtype.kind == "f" else f"{shape} {dtype_name(type_.dtype)}"


# The machine's limits -------------------------------------------------------------------------------------------------

# The limits of this machine, measured by matrix products and by copies larger than the caches.


_ROUNDS = 5


class Limits(NamedTuple):
    """Operations per second, and bytes read and written per second, of `threads` threads together."""

    flops: float
    bytes: float
    threads: int

    def seconds(self, cost: Cost) -> float:
        """Return the lower bound of the time for this work: the larger of the times for its arithmetic and its
        bytes."""
        return max(float(cost.flops) / self.flops, float(cost.bytes) / self.bytes)

    def __str__(self) -> str:
        return (
            f"{self.flops / 1e9:.0f} GFLOP/s (a product of matrices), {self.bytes / 1e9:.1f} GB/s (a copy), "
            f"{self.threads} threads"
        )


def measure_limits(dtype: npt.DTypeLike = np.float32, *, rows: int = 1024, elements: int = 1 << 24) -> Limits:
    """Measure the best of a few rounds; each thread has its own (rows, rows) matrices and vectors of `elements`."""
    threads = workers()
    squares = [[np.full((rows, rows), 0.5, dtype) for _ in range(3)] for _ in range(threads)]
    vectors = [[np.ones(elements, dtype) for _ in range(2)] for _ in range(threads)]

    def product(worker: int) -> None:
        a, b, out = squares[worker]
        np.matmul(a, b, out=out)

    def copy(worker: int) -> None:
        source, target = vectors[worker]
        np.copyto(target, source)

    with ThreadPoolExecutor(threads) as pool, one_thread:
        computed, copied = _best(pool, product, threads), _best(pool, copy, threads)
    moved = 2 * threads * vectors[0][0].nbytes
    return Limits(2 * threads * rows**3 / computed, moved / copied, threads)


def _best(pool: ThreadPoolExecutor, work: Callable[[int], Any], threads: int) -> float:
    """Return the shortest time in which all threads did their work, after a warm-up round."""
    taken = []
    for _ in range(_ROUNDS + 1):
        start = time.perf_counter()
        list(pool.map(work, range(threads)))
        taken.append(time.perf_counter() - start)
    return min(taken[1:])
