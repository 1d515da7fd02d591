"""The result of a classifier on held-out data, as HTML: confusion matrix, scores of each class, worst mistakes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from .confusion import Classification, Mistake
from .png import data_uri

_MOST_NUMBERS = 12


def classification_html(made: Classification, classes: Sequence[str] | None = None) -> str:
    """Return the sections as HTML. `classes` are the names of the classes, if they have any."""
    names = list(classes) if classes is not None and len(classes) == len(made.counts) else None
    named = names if names is not None else [str(number) for number in range(len(made.counts))]
    return (
        '<h2 id="confusion">Confusion matrix</h2>\n<p>Held-out samples: a row per true class, a column per predicted '
        f'class.</p>\n<div class="tables"><div class="wide">{_matrix(made.counts, named)}</div>'
        f'<div class="wide">{_scores(made, named)}</div></div>\n{_mistakes(made.mistakes, named)}'
    )


def _matrix(counts: npt.NDArray[Any], names: Sequence[str]) -> str:
    totals = counts.sum(axis=1)
    rows = []
    for i, row in enumerate(counts):
        cells = []
        for j, count in enumerate(row):
            share = float(count) / max(1, int(totals[i]))
            kind = f' class="{"right" if i == j else "wrong"}" style="--share:{share:.3f}"' if count else ""
            cells.append(f"<td{kind}>{count}</td>")
        rows.append(f"<tr><th>{escape(names[i])}</th>{''.join(cells)}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f'<table class="confusion"><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _scores(made: Classification, names: Sequence[str]) -> str:
    scores = made.scores
    columns = scores.precision, scores.recall, scores.f1
    rows = [
        f"<tr><th>{escape(name)}</th><td>{made.counts[i].sum()}</td>"
        f"{''.join(f'<td>{_percent(column[i])}</td>' for column in columns)}</tr>"
        for i, name in enumerate(names)
    ]
    means = "".join(f"<td>{_percent(_mean(column))}</td>" for column in columns)
    rows.append(f"<tr><th>mean of classes</th><td>{made.counts.sum()}</td>{means}</tr>")
    return (
        '<table class="scores"><thead><tr><th>class</th><th>samples</th><th>precision</th><th>recall</th><th>F1</th>'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _mean(values: npt.NDArray[np.float64]) -> float:
    """Return the mean of the values that are not nan."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _percent(value: float) -> str:
    return "none" if math.isnan(value) else f"{100 * value:.1f} %"


def _mistakes(mistakes: Sequence[Mistake], names: Sequence[str]) -> str:
    if not mistakes:
        return ""
    figures = "".join(
        f"<figure>{_sample(mistake.sample)}<figcaption>{escape(names[mistake.true])}, taken for "
        f"{escape(names[mistake.found])} with {_percent(mistake.probability)}; row {mistake.row}</figcaption></figure>"
        for mistake in mistakes
    )
    return (
        '<h2 id="mistakes">Worst mistakes</h2>\n<p>Held-out samples taken for another class, the most certain first; '
        f'rows are counted from 0.</p>\n<div class="mistakes">{figures}</div>'
    )


def _sample(sample: npt.NDArray[Any]) -> str:
    """Show an image, scaled to its value range; for any other sample its first numbers."""
    image = sample[0] if sample.ndim == 3 and sample.shape[0] == 1 else sample
    if image.ndim == 2 and min(image.shape) > 3 and image.dtype.kind in "fiu":
        values = image.astype(np.float64)
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        return f'<img src="{data_uri((values - low) / ((high - low) or 1.0))}" alt="">'
    numbers = sample.reshape(-1)
    shown = ", ".join(f"{number:.4g}" for number in numbers[:_MOST_NUMBERS].tolist())
    more = f", … ({numbers.size} numbers)" if numbers.size > _MOST_NUMBERS else ""
    return f'<div class="code">{escape(shown)}{more}</div>'
