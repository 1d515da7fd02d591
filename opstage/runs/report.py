"""report.html, a run on one page: its state, results, curves, samples, cost and settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..ops.readable_amounts import show_size
from ..pages import render
from .charts import Curves, data_uri, panel_svg
from .metrics_log import show_value

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

    title      the model and its size
    status     a sentence about the state of the run
    directory  the path of the run
    seconds    the training time, also before interruptions
    cost       the table of shapes and cost, as HTML
    classes    the names of a classifier's classes; None if they are numbers
    run        the content of run.json
    written    seconds since 1970, if the run is still in progress
    groups     the table of each parameter's optimizer: its heading and its rows
    processes  the shares of several processes
    """

    title: str
    status: str
    directory: str
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
        title=f"{Path(content.directory).name}: {content.title}",
        name=Path(content.directory).name,
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
    scores.append(["mean", made.counts.sum(), *[_percent(_mean(column)) for column in columns]])
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
    """Return the facts about the run at the top of the page, by label."""
    run = content.run
    return {
        "directory": content.directory,
        "started": str(run.get("started", "")).replace("T", " ").replace("+00:00", " UTC"),
        "duration": show_duration(content.seconds),
        "command": str(run.get("command", "")),
        "git commit": str(run.get("commit", "")),
    }


def show_duration(seconds: float) -> str:
    """Format seconds as `12 s`, `3 min 05 s` or `1 h 02 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s" if seconds < 10 else f"{rest} s"


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
