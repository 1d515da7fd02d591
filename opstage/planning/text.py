"""A plan of a step, and its comparison with a measured step, as text."""

from __future__ import annotations

from ..ops.amounts import show_bytes
from .comparison import Compared, StepComparison
from .step_plan import StepPlan


def plan_text(plan: StepPlan) -> str:
    """The table of groups, and the time and energy of a run."""
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
            f"{1e3 * row.phases[phase]:>10.3f}" if row.phases.get(phase) else f"{'':>10}"
            for phase in ("forward", "backward", "update")
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
    """`1.234 ms`."""
    return f"{1e3 * seconds:.3f} ms"


def duration(seconds: float) -> str:
    """`2.5 h`, `3.1 min`, `12 s`."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.3g} s"


def comparison_text(found: StepComparison) -> str:
    """Predicted and measured milliseconds by block, and the kernels whose prediction is off."""
    lines = [f"{'predicted':>10}{'measured':>10}{'ratio':>7}  ms of"]
    lines += [_compared(row) for row in (*found.groups, found.of_kernels, found.step)]
    if not found.off:
        return "\n".join([*lines, "", "no kernel that takes a hundredth of the step is off by more than 25 %"])
    lines += ["", "off by more than 25 %, of the kernels that take a hundredth of the step or more:"]
    return "\n".join([*lines, *map(_compared, found.off)])


def _compared(row: Compared) -> str:
    ratio = f"{row.ratio:.2f}" if row.measured else "-"
    return f"{1e3 * row.predicted:>10.3f}{1e3 * row.measured:>10.3f}{ratio:>7}  {row.name}"
