"""The time of a kernel: the longer of its compute time and its memory time, plus the overhead of each call."""

from __future__ import annotations

from dataclasses import dataclass

from .kernels import PlannedKernel
from .rates import Rates, hot_seconds

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
        """Of all its runs together."""
        return self.kernel.times * (self.overhead + max(self.compute, self.memory))

    @property
    def bound(self) -> str:
        """The limiting factor: compute, memory or overhead."""
        if self.overhead >= max(self.compute, self.memory):
            return OVERHEAD
        return COMPUTE if self.compute >= self.memory else MEMORY


def time_of(kernel: PlannedKernel, rates: Rates) -> KernelTime:
    """The predicted time of a kernel."""
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
