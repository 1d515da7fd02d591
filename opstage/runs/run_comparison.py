"""Comparison of runs as read from their directories: results, settings and data that differ, overlaid curves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ..config import read_toml, toml_literal
from ..ops.errors import UsageError, brief
from ..pages import render
from .charts import Curve, Curves, Panel, panel_svg
from .directory import CONFIG, METRICS, RUN, UNSCALED, read_run, show_digest
from .metrics_log import read_metrics, show_value

Cells = tuple[str, ...]

DIFFERENT_DATA = "These runs were evaluated on different held-out data: their metrics are not comparable."
DIFFERENT_SCALES = (
    "These runs were evaluated on the same held-out data in different scales: their metrics are comparable."
)

_ABSENT = "-"
_THEIR_OWN = {"run.out"}
"""Settings that differ in any two runs."""


@final
@dataclass(frozen=True)
class RunRecord:
    """A run as read from its directory, whether finished, interrupted or in progress.

    name        its name among the others
    settings    its settings by dotted path, spelled as TOML
    run         the content of run.json
    curves      the lines of metrics.jsonl
    """

    name: str
    settings: Mapping[str, str]
    run: Mapping[str, Any]
    curves: Curves

    @property
    def results(self) -> dict[str, str]:
        """Parameters, epochs, training loss and held-out metrics after the last finished epoch."""
        epochs = [line for line in self.curves.lines if line["kind"] == "epoch"]
        reached = {"parameters": f"{self.run['parameters']:,}"}
        reached["epochs"] = f"{len(epochs)} of {self.settings.get('run.epochs', '?')}"
        if epochs:
            reached["training loss"] = _number("loss", epochs[-1]["train_loss"])
            for name, value in sorted(epochs[-1]["held_out"].items()):
                reached[f"held-out {name}"] = _number(name, value)
        return reached


def read_record(directory: Path, name: str) -> RunRecord:
    """Read the record of the run in a directory, without running any of the model's code.

    A truncated last line of metrics.jsonl is ignored. Raises UsageError for a directory without a run, and for
    files that cannot be read.
    """
    if not os.path.isfile(directory / CONFIG):
        raise UsageError(f"{directory}: cannot be reported: {CONFIG} is missing")
    settings = {path: _literal(value) for path, value in read_toml(directory / CONFIG).values.items()}
    if not os.path.isfile(directory / RUN):
        raise UsageError(f"{directory}: cannot be reported: {RUN} is missing")
    run = read_run(directory / RUN)
    if not isinstance(run.get("parameters"), int):
        raise UsageError(f"{directory / RUN}: parameters: expected a number; restore it from a copy")
    return RunRecord(name, settings, run, Curves(read_metrics(directory / METRICS, torn_end=True)))


@final
@dataclass(frozen=True)
class RunComparison:
    """Runs, each under a unique name."""

    runs: tuple[RunRecord, ...]

    @property
    def results(self) -> list[Cells]:
        """Return a row of results per run, after a row of column names."""
        every = [run.results for run in self.runs]
        columns = list(dict.fromkeys(name for reached in every for name in reached))
        rows = [(run.name, *(reached.get(c, _ABSENT) for c in columns)) for run, reached in zip(self.runs, every)]
        return [("run", *columns), *rows]

    @property
    def settings(self) -> list[Cells]:
        """Return a row per setting in which the runs differ, after a row of run names."""
        return self._differing([{k: v for k, v in r.settings.items() if k not in _THEIR_OWN} for r in self.runs])

    @property
    def data(self) -> list[Cells]:
        """Return a row per part of the data, and per package version, in which the runs differ, after a row of run
        names; for a single run, all of them."""
        tables = [dict(_circumstances(run.run)) for run in self.runs]
        if len(tables) == 1:
            return [("", self.runs[0].name), *tables[0].items()]
        return self._differing(tables)

    @property
    def are_comparable(self) -> bool:
        """Return whether all were evaluated on the same held-out data, however scaled."""
        return len({repr(run.run.get(UNSCALED, run.run["data"].get("held_out"))) for run in self.runs}) == 1

    @property
    def remark(self) -> str:
        """Return a sentence if the runs do not share the same held-out data; else ""."""
        if not self.are_comparable:
            return DIFFERENT_DATA
        alike = len({repr(run.run["data"].get("held_out")) for run in self.runs}) == 1
        return "" if alike else DIFFERENT_SCALES

    def panels(self) -> list[Panel]:
        """Return a panel for each curve of any run, with the runs overlaid."""
        named: dict[str, dict[str, Curve]] = {}
        for run in self.runs:
            for title, curve in _curves(run):
                named.setdefault(title, {})[run.name] = curve
        return [
            Panel(title, tuple(Curve(run.name, _points(curves.get(run.name))) for run in self.runs))
            for title, curves in named.items()
        ]

    def _differing(self, tables: Sequence[Mapping[str, str]]) -> list[Cells]:
        keys = list(dict.fromkeys(key for table in tables for key in table))
        rows = [(key, *(table.get(key, _ABSENT) for table in tables)) for key in keys]
        return [("", *(run.name for run in self.runs)), *(row for row in rows if len(set(row[1:])) > 1)]


def compare_runs(directories: Iterable[Path]) -> RunComparison:
    """Read the runs in some directories, named by the shortest path suffixes that are unique.

    Raises UsageError if one is given twice, and as `read_record`.
    """
    given = list(directories)
    whole = [directory.resolve() for directory in given]
    for directory, path in zip(given, whole):
        if whole.count(path) > 1:
            raise UsageError(f"{directory} is named twice; name each run once")
    return RunComparison(tuple(read_record(d, name) for d, name in zip(given, _names(whole))))


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest suffixes of paths that are all unique, of the same depth."""
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]


def _curves(run: RunRecord) -> Iterable[tuple[str, Curve]]:
    for panel in run.curves.panels():
        for curve in panel.curves:
            yield (f"{panel.name}, {curve.name}", curve)
    for panel in run.curves.rates():
        yield (panel.name, panel.curves[0])


def _literal(value: Any) -> str:
    """Spell a setting as TOML, or, for a type that no run writes, such as a date, as Python."""
    try:
        return toml_literal(value)
    except TypeError:
        return brief(value)


def _points(curve: Curve | None) -> tuple[tuple[float, float], ...]:
    return () if curve is None else curve.points


def _circumstances(run: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for part, digest in run["data"].items():
        yield f"{part.replace('_', '-')} data", show_digest(digest)
    versions = run.get("versions")
    if isinstance(versions, Mapping):
        for name, version in versions.items():
            yield f"version of {name}", str(version)


def _number(name: str, value: float | None) -> str:
    return "not finite" if value is None else show_value(name, value)


def comparison_html(runs: RunComparison) -> str:
    """Return a page that compares runs: results, differences, and overlaid curves."""
    return render(
        "comparison.html",
        title=f"{len(runs.runs)} runs" if len(runs.runs) > 1 else runs.runs[0].name,
        written=None,
        runs=runs,
        panels=map(panel_svg, runs.panels()),
    )
