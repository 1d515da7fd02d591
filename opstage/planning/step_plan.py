"""`StepPlan`: the predicted time of a training step, by block and by kernel, and the cost of a run of such steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

from ..interpreters.folding import UPDATE
from ..interpreters.shape_check.memory import PeakMemory
from ..ops.amounts import show_bytes
from ..options import Options
from ..training.memory import StepMemory
from .kernels import PHASES, PlannedKernel, kernels_of
from .rates import MEASURED, PUBLISHED, Rates
from .roofline import COMPUTE, MEMORY, OVERHEAD, KernelTime, time_of

WIRE = "(wire)"
"""The group for the time of messages between ranks."""
REST = "(step)"
"""The group for the time of a step outside its kernels."""
LOOP = "scan"
"""The group for the bodies of loops."""
NETWORK = "network"
_DEPTH = 2
"""The levels of regions that form separate groups."""


@dataclass(frozen=True)
class GroupTime:
    """The kernels of one block: their seconds by phase, the limiting factor for most of their time, and their
    number."""

    name: str
    phases: Mapping[str, float]
    bound: str
    calls: int

    @property
    def seconds(self) -> float:
        """All phases."""
        return sum(self.phases.values())


@dataclass(frozen=True)
class Wire:
    """The messages of a rank of a mesh in one step: the bytes it sends, and the seconds for their latency and bytes.

    The seconds are None where the network is unknown.
    """

    ranks: int
    sent: int
    seconds: float | None


@dataclass(frozen=True)
class PlannedRun:
    """A run of `steps` steps. `joules` is an estimate at constant full power; None where the power is unknown."""

    steps: int
    seconds: float
    joules: float | None


@final
@dataclass(frozen=True)
class StepPlan:
    """The predicted time of one training step.

    model        its name
    sizes        of the named dims
    times        of every kernel, in order
    overhead     seconds that the step takes besides its kernels
    memory       at the peak of the step
    largest      the largest batch size that fits the device, the other sizes as they are; None where unknown
    not_counted  sentences on what the prediction leaves out
    """

    model: str
    options: Options
    sizes: Mapping[str, int]
    rates: Rates
    times: tuple[KernelTime, ...]
    overhead: float
    memory: PeakMemory
    largest: tuple[str, int] | None = None
    not_counted: tuple[str, ...] = ()
    run: PlannedRun | None = None
    wire: Wire | None = None

    @cached_property
    def seconds(self) -> float:
        """Seconds of one step."""
        return self.overhead + self._wire + sum(time.seconds for time in self.times)

    @property
    def _wire(self) -> float:
        return 0.0 if self.wire is None or self.wire.seconds is None else self.wire.seconds

    @property
    def flops(self) -> int:
        """FLOPs of one step."""
        return sum(time.kernel.times * time.kernel.flops for time in self.times)

    @property
    def nbytes(self) -> int:
        """The bytes that the kernels of a step read and write."""
        return sum(time.kernel.times * time.kernel.nbytes for time in self.times)

    @cached_property
    def groups(self) -> tuple[GroupTime, ...]:
        """The blocks in the order in which a step reaches them; their seconds add up to those of the step."""
        found: dict[str, list[KernelTime]] = {}
        for time in self.times:
            found.setdefault(group_of(time.kernel), []).append(time)
        rows = [_group(name, times) for name, times in found.items()]
        if self._wire:
            rows.append(GroupTime(WIRE, {"": self._wire}, NETWORK, 0))
        return (*rows, GroupTime(REST, {"": self.overhead}, OVERHEAD, 0))

    @cached_property
    def unrated(self) -> tuple[str, ...]:
        """Ops without a measured rate, which count as an elementwise product on as many bytes."""
        return tuple(dict.fromkeys(t.kernel.ops[0].name for t in self.times if not t.rated))

    @property
    def remarks(self) -> list[str]:
        """Sentences to read with the numbers."""
        said = []
        if self.rates.origin == PUBLISHED:
            said.append(
                f"by published peaks: {self.rates.name} was not measured, so this is the least that a step can take "
                f"({self.rates.source})"
            )
        elif self.rates.origin == MEASURED:
            said.append(f"rates {self.rates.source}: {self.rates.name}")
        else:
            said.append(f"by rates that are given: {self.rates.name} ({self.rates.source})")
        if self.options.use_gpu:
            said.append("its kernels are taken to be those of the CPU's interpreter of that name")
        if self.unrated:
            said.append(f"not measured, counted as products of elements: {', '.join(self.unrated)}")
        if self.wire is not None:
            said.append(
                f"a rank of {self.wire.ranks}, which sends {show_bytes(self.wire.sent)} in a step; its kernels are "
                "predicted as if it had the machine's threads for itself"
            )
            if self.wire.seconds is None:
                said.append("not counted: the time of its messages, which depends on the network: give --cluster")
            else:
                said.append("messages by the alpha-beta model, of which nothing overlaps with kernels")
        return said + [f"not counted: {reason}" for reason in self.not_counted]

    def as_data(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "model": self.model,
            "backend": self.options.backend,
            "device": self.rates.name,
            "dtype": self.options.dtype,
            "sizes": dict(self.sizes),
            "rates": {"origin": self.rates.origin, "source": self.rates.source},
            "step_ms": 1e3 * self.seconds,
            "flops": self.flops,
            "bytes": self.nbytes,
            "groups": [
                {
                    "group": row.name,
                    "ms": 1e3 * row.seconds,
                    "share": row.seconds / self.seconds if self.seconds else 0.0,
                    "bound": row.bound,
                    "kernels": row.calls,
                    **{f"{phase}_ms": 1e3 * s for phase, s in row.phases.items() if phase},
                }
                for row in self.groups
            ],
            "peak_bytes": self.memory.peak,
            "largest": None if self.largest is None else dict([self.largest]),
            "run": None
            if self.run is None
            else {"steps": self.run.steps, "hours": self.run.seconds / 3600, "joules": self.run.joules},
            "wire": None
            if self.wire is None
            else {
                "ranks": self.wire.ranks,
                "sent_bytes": self.wire.sent,
                "ms": None if self.wire.seconds is None else 1e3 * self.wire.seconds,
            },
            "remarks": self.remarks,
        }

    def __str__(self) -> str:
        from .text import plan_text

        return plan_text(self)


def group_of(kernel: PlannedKernel) -> str:
    """The name of the group of a kernel: its block, or its op outside of any block."""
    if kernel.fused:
        return group_named(kernel.region, "fused loops")
    return group_named(kernel.region, LOOP if kernel.looped else kernel.asked or kernel.ops[0].name)


def group_named(region: tuple[str, ...], op: str) -> str:
    """The block of a region, or the op outside of any block."""
    return ".".join(region[: 1 if region[0] == UPDATE else _DEPTH]) if region else op


def _group(name: str, times: Sequence[KernelTime]) -> GroupTime:
    phases = dict.fromkeys(PHASES, 0.0)
    bounds = dict.fromkeys((COMPUTE, MEMORY, OVERHEAD), 0.0)
    for time in times:
        phases[time.kernel.phase] += time.seconds
        bounds[time.bound] += time.seconds
    return GroupTime(name, phases, max(bounds, key=lambda bound: bounds[bound]), sum(t.kernel.times for t in times))


def plan_step(
    step: StepMemory,
    sizes: Mapping[str, int],
    rates: Rates,
    *,
    model: str = "",
    batch: str | None = None,
    steps: int | None = None,
    wire: Wire | None = None,
) -> StepPlan:
    """Predict a step at these sizes on a device with these rates.

    batch   the named size whose largest value that fits the device's memory is searched for
    steps   the number of steps in a run
    wire    the messages of a rank, where the step is that of one rank
    """
    found = kernels_of(step, sizes)
    times = tuple([time_of(call, rates) for call in found.kernels])
    overhead = rates.step + rates.per_parameter * len(step.step.layout.trained_indices)
    memory = step.at(**sizes)
    largest = None
    if batch is not None and rates.memory is not None:
        others = {name: size for name, size in sizes.items() if name != batch}
        largest = batch, step.largest(batch, rates.memory, **others)
    lost = found.not_counted
    made = StepPlan(model, step.options, sizes, rates, times, overhead, memory, largest, lost, wire=wire)
    if steps is None:
        return made
    seconds, ranks = steps * made.seconds, 1 if wire is None else wire.ranks
    run = PlannedRun(steps, seconds, None if rates.watts is None else ranks * rates.watts * seconds)
    return replace(made, run=run)
