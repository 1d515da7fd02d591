"""report.html, a run on one page, and the comparison of several runs: settings, data, results, curves."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from ..config import read_toml, toml_literal
from ..ops.errors import UsageError, brief
from ..ops.readable_amounts import show_size
from ..pages import render
from .charts import Curve, Curves, Panel, data_uri, panel_svg
from .directory import CONFIG, METRICS, RUN, UNSCALED, read_run, show_digest
from .metrics_log import read_metrics, show_value

if TYPE_CHECKING:
    from .evaluation import Classification
    from .processes import ProcessShare
    from .report_samples import GeneratedText, ImageRows
    from .settings import Configuration


REFRESH = 3
"""The page of a running run is reloaded after this many seconds."""

_MOST_NUMBERS = 12


@dataclass(frozen=True)
class ReportContent:
    """The content of a report.

    status     a sentence about the state of the run
    name       the run's directory
    seconds    how long it has trained, before interruptions too
    cost       the table of shapes and cost, as HTML
    classes    the names of a classifier's classes; None if they are numbers
    run        the content of run.json
    written    seconds since 1970, if the run is still in progress
    groups     the table of each parameter's optimizer: its heading and its rows
    processes  the shares of several processes
    """

    title: str
    status: str
    name: str
    seconds: float
    held_out: Mapping[str, float]
    curves: Curves
    cost: str
    classification: Classification | None
    samples: ImageRows | GeneratedText | None
    configuration: Configuration
    run: Mapping[str, Any]
    classes: Sequence[str] | None = None
    written: float | None = None
    groups: Sequence[Sequence[str]] = ()
    processes: Sequence[ProcessShare] = ()


def report_html(content: ReportContent) -> str:
    """Return the page."""
    made, held_out = content.classification, sorted(content.held_out.items())
    return render(
        "report.html",
        title=content.title,
        written=content.written,
        refresh=REFRESH,
        content=content,
        held_out=", ".join(f"{name} {show_value(name, value)}" for name, value in held_out),
        about=_about(content),
        curves=map(panel_svg, content.curves.panels()),
        rates=list(map(panel_svg, content.curves.rates())),
        classification="" if made is None else classification_html(made, content.classes),
        run=list(_flat(content.run)),
        data_uri=data_uri,
        show_size=show_size,
        shown=_shown,
    )


def classification_html(made: Classification, classes: Sequence[str] | None = None) -> str:
    """Return the sections of a classifier's result as HTML; `classes` are the names of its classes, if any."""
    count = len(made.counts)
    names = list(classes) if classes is not None and len(classes) == count else [str(number) for number in range(count)]
    columns = made.scores.precision, made.scores.recall, made.scores.f1
    scores = [
        [name, made.counts[i].sum(), *[_percent(column[i]) for column in columns]] for i, name in enumerate(names)
    ]
    scores.append(["mean of classes", made.counts.sum(), *[_percent(_mean(column)) for column in columns]])
    return render(
        "classification.html",
        names=names,
        counts=made.counts.tolist(),
        scores=scores,
        mistakes=made.mistakes,
        percent=_percent,
        shown_sample=_shown_sample,
    )


def _about(content: ReportContent) -> dict[str, str]:
    """Return which run it is: its name, start, time of training, command and commit."""
    run, minutes, seconds = content.run, *divmod(round(content.seconds), 60)
    return {
        "run": content.name,
        "started": str(run.get("started", "")).replace("T", " ").replace("+00:00", " UTC"),
        "trained for": f"{minutes // 60}:{minutes % 60:02}:{seconds:02}",
        "command": str(run.get("command", "")),
        "git commit": str(run.get("commit", "")),
    }


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of nested tables by dotted path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, _shown(value)


def _mean(values: npt.NDArray[np.float64]) -> float:
    """Return the mean of the values that are not nan."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _percent(value: float) -> str:
    return "none" if math.isnan(value) else f"{100 * value:.1f} %"


def _shown_sample(sample: npt.NDArray[Any]) -> tuple[str, str]:
    """Return an image, scaled to its value range, as a data URI; for any other sample "" and its first numbers."""
    image = sample[0] if sample.ndim == 3 and sample.shape[0] == 1 else sample
    if image.ndim == 2 and min(image.shape) > 3 and image.dtype.kind in "fiu":
        values = image.astype(np.float64)
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        return data_uri((values - low) / ((high - low) or 1.0)), ""
    numbers = sample.reshape(-1)
    shown = ", ".join(f"{number:.4g}" for number in numbers[:_MOST_NUMBERS].tolist())
    return "", f"{shown}, … ({numbers.size} numbers)" if numbers.size > _MOST_NUMBERS else shown


# Comparison of several runs -------------------------------------------------------------------------------------------

Cells = tuple[str, ...]

JUDGED_OTHERWISE = "These runs were judged on different held-out data, so their metrics do not compare."
JUDGED_ON_OTHER_SCALES = "These runs were judged on the same held-out data, scaled differently: their metrics compare."

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
    def reached(self) -> dict[str, str]:
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
        raise UsageError(f"{directory} holds no run to report: it has no {CONFIG}")
    settings = {path: _literal(value) for path, value in read_toml(directory / CONFIG).values.items()}
    if not os.path.isfile(directory / RUN):
        raise UsageError(f"{directory} holds no whole run: it has no {RUN}")
    run = read_run(directory / RUN)
    if not isinstance(run.get("parameters"), int):
        raise UsageError(f"{directory / RUN}: its parameters are no number; restore it from a copy")
    return RunRecord(name, settings, run, Curves(read_metrics(directory / METRICS, torn_end=True)))


@final
@dataclass(frozen=True)
class SideBySide:
    """Runs, each under a unique name."""

    runs: tuple[RunRecord, ...]

    @property
    def reached(self) -> list[Cells]:
        """A row of results per run, after a row of column names."""
        every = [run.reached for run in self.runs]
        columns = list(dict.fromkeys(name for reached in every for name in reached))
        rows = [(run.name, *(reached.get(c, _ABSENT) for c in columns)) for run, reached in zip(self.runs, every)]
        return [("run", *columns), *rows]

    @property
    def settings(self) -> list[Cells]:
        """A row per setting in which the runs differ, after a row of run names."""
        return self._differing([{k: v for k, v in r.settings.items() if k not in _THEIR_OWN} for r in self.runs])

    @property
    def data(self) -> list[Cells]:
        """A row per part of the data, and per package version, in which the runs differ, after a row of run names; for
        a single run, all of them."""
        tables = [dict(_circumstances(run.run)) for run in self.runs]
        if len(tables) == 1:
            return [("", self.runs[0].name), *tables[0].items()]
        return self._differing(tables)

    @property
    def judged_alike(self) -> bool:
        """Whether all were evaluated on the same held-out data, however scaled."""
        return len({repr(run.run.get(UNSCALED, run.run["data"].get("held_out"))) for run in self.runs}) == 1

    @property
    def judged(self) -> str:
        """A sentence if the runs do not share the same held-out data; else ""."""
        if not self.judged_alike:
            return JUDGED_OTHERWISE
        alike = len({repr(run.run["data"].get("held_out")) for run in self.runs}) == 1
        return "" if alike else JUDGED_ON_OTHER_SCALES

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


def side_by_side(directories: Iterable[Path]) -> SideBySide:
    """Read the runs in some directories, named by the shortest path suffixes that are unique.

    Raises UsageError if one is given twice, and as `read_record`.
    """
    given = list(directories)
    whole = [directory.resolve() for directory in given]
    for directory, path in zip(given, whole):
        if whole.count(path) > 1:
            raise UsageError(f"{directory} is named twice; name each run once")
    return SideBySide(tuple(read_record(d, name) for d, name in zip(given, _names(whole))))


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


def side_by_side_html(runs: SideBySide) -> str:
    """Return a page that compares runs: results, differences, and overlaid curves."""
    return render(
        "comparison.html",
        title=f"{len(runs.runs)} runs" if len(runs.runs) > 1 else runs.runs[0].name,
        written=None,
        runs=runs,
        panels=map(panel_svg, runs.panels()),
    )
