"""The time of a kernel: that of its arithmetic or that of its bytes, whichever is longer, and what each call takes."""

from __future__ import annotations

from dataclasses import dataclass

from .kernels import PlannedKernel
from .rates import Rates, hot_seconds

COMPUTE, MEMORY, OVERHEAD = "compute", "memory", "overhead"


@dataclass(frozen=True)
class KernelTime:
    """The predicted seconds of one run of a kernel: overhead + max(compute, memory).

    rated   whether its op was measured; else it has the rate of other ops
    """

    kernel: PlannedKernel
    compute: float
    memory: float
    overhead: float
    rated: bool

    @property
    def seconds(self) -> float:
        """Of all its runs."""
        return self.kernel.times * (self.overhead + max(self.compute, self.memory))

    @property
    def bound(self) -> str:
        """By what it is bound."""
        if self.overhead >= max(self.compute, self.memory):
            return OVERHEAD
        return COMPUTE if self.compute >= self.memory else MEMORY


def time_of(call: PlannedKernel, rates: Rates) -> KernelTime:
    """The predicted time of a kernel."""
    spread = call.parallel or not call.fused
    memory = sum(move.nbytes / rates.bandwidth(move.distance, parallel=spread) for move in call.moves)
    overhead = rates.looped_call if call.looped else rates.call
    if call.parallel:
        overhead += rates.parallel_call
    points = rates.kernels.get(call.ops[0].name) if call.ops and not call.fused else None
    if points:
        (op,) = call.ops
        return KernelTime(
            call, hot_seconds(points, op.sizes, op.flops, call.nbytes, op.contraction), memory, overhead, True
        )
    threads = rates.threads if spread else 1
    compute = sum(op.flops / rates.loop_rate(op.name) for op in call.ops) / threads
    rated = call.fused or not rates.kernels or call.nbytes == 0
    return KernelTime(call, compute, memory, overhead, rated)
