"""Optional parts of a report: findings about files, and sections requested by flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ... import optim as optim
from ...interpreters.shape_check import Finding, Report
from ...interpreters.shape_check.capability import Answer, capabilities
from ...interpreters.shape_check.finding import verdicts_as_data, verdicts_as_text
from ...interpreters.shape_check.formats import Section
from ...interpreters.shape_check.table import table_as_dict
from ...interpreters.shape_check.table.formats import for_terminal
from ...ops.errors import ShapeError, UsageError
from ...ops.mesh import mesh_of
from ...optim import Optimizer
from ...options import Options
from ...training.headers import check_checkpoint, check_data
from ...training.program_check import Checked
from ..commands import read_sizes
from .cluster import cluster_section
from .memory import memory_section
from .mesh import mesh_section
from .request import Asked

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
    if checked.step is None and not mesh_of(options.mesh).is_alone:
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
