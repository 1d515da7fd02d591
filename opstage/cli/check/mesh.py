"""The step of a rank of a mesh: replicated and varying tensors, messages, and memory per rank."""

from __future__ import annotations

from ...interpreters.shape_check import Report
from ...interpreters.shape_check.formats import Section
from ...ops.dims import Dim
from ...ops.dims.formula import show_size
from ...training.sharding import DATA
from ...training.validate import PlannedStep


def mesh_section(step: PlannedStep, report: Report) -> Section:
    """Return the section `mesh` of a report on a step without errors."""
    traffic = report.traffic
    counts = step.layout.counts
    kept = [_bytes(report, sum(counts[:i]), sum(counts[: i + 1])) for i in (0, 1, 3)]
    names = [name for name in report.program.names if name]
    rows = names[sum(counts[:2]) : sum(counts[:3])] if DATA in step.mesh.names else []
    every = f", for every {' and '.join(step.mesh.open)} from 2 on" if step.mesh.open else ""
    lines = [f"mesh {step.mesh}, the step of a rank{every}:"]
    if rows:
        lines.append(f"  over {DATA:<12} {', '.join(rows)}: each rank has {_share(report, sum(counts[:2]))} rows")
    parted = sum(name.startswith("slots.") for name in step.kept)
    shared, alike = len(step.kept) - parted, counts[3] - parted
    lines.append(
        f"  alike on all      loss, {_count(counts[0] - shared, 'parameter')} and {_count(alike, 'tensor')} of the "
        "optimizer, before the step and after it: proved"
    )
    if step.kept:
        params = f"{_count(shared, 'parameter')}, gathered where read, and " if shared else ""
        lines.append(
            f"  in parts          {params}{_count(parted, 'tensor')} of the optimizer, a part on each rank: proved"
        )
    for sending in traffic.sendings:
        lines.append(f"  {sending}")
    lines.append(f"  a rank sends      {show_size(traffic.sent)} a step")
    of = zip(("parameters", "state", "the optimizer"), kept)
    lines.append(f"  a rank keeps      {', '.join(f'{show_size(n)} of {what}' for what, n in of if n != 0)}")
    data = {
        "mesh": str(step.mesh),
        "rows": rows,
        "collectives": [
            {
                "name": sending.name,
                "axis": sending.axis,
                "calls": str(sending.calls),
                "bytes": str(sending.nbytes),
                "sent": str(sending.sent),
            }
            for sending in traffic.sendings
        ],
        "sent": str(traffic.sent),
        "kept": {"parameters": str(kept[0]), "state": str(kept[1]), "optimizer": str(kept[2])},
        "fingerprint": traffic.fingerprint,
    }
    return Section("mesh", data, "\n".join(lines))


def _bytes(report: Report, first: int, last: int) -> Dim:
    """Return the bytes of these inputs of the step."""
    total: Dim = 0
    for type_ in report.program.body.input_types[first:last]:
        total = total + type_.nbytes
    return total


def _share(report: Report, first: int) -> Dim:
    """Return the number of rows of the first batch tensor on each rank."""
    rows = report.program.body.input_types[first].shape[0]
    share: Dim = rows // report.mesh.size(DATA)
    return share


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
