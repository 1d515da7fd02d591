"""Optional parts of a report: findings about files, and sections requested by flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import optim as optim
from ...interpreters.shape_check.capability import Answer, capabilities
from ...interpreters.shape_check.cost_table import for_terminal, table_as_dict
from ...interpreters.shape_check.finding import Finding, verdicts_as_data, verdicts_as_text
from ...interpreters.shape_check.formats.document import Section
from ...interpreters.shape_check.peak_memory import PeakMemory
from ...interpreters.shape_check.report import Report
from ...interpreters.shape_check.traffic import Machines, Prediction, messages_of, predicted
from ...ops.dims import Dim
from ...ops.errors import ShapeError, UsageError
from ...ops.mesh import Mesh, parse_mesh
from ...ops.readable_amounts import parse_bytes, show_bytes, show_flops, show_formula, show_size
from ...optim import Optimizer
from ...options import Options
from ...training.headers import check_checkpoint, check_data
from ...training.program_check import Checked
from ...training.sharding import DATA
from ...training.sizes import dim_names
from ...training.validate import PlannedStep
from ..commands import read_sizes
from .request import Asked

RECIPE = "recipe"
"""The `--data` value that means the training data of a shipped model's recipe."""


def completed(
    checked: Checked, options: Options, asked: Asked, found: Sequence[Finding] = ()
) -> tuple[Report, list[Section]]:
    """The report with what else was `found` and what flags ask for, and its sections.

    A part that is added gets its flag in `command.py` and `Asked`, and a function here.
    """
    report = checked.report if _leaves_one_open(checked, asked) else _at(checked.report, asked.at)
    if asked.strict:
        report = report.strict()
    errors = (*found, *_stored(checked, options, asked))
    sections = []
    if report.claims:
        sections.append(Section("claims", verdicts_as_data(report.claims), verdicts_as_text(report.claims)))
    if not asked.ranges and asked.initial:
        raise UsageError("--initial is for --ranges, which is not given")
    if not asked.ranges and asked.range_dtype is not None and not report.claims:
        raise UsageError("--range-dtype is for claims, of which there are none, and for --ranges, which is not given")
    if asked.bounds and not asked.ranges and not report.claims:
        raise UsageError("--bounds are for claims, of which there are none, and for --ranges, which is not given")
    if asked.ranges and report.ok:
        report, section = ranges_section(report, asked)
        sections.append(section)
    if asked.runs_on:
        sections.append(_where_it_runs(report, options))
    if checked.step is None and not parse_mesh(options.mesh).is_alone:
        raise UsageError("a mesh shares out a training step, and the forward pass was checked; leave --mesh out")
    if checked.step is not None and not checked.step.mesh.is_alone and report.ok:
        sections.append(mesh_section(checked.step, report))
    if asked.cluster is not None and report.ok:
        if checked.step is None or checked.step.mesh.is_alone:
            raise UsageError("--cluster predicts the step of a rank; say of which mesh with --mesh, such as data=N")
        sections.append(cluster_section(checked, asked.cluster, asked.at))
    if asked.table:
        sections.append(_table(report, asked.columns))
    if (asked.memory or asked.max_memory is not None) and report.ok:
        section, too_large = memory_section(checked, options, read_sizes(asked.at), asked.max_memory)
        sections.append(section)
        errors = (*errors, *too_large)
    return replace(report, errors=(*report.errors, *errors)), sections


def _leaves_one_open(checked: Checked, asked: Asked) -> bool:
    """Whether `--at` has all sizes but one, which `--max-memory` finds or `--cluster` varies."""
    names = checked.report.program.scope.names
    return (asked.max_memory is not None or asked.cluster is not None) and len(names) - len(read_sizes(asked.at)) == 1


def _at(report: Report, text: str) -> Report:
    """Return the report with the sizes of `--at`; unchanged if shape errors left the program without dims."""
    sizes = read_sizes(text)
    if not sizes or (report.errors and not report.program.scope.names):
        return report
    try:
        return report.at(**sizes)
    except (ShapeError, UsageError) as error:
        raise UsageError(f"--at {text}: {getattr(error, 'reason', error)}") from None


def _table(report: Report, columns: int | None) -> Section:
    """Return the cost of each block and op, in the width of a terminal."""
    text = str(report.table) if columns is None else for_terminal(report.table, columns)
    return Section("table", table_as_dict(report), text.rstrip())


def _where_it_runs(report: Report, options: Options) -> Section:
    """Return the section on supported interpreters, dtypes and ONNX export."""
    answers = capabilities(report, options)
    data = [
        {
            "where": answer.where,
            "dtype": answer.dtype,
            "runs": answer.runs,
            "op": answer.obstacle.op if answer.obstacle is not None else "",
            "reason": str(answer.obstacle or ""),
        }
        for answer in answers
    ]
    by_place: dict[str, list[Answer]] = {}
    for answer in answers:
        by_place.setdefault(answer.where, []).append(answer)
    lines = ["where it runs:"]
    for where, each in by_place.items():
        lines.append(f"  {where:<28} {', '.join(f'{a.dtype} {_YES[a.runs]}' for a in each)}")
        reasons: dict[str, list[str]] = {}
        for answer in each:
            if answer.obstacle is not None:
                reasons.setdefault(str(answer.obstacle), []).append(answer.dtype)
        for reason, dtypes in reasons.items():
            lines.append(f"    {reason}" if len(dtypes) == len(each) else f"    {', '.join(dtypes)}: {reason}")
    return Section("runs_on", data, "\n".join(lines))


_YES = {True: "yes", False: "no"}


def optimizer_called(name: str | None) -> Optimizer | None:
    """Return the optimizer of that name with its defaults."""
    return None if name is None else optim.SHIPPED[name].of_all()


def _stored(checked: Checked, options: Options, asked: Asked) -> tuple[Finding, ...]:
    """Return findings if the contents of files disagree with the types that the program was checked with."""
    found: tuple[Finding, ...] = ()
    if asked.checkpoint is not None:
        found += check_checkpoint(asked.checkpoint, checked.params, checked.state, options)
    if asked.data == RECIPE and not Path(RECIPE).exists():
        return found
    if asked.data is not None:
        found += check_data(asked.data, checked.batch, asked.batch_size)
    return found


# Ranges ---------------------------------------------------------------------------------------------------------------

_MOST = 6  # outputs shown on a terminal


def ranges_section(report: Report, asked: Asked) -> tuple[Report, Section]:
    """Return the report with warnings and notes from its program's ranges, and the section with the ranges of its
    outputs.

    Raises UsageError for bounds that cannot be parsed, or of an unknown input.
    """
    from ...facts import ranges_of, with_ranges
    from ...facts.range_report import unbounded_text

    found = ranges_of(report, read_bounds(asked.bounds), asked.range_dtype, initial=asked.initial)
    data = {
        "dtype": found.dtype,
        "safe": found.safe,
        "unbounded": list(found.unbounded),
        "outputs": [{"path": path, "range": str(range_)} for path, range_ in found.outputs],
        "given": list(found.given),
        "assumptions": list(found.assumptions),
    }
    nothing = f"nothing was found, but {unbounded_text(found)}"
    verdict = "see the findings" if found.findings else nothing if found.unbounded else "every number is finite"
    lines = [f"ranges in {found.dtype}: {verdict}"]
    lines += [f"  {path or 'the output'} is in {range_}" for path, range_ in found.outputs[:_MOST]]
    if len(found.outputs) > _MOST:
        lines.append(f"  and {len(found.outputs) - _MOST} more outputs, which --format json has")
    lines += ["  given that:", *[f"  - {each}" for each in (*found.given, *found.assumptions)]]
    return with_ranges(report, found, strict=asked.strict), Section("ranges", data, "\n".join(lines))


def read_bounds(texts: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Parse `x: 0 1`, a path or a pattern of paths and two numbers."""
    found = {}
    for text in texts:
        path, colon, ends = text.rpartition(":")
        try:
            low, high = map(float, ends.split())
        except ValueError:
            colon = ""
        if not colon:
            raise UsageError(f"--bounds {text!r}: expected a path and two numbers, such as 'x: 0 1'")
        found[path.strip()] = low, high
    return found


# The step of a rank of a mesh: replicated and varying tensors, messages, memory ---------------------------------------


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


# --cluster: the predicted step on a mesh of 1 to 1,024 ranks, by a model of machines ----------------------------------

_WIDE = 58
_RANKS = tuple([1 << power for power in range(11)])


def cluster_section(checked: Checked, text: str, at: str) -> Section:
    """Return the section `cluster` of a step without errors. `at` has all sizes, or all but that of one axis."""
    report, cluster, sizes = checked.report, Machines.read(text), read_sizes(at)
    assert checked.step is not None
    mesh, names = checked.step.mesh, report.program.scope.names
    unknown = [name for name in sizes if name not in names]
    if unknown:
        raise UsageError(f"--at {at}: unknown dim {unknown[0]!r}; the dims are: {', '.join(names) or 'none'}")
    ranks = [str(size) for _, size in mesh.axes if str(size) in names and str(size) not in sizes]
    missing = [name for name in names if name not in sizes and name not in ranks[:1]]
    if missing:
        wanted = ",".join([*([at] if at else []), *[f"{name}=…" for name in missing]])
        raise UsageError(f"--cluster predicts in numbers: say how large {' and '.join(missing)} is: --at {wanted}")
    each = _each(checked, cluster, mesh, sizes, ranks[0] if ranks else None)
    data = {"cluster": _said_of(cluster), "predictions": [line.data() for line in each]}
    return Section("cluster", data, "\n".join([*_head(report, cluster), *_cluster_table(each, _rows(checked), sizes)]))


class _Line:
    """The predictions for one number of ranks: with a fixed total batch (strong), and fixed rows per rank (weak)."""

    def __init__(self, ranks: int, strong: Prediction | None, weak: Prediction | None, alone: Prediction | None):
        self.ranks, self.strong, self.weak, self._alone = ranks, strong, weak, alone

    def efficiencies(self) -> tuple[float | None, float | None]:
        """Return the efficiency of both, relative to the smallest number of ranks."""
        if self._alone is None:
            return None, None
        times = self.ranks / self._alone.ranks
        strong = None if self.strong is None else self._alone.seconds / self.strong.seconds / times
        weak = None if self.weak is None else self._alone.seconds / self.weak.seconds
        return strong, weak

    def data(self) -> dict[str, Any]:
        """Return the line as plain data."""
        pairs = zip(("strong", "weak"), (self.strong, self.weak), self.efficiencies())
        found = {name: {**p._asdict(), "seconds": p.seconds, "efficiency": e} for name, p, e in pairs if p is not None}
        return {"ranks": self.ranks, **found}


def _each(checked: Checked, cluster: Machines, mesh: Mesh, sizes: dict[str, int], open_: str | None) -> list[_Line]:
    report, rows = checked.report, _rows(checked)

    def at(found: dict[str, int]) -> Prediction:
        numbers = Mesh(tuple([(axis, found.get(str(size), size)) for axis, size in mesh.axes]))
        return predicted(report, cluster, numbers, found)

    if open_ is None:
        return [_Line(at(sizes).ranks, at(sizes), None, None)]
    alone, lines = at({**sizes, open_: 1}), []
    for count in [count for count in _RANKS if count * alone.ranks <= _RANKS[-1]]:
        found = {**sizes, open_: count}
        fits = count == 1 or all(fact.holds(found) for fact in report.program.scope.facts)
        weak = at({**found, rows: sizes[rows] * count}) if rows in sizes else None
        strong = at(found) if fits else None
        lines.append(_Line(count * alone.ranks, strong, weak, alone))
    return lines


def _rows(checked: Checked) -> str:
    """Return the name of the number of rows of a batch, if it is a single name."""
    spec = next(iter(checked.batch.values()), None)
    return str(spec.entries[0]) if spec is not None and spec.entries else ""


def _said_of(cluster: Machines) -> dict[str, Any]:
    """Return the given numbers of a cluster by name."""
    every = {name: getattr(cluster, name) for name in Machines.__dataclass_fields__}
    return {name: value for name, value in every.items() if value is not None}


def _head(report: Report, cluster: Machines) -> list[str]:
    said = ", ".join(f"{name} {value:g}" for name, value in _said_of(cluster).items())
    return [
        f"cluster ({said}): predicted by the alpha-beta model, nothing measured",
        f"  a rank computes   {show_flops(report.cost.flops)}",
        f"  a rank sends      {show_formula(messages_of(report))} messages, fewer where sums are small, of "
        f"{show_size(report.traffic.sent)} in all; nothing is taken to overlap",
    ]


def _cluster_table(lines: list[_Line], rows: str, sizes: dict[str, int]) -> list[str]:
    size = f"{sizes[rows]:,}" if rows in sizes else ""
    names = ("step", "computing", "alpha", "bytes", "efficiency")
    if len(lines) == 1 and lines[0].strong is not None:
        p = lines[0].strong
        return [
            f"  {p.ranks} ranks: a step takes {_time(p.seconds)}: {_time(p.computing)} of computing, "
            f"{_time(p.latency)} of messages, {_time(p.transfer)} of their bytes"
        ]
    made = [
        f"  {'ranks':>5}  {f'{rows} = {size} in all':<{_WIDE}}  {f'{rows} = {size} a rank' if size else ''}".rstrip()
    ]
    made.append(f"  {'':>5}  {'  '.join(f'{name:>10}' for name in names)}  {'step':>9}  efficiency")
    for line in lines:
        strong, weak = line.efficiencies()
        cells = ["-"] * 5
        if line.strong is not None and strong is not None:
            p = line.strong
            cells = [*map(_time, (p.seconds, p.computing, p.latency, p.transfer)), f"{100 * strong:.0f} %"]
        end = "" if line.weak is None or weak is None else f"{_time(line.weak.seconds):>9}  {100 * weak:.0f} %"
        made.append(f"  {line.ranks:>5,}  {'  '.join(f'{cell:>10}' for cell in cells):<{_WIDE}}  {end}".rstrip())
    return made


def _time(seconds: float) -> str:
    """Format a time: `12.3 ms`."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"


# --memory: the tensors of the step on each interpreter, and the largest size that fits --------------------------------

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
    from ...training.memory import StepMemory

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
