"""`StepPlan`: the predicted time of a training step, by block and by kernel, and the cost of a run of such steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, final

from ..interpreters.graph.outline import PHASES, UPDATE
from ..interpreters.shape_check.peak_memory import PeakMemory
from ..ops.readable_amounts import show_bytes
from ..options import Options
from ..training.memory import StepMemory
from ..transforms.scan import SCAN
from .probes import TimedStep
from .rates import MEASURED, PUBLISHED, Rates
from .roofline import COMPUTE, MEMORY, OVERHEAD, KernelTime, PlannedKernel, predict_time, region_names, step_kernels

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
        """Return the seconds of all phases."""
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
    overhead     seconds of the step besides its kernels
    memory       at the peak of the step
    largest      the largest batch size that fits the device, with the other sizes fixed; None if unknown
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
        """Return the seconds of one step."""
        return self.overhead + self._wire + sum(time.seconds for time in self.times)

    @property
    def _wire(self) -> float:
        return 0.0 if self.wire is None or self.wire.seconds is None else self.wire.seconds

    @property
    def flops(self) -> int:
        """Return the FLOPs of one step."""
        return sum(time.kernel.times * time.kernel.flops for time in self.times)

    @property
    def nbytes(self) -> int:
        """Return the bytes that the kernels of a step read and write."""
        return sum(time.kernel.times * time.kernel.nbytes for time in self.times)

    @cached_property
    def groups(self) -> tuple[GroupTime, ...]:
        """Return the blocks in the order in which a step reaches them; their seconds add up to those of the step."""
        found: dict[str, list[KernelTime]] = {}
        for time in self.times:
            found.setdefault(kernel_group(time.kernel), []).append(time)
        rows = [_group(name, times) for name, times in found.items()]
        if self._wire:
            rows.append(GroupTime(WIRE, {"": self._wire}, NETWORK, 0))
        return (*rows, GroupTime(REST, {"": self.overhead}, OVERHEAD, 0))

    @cached_property
    def unrated(self) -> tuple[str, ...]:
        """Return the ops without a measured rate, which count as an elementwise product on as many bytes."""
        return tuple(dict.fromkeys(t.kernel.ops[0].name for t in self.times if not t.rated))

    @property
    def remarks(self) -> list[str]:
        """Return sentences to read with the numbers."""
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
        """Return plain data, for JSON."""
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

        return plan_text(self)


def kernel_group(kernel: PlannedKernel) -> str:
    """Return the name of a kernel's group: its block, or its op outside any block."""
    if kernel.fused:
        return group_name(kernel.region, "fused loops")
    return group_name(kernel.region, LOOP if kernel.looped else kernel.asked or kernel.ops[0].name)


def group_name(region: tuple[str, ...], op: str) -> str:
    """Return the block of a region, or the op outside any block."""
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

    batch   the named size to maximise within the device's memory
    steps   the number of steps in a run
    wire    the messages of a rank, if the step is that of one rank
    """
    found = step_kernels(step, sizes)
    times = tuple([predict_time(call, rates) for call in found.kernels])
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


# Comparison with the same step run on this machine: by block, and kernel by kernel ------------------------------------

OFF = 0.25
"""The relative error up to which a kernel's prediction is not reported."""
_LEAST_SHARE = 0.01  # of the step; smaller kernels are not reported


class Compared(NamedTuple):
    """Predicted and measured seconds of the kernels with one name, or of one block."""

    name: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Predicted over measured; infinite where nothing was measured."""
        return self.predicted / self.measured if self.measured else float("inf")


@final
@dataclass(frozen=True)
class StepComparison:
    """A plan and its measured step.

    step       the whole step, the fastest of all runs
    groups     by block; the time between kernels is a separate block
    kernels    by name, the longest first, each timed separately, which on a busy machine is more reliable than the step
    """

    plan: StepPlan
    step: Compared
    groups: tuple[Compared, ...]
    kernels: tuple[Compared, ...]

    @property
    def of_kernels(self) -> Compared:
        """Return all kernels together."""
        return Compared(
            "all kernels", sum(row.predicted for row in self.kernels), sum(row.measured for row in self.kernels)
        )

    @property
    def off(self) -> tuple[Compared, ...]:
        """Return the kernels large enough to report whose prediction is off by more than a quarter."""
        least = _LEAST_SHARE * self.step.measured
        return tuple(
            row
            for row in self.kernels
            if max(row.predicted, row.measured) >= least and not 1 - OFF <= row.ratio <= 1 + OFF
        )

    def as_data(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        rows = {"groups": self.groups, "kernels": self.kernels}
        return {
            **_figures(self.step),
            "kernels_predicted_ms": 1e3 * self.of_kernels.predicted,
            "kernels_measured_ms": 1e3 * self.of_kernels.measured,
            **{name: [{"name": row.name, **_figures(row)} for row in each] for name, each in rows.items()},
        }

    def __str__(self) -> str:

        return comparison_text(self)


def _figures(row: Compared) -> dict[str, float | None]:
    ratio = row.ratio if row.measured else None
    return {"predicted_ms": 1e3 * row.predicted, "measured_ms": 1e3 * row.measured, "ratio": ratio}


def compare(plan: StepPlan, made: TimedStep, *, rounds: int = 10, seconds: float = 1.0) -> StepComparison:
    """Run the step of a plan, as a whole and kernel by kernel."""
    made.run(seconds / 2)
    measured = _compiled(plan, made, rounds) if made.executor is not None else _eager(made, rounds)
    whole = made.run(seconds / 2)
    groups: dict[str, float] = defaultdict(float)
    names: dict[str, float] = defaultdict(float)
    for row in measured:
        groups[row.group] += row.seconds
        names[row.name] += row.seconds
    groups[REST] = max(0.0, whole - sum(row.seconds for row in measured))
    predicted_groups: dict[str, float] = defaultdict(float)
    predicted_names: dict[str, float] = defaultdict(float)
    for time in plan.times:
        kernel = time.kernel
        inside = time.seconds if kernel.looped else kernel.times * max(time.compute, time.memory)
        predicted_groups[kernel_group(kernel)] += inside
        predicted_groups[REST] += time.seconds - inside
        predicted_names[LOOP if kernel.looped else kernel.asked or kernel.name] += inside
    predicted_groups[REST] += plan.overhead
    return StepComparison(
        plan,
        Compared("step", plan.seconds, whole),
        _rows(predicted_groups, groups, [row.name for row in plan.groups]),
        _rows(predicted_names, names, sorted(names, key=lambda name: -names[name])),
    )


def _rows(predicted: Mapping[str, float], measured: Mapping[str, float], order: Sequence[str]) -> tuple[Compared, ...]:
    every = dict.fromkeys([*order, *measured, *predicted])
    return tuple([Compared(name, predicted.get(name, 0.0), measured.get(name, 0.0)) for name in every])


class _TimedKernel(NamedTuple):
    name: str
    group: str
    seconds: float


def _eager(made: TimedStep, rounds: int) -> list[_TimedKernel]:
    """Return the times by op, as requested from the interpreter; an op that it decomposes counts as one op."""
    found = []
    for op, seconds in made.ops(rounds):
        name = LOOP if op.primitive is SCAN else op.primitive.name
        found.append(_TimedKernel(name, group_name(region_names(op.region), name), seconds))
    return found


def _compiled(plan: StepPlan, made: TimedStep, rounds: int) -> list[_TimedKernel]:
    """Return the times by the units of work of the plan, whose numbers the predicted kernels have."""
    planned = {time.kernel.unit: time.kernel for time in reversed(plan.times)}
    found = []
    for unit, (_, seconds) in enumerate(made.kernels(rounds)):
        kernel = planned[unit]
        found.append(_TimedKernel(LOOP if kernel.looped else kernel.name, kernel_group(kernel), seconds))
    return found


# Text -----------------------------------------------------------------------------------------------------------------


def plan_text(plan: StepPlan) -> str:
    """Return the table of groups, and the time and energy of a run."""
    at = ", ".join(f"{name}={size}" for name, size in plan.sizes.items())
    lines = [
        f"{plan.model} at {at}: a step of {milliseconds(plan.seconds)} on {plan.rates.name}, {plan.options.backend}, "
        f"{plan.options.dtype}",
        "",
        f"{'ms':>10}{'share':>8}{'forward':>10}{'backward':>10}{'update':>10}  {'bound by':<10}kernels of",
    ]
    for row in plan.groups:
        share = row.seconds / plan.seconds if plan.seconds else 0.0
        phases = "".join(
            f"{1e3 * row.phases[phase]:>10.3f}" if row.phases.get(phase) else f"{'':>10}" for phase in PHASES
        )
        lines.append(f"{1e3 * row.seconds:>10.3f}{share:>8.1%}{phases}  {row.bound:<10}{row.name}")
    lines += ["", f"memory {show_bytes(plan.memory.needed)} of tensors at the peak"]
    if plan.largest is not None and plan.rates.memory is not None:
        name, size = plan.largest
        lines.append(f"{name}={size} is the largest that fits {show_bytes(plan.rates.memory)}")
    if plan.run is not None:
        energy = (
            ""
            if plan.run.joules is None
            else f", about {plan.run.joules / 3.6e6:.3g} kWh ({plan.rates.watts:.0f} W, an estimate)"
        )
        lines.append(f"{plan.run.steps:,} steps: {duration(plan.run.seconds)}{energy}")
    return "\n".join([*lines, *plan.remarks])


def milliseconds(seconds: float) -> str:
    """Return `1.234 ms`."""
    return f"{1e3 * seconds:.3f} ms"


def duration(seconds: float) -> str:
    """Return `2.5 h`, `3.1 min`, `12 s`."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.3g} s"


def comparison_text(found: StepComparison) -> str:
    """Return predicted and measured milliseconds by block, and the kernels whose prediction is off."""
    lines = [f"{'predicted':>10}{'measured':>10}{'ratio':>7}  ms of"]
    lines += [_compared(row) for row in (*found.groups, found.of_kernels, found.step)]
    if not found.off:
        return "\n".join([*lines, "", "no kernel that takes a hundredth of the step is off by more than 25 %"])
    lines += ["", "off by more than 25 %, of the kernels that take a hundredth of the step or more:"]
    return "\n".join([*lines, *map(_compared, found.off)])


def _compared(row: Compared) -> str:
    ratio = f"{row.ratio:.2f}" if row.measured else "-"
    return f"{1e3 * row.predicted:>10.3f}{1e3 * row.measured:>10.3f}{ratio:>7}  {row.name}"
