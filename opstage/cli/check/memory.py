"""The tensor memory of the checked step on each interpreter, and the largest size that fits into a given amount."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...interpreters.shape_check import Finding
from ...interpreters.shape_check.formats import Section
from ...interpreters.shape_check.memory import PeakMemory
from ...ops.amounts import parse_bytes, show_bytes
from ...ops.errors import ShapeError, UsageError
from ...options import Options
from ...training.program_check import Checked
from ...training.sizes import dim_names
from .request import Asked

BACKENDS = ("eager", "compiled")


def checked_with(options: Options, asked: Asked) -> Options:
    """Return the options for checking shapes: memory on a device is predicted without one."""
    return options.replace(device="cpu") if asked.memory or asked.max_memory is not None else options


def memory_section(
    checked: Checked, options: Options, sizes: Mapping[str, int], most: str | None
) -> tuple[Section, tuple[Finding, ...]]:
    """Return the memory per interpreter of the device in `options`, at `sizes`, or as a formula if one is missing, and
    findings if it exceeds `most`.

    With `most` and one open size, finds the largest that fits. Raises UsageError for a forward pass, and for `most`
    with more than one size open.
    """
    from ...training.memory import StepMemory  # with the planner of the compiled interpreter

    if checked.step is None:
        raise UsageError(
            "memory is predicted for a whole training step, and the forward pass was checked; "
            "leave --forward and --eval out, and say --step to hear what else a step lacks"
        )
    names = (*dim_names(checked.step.specs), *checked.step.mesh.open)
    given = {name: size for name, size in sizes.items() if name in names}
    limit = None if most is None else parse_bytes(most)
    lines, data, findings = ["memory of tensors in a step:"], [], []
    alone = checked.step.mesh.is_alone
    for backend in BACKENDS if alone else BACKENDS[:1]:  # the plan of a rank depends on its host process
        step = StepMemory(checked.step, options.replace(backend=backend))
        open_ = [name for name in step.names if name not in given]
        where = f"{backend} on {options.device}" if alone else f"a rank, {backend} on {options.device}"
        entry: dict[str, Any] = {"interpreter": where, "sizes": dict(given)}
        if open_ and step.has_formula:
            entry["peak_bytes"] = str(step.formula(**given))
        if not open_:
            try:
                memory = step.at(**given)
            except ShapeError as error:  # larger than a device's tensors can be
                findings.append(Finding("memory", f"{where}: {error.reason}", rule="memory"))
                continue
            entry["peak_bytes"] = memory.peak
            if memory.blocks:
                entry["device_bytes"] = memory.blocks
            if limit is not None and memory.needed > limit:
                findings.append(_too_large(where, memory, given, limit))
        elif limit is not None:
            if len(open_) > 1:
                raise UsageError(
                    f"--max-memory finds one size, and {', '.join(open_)} are open: give the others by --at, "
                    f"for instance --at {','.join(f'{name}=…' for name in open_[1:])}"
                )
            try:
                entry["largest"] = {open_[0]: step.largest(open_[0], limit, **given)}
            except (ShapeError, UsageError) as error:
                findings.append(Finding("memory", f"{where}: {error}", rule="memory"))
        lines += _lines(entry, most)
        data.append(entry)
    return Section("memory", data, "\n".join(lines)), tuple(findings)


def _lines(entry: Mapping[str, Any], most: str | None) -> list[str]:
    peak = entry.get("peak_bytes")
    at = ", ".join(f"{name}={size}" for name, size in entry["sizes"].items())
    shown = show_bytes(peak) if isinstance(peak, int) else peak if peak is not None else "planned at numbers, give --at"
    shown += f", {show_bytes(entry['device_bytes'])} of the device" if "device_bytes" in entry else ""
    where = f" at {at}" if at else ""
    lines = [] if peak is None and "largest" in entry else [f"  {entry['interpreter']:<20} {shown}{where}"]
    for name, size in entry.get("largest", {}).items():
        lines.append(f"  {entry['interpreter']:<20} {name}={size} is the largest that fits {most}{where}")
    return lines


def _too_large(where: str, memory: PeakMemory, sizes: Mapping[str, int], limit: int) -> Finding:
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    of = "of the device" if memory.blocks else "of tensors"
    reason = f"{where}: a step takes {show_bytes(memory.needed)} {of} at {at}, more than {show_bytes(limit)}"
    return Finding("memory", reason, rule="memory", fix=f"leave one of {', '.join(sizes)} open to find what fits")
