"""Several runs side by side: which of their settings and data differ, what they reached, and by which curves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ..config.toml import read_toml, toml_literal
from ..ops.errors import UsageError
from ..ops.untrusted import brief
from .curves import Curve, Curves, Panel
from .directory import CONFIG, METRICS, RUN
from .metrics import read_metrics, show_value
from .versions import UNSCALED, read_run, show_digest

Cells = tuple[str, ...]

JUDGED_OTHERWISE = "These runs were judged on different held-out data, so their metrics do not compare."
JUDGED_ON_OTHER_SCALES = "These runs were judged on the same held-out data, scaled differently: their metrics compare."

_ABSENT = "-"
_THEIR_OWN = {"run.out"}
"""Settings that no two runs share."""


@final
@dataclass(frozen=True)
class RunRecord:
    """A run as its directory tells of it, whether it is finished, interrupted or still going on.

    name        what it is called beside the others
    settings    its settings by their dotted paths, as TOML writes them
    run         the content of run.json
    curves      the lines of metrics.jsonl
    """

    name: str
    settings: Mapping[str, str]
    run: Mapping[str, Any]
    curves: Curves

    @property
    def reached(self) -> dict[str, str]:
        """Parameters, epochs, training loss and held-out metrics after the last epoch that is done."""
        epochs = [line for line in self.curves.lines if line["kind"] == "epoch"]
        reached = {"parameters": f"{self.run['parameters']:,}"}
        reached["epochs"] = f"{len(epochs)} of {self.settings.get('run.epochs', '?')}"
        if epochs:
            reached["training loss"] = _number("loss", epochs[-1]["train_loss"])
            for name, value in sorted(epochs[-1]["held_out"].items()):
                reached[f"held-out {name}"] = _number(name, value)
        return reached


def read_record(directory: Path, name: str) -> RunRecord:
    """The record of the run in a directory; none of the model's code is run.

    A last line of metrics.jsonl that is cut short is left out. Raises UsageError for a directory without a run, and for
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
    """Runs, each under a name of its own."""

    runs: tuple[RunRecord, ...]

    @property
    def reached(self) -> list[Cells]:
        """A row per run below the names of the columns: what it reached."""
        every = [run.reached for run in self.runs]
        columns = list(dict.fromkeys(name for reached in every for name in reached))
        rows = [(run.name, *(reached.get(c, _ABSENT) for c in columns)) for run, reached in zip(self.runs, every)]
        return [("run", *columns), *rows]

    @property
    def settings(self) -> list[Cells]:
        """A row per setting in which they differ, below the names of the runs."""
        return self._differing([{k: v for k, v in r.settings.items() if k not in _THEIR_OWN} for r in self.runs])

    @property
    def data(self) -> list[Cells]:
        """A row per part of the data, and per package's version, in which they differ, below the names of the runs; of
        one run all of them."""
        tables = [dict(_circumstances(run.run)) for run in self.runs]
        if len(tables) == 1:
            return [("", self.runs[0].name), *tables[0].items()]
        return self._differing(tables)

    @property
    def judged_alike(self) -> bool:
        """Whether all were judged on the same held-out data, however they were scaled."""
        return len({repr(run.run.get(UNSCALED, run.run["data"].get("held_out"))) for run in self.runs}) == 1

    @property
    def judged(self) -> str:
        """A sentence on the held-out data, where they are not one and the same for all; else ""."""
        if not self.judged_alike:
            return JUDGED_OTHERWISE
        alike = len({repr(run.run["data"].get("held_out")) for run in self.runs}) == 1
        return "" if alike else JUDGED_ON_OTHER_SCALES

    def panels(self) -> list[Panel]:
        """A panel for each curve that any of them has, the runs over each other."""
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
    """The runs in some directories, called by the ends of their paths that tell them apart.

    Raises UsageError where one is named twice, and as `read_record`.
    """
    given = list(directories)
    whole = [directory.resolve() for directory in given]
    for directory, path in zip(given, whole):
        if whole.count(path) > 1:
            raise UsageError(f"{directory} is named twice; name each run once")
    return SideBySide(tuple(read_record(d, name) for d, name in zip(given, _names(whole))))


def _names(paths: Sequence[Path]) -> list[str]:
    """As many of the last parts of each path as tell all apart."""
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
    """A setting as TOML writes it; one that no run writes, such as a date, as Python does."""
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
