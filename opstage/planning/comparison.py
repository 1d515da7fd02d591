"""Compares a predicted step with the same step run on this machine: by block, and kernel by kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from ..interpreters.structural import SCAN
from .kernels import region_of
from .step_plan import LOOP, REST, StepPlan, group_named, group_of
from .timing import TimedStep

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

    step       the whole step, the fastest of those that were run
    groups     by block; the time between kernels is its own block
    kernels    by name, the longest first: each timed by itself, which on a busy machine is more reliable than the
               whole step
    """

    plan: StepPlan
    step: Compared
    groups: tuple[Compared, ...]
    kernels: tuple[Compared, ...]

    @property
    def of_kernels(self) -> Compared:
        """All kernels together."""
        return Compared(
            "all kernels", sum(row.predicted for row in self.kernels), sum(row.measured for row in self.kernels)
        )

    @property
    def off(self) -> tuple[Compared, ...]:
        """The kernels large enough to report whose prediction is off by more than a quarter."""
        least = _LEAST_SHARE * self.step.measured
        return tuple(
            row
            for row in self.kernels
            if max(row.predicted, row.measured) >= least and not 1 - OFF <= row.ratio <= 1 + OFF
        )

    def as_data(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        rows = {"groups": self.groups, "kernels": self.kernels}
        return {
            **_figures(self.step),
            "kernels_predicted_ms": 1e3 * self.of_kernels.predicted,
            "kernels_measured_ms": 1e3 * self.of_kernels.measured,
            **{name: [{"name": row.name, **_figures(row)} for row in each] for name, each in rows.items()},
        }

    def __str__(self) -> str:
        from .text import comparison_text

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
        predicted_groups[group_of(kernel)] += inside
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
    """By op, as requested from the interpreter; an op that it decomposes counts as one op."""
    found = []
    for op, seconds in made.ops(rounds):
        name = LOOP if op.primitive is SCAN else op.primitive.name
        found.append(_TimedKernel(name, group_named(region_of(op.region), name), seconds))
    return found


def _compiled(plan: StepPlan, made: TimedStep, rounds: int) -> list[_TimedKernel]:
    """By the units of work of the plan; the predicted kernels hold their numbers."""
    planned = {time.kernel.unit: time.kernel for time in reversed(plan.times)}
    found = []
    for unit, (_, seconds) in enumerate(made.kernels(rounds)):
        kernel = planned[unit]
        found.append(_TimedKernel(LOOP if kernel.looped else kernel.name, group_of(kernel), seconds))
    return found
