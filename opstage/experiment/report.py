"""report.html: a run on one page that needs nothing else, no script, no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy.typing as npt

from ..interpreters.shape_check.table import Table
from .curves import Curves
from .png import data_uri
from .samples import GeneratedText, ImageRows
from .settings import Configuration
from .svg import panel_svg

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --c0: #1f77b4; --c1: #d1495b; --c2: #2a9d5c; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; }
h1 { margin-bottom: 0; } h2 { margin-top: 2em; }
.panels { display: flex; flex-wrap: wrap; gap: 1em 2em; } .panels > div { flex: 1 1 420px; max-width: 620px; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
svg text.axis { font-weight: 600; font-size: 12px; }
.grid { stroke: var(--line); stroke-width: .5; } .curve { fill: none; stroke-width: 2; }
.curve.faint { stroke-width: 1; opacity: .45; }
.curve.c0 { stroke: var(--c0); } .curve.c1 { stroke: var(--c1); } .curve.c2 { stroke: var(--c2); }
circle.curve.c0 { fill: var(--c0); } circle.curve.c1 { fill: var(--c1); } circle.curve.c2 { fill: var(--c2); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0 1.5em; padding: 0 0 0 64px; margin: 0; }
.legend .c0 { color: var(--c0); } .legend .c1 { color: var(--c1); } .legend .c2 { color: var(--c2); }
table { border-collapse: collapse; } th, td { padding: .15em .6em; text-align: left; vertical-align: top; }
thead th { border-bottom: 1px solid var(--line); } tbody tr + tr { border-top: 1px solid var(--line); }
.number, .confusion td { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } code, .code { font: 13px/1.5 ui-monospace, monospace; } .muted { opacity: .7; }
img { image-rendering: pixelated; min-width: 56px; min-height: 56px; margin: 2px; vertical-align: middle; }
pre.sample { white-space: pre-wrap; border: 1px solid var(--line); padding: .5em; }
.right { background: rgb(42 157 92 / var(--share)); } .wrong { background: rgb(209 73 91 / var(--share)); }
"""


@dataclass(frozen=True)
class ReportContent:
    """The content of a report. `status` is a sentence; `run` is the content of run.json."""

    title: str
    status: str
    held_out: Mapping[str, float]
    curves: Curves
    cost: Table
    confusion: npt.NDArray[Any] | None
    samples: ImageRows | GeneratedText | None
    configuration: Configuration
    run: Mapping[str, Any]


def report_html(content: ReportContent) -> str:
    """The page."""
    sections = [
        f"<h1>{escape(content.title)}</h1>",
        f'<p id="status">{escape(content.status)}</p>',
        _held_out(content.held_out),
        f'<h2 id="curves">Curves</h2>\n<div class="panels">{_panels(content.curves)}</div>',
    ]
    if content.confusion is not None:
        sections.append(_confusion(content.confusion))
    if content.samples is not None:
        sections.append(_samples(content.samples))
    sections += [_cost(content.cost), _configuration(content.configuration), _run(content.run)]
    body = "\n".join(sections)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(content.title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def format_metric(name: str, value: float) -> str:
    """`accuracy 98.33 %`, `loss 0.0612`."""
    return f"{name} {100 * value:.2f} %" if name == "accuracy" else f"{name} {value:.4g}"


def _panels(curves: Curves) -> str:
    return "".join(f"<div>{panel_svg(panel)}</div>" for panel in curves.panels())


def _held_out(means: Mapping[str, float]) -> str:
    shown = ", ".join(format_metric(name, value) for name, value in sorted(means.items()))
    return f'<p id="held-out">On held-out data: {escape(shown)}.</p>' if shown else ""


def _confusion(counts: npt.NDArray[Any]) -> str:
    totals = counts.sum(axis=1)
    head = "".join(f"<th>{j}</th>" for j in range(counts.shape[1]))
    rows = []
    for i, row in enumerate(counts):
        cells = []
        for j, count in enumerate(row):
            share = float(count) / max(1, int(totals[i]))
            kind = f' class="{"right" if i == j else "wrong"}" style="--share:{share:.3f}"' if count else ""
            cells.append(f"<td{kind}>{count}</td>")
        recall = f"{100 * float(row[i]) / totals[i]:.1f} %" if totals[i] else ""
        rows.append(f"<tr><th>{i}</th>{''.join(cells)}<td>{recall}</td></tr>")
    return (
        '<h2 id="confusion">Confusion matrix</h2>\n<p>Held-out samples: a row per true class, a column per predicted '
        f'class.</p>\n<div class="wide"><table class="confusion"><thead><tr><th></th>{head}<th>found</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _samples(made: ImageRows | GeneratedText) -> str:
    head = f'<h2 id="samples">Samples</h2>\n<p>{escape(made.caption)}</p>'
    if isinstance(made, GeneratedText):
        return f'{head}\n<pre class="code sample">{escape(made.text)}</pre>'
    rows = []
    for label, images in made.rows:
        drawn = "".join(f'<img src="{data_uri(image)}" alt="{escape(label)} {i}">' for i, image in enumerate(images))
        rows.append(f"<tr><th>{escape(label)}</th><td>{drawn}</td></tr>")
    return f'{head}\n<div class="wide"><table class="images"><tbody>{"".join(rows)}</tbody></table></div>'


def _cost(table: Table) -> str:
    said = (
        "One training step as the shape checker sees it, for every batch size at once: FLOPs, bytes that kernels read "
        "and write, and bytes that stay from the forward pass until the backward pass has read them."
    )
    return f'<h2 id="cost">Shapes and cost</h2>\n<p>{said}</p>\n{table._repr_html_()}'


def _configuration(configuration: Configuration) -> str:
    rows = "".join(
        f'<tr><td class="code">{escape(path)}</td><td class="code">{escape(_shown(value))}</td>'
        f'<td class="muted">{escape(configuration.origins[path])}</td></tr>'
        for path, value in configuration.values.items()
    )
    return (
        '<h2 id="configuration">Configuration</h2>\n<div class="wide"><table><thead><tr><th>key</th><th>value</th>'
        f"<th>from</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _run(run: Mapping[str, Any]) -> str:
    flat: list[tuple[str, Any]] = []

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else str(key))
        else:
            flat.append((path, ", ".join(map(str, value)) if isinstance(value, list) else value))

    walk(run, "")
    rows = "".join(
        f'<tr><td class="code">{escape(name)}</td><td class="code">{escape(str(value))}</td></tr>'
        for name, value in flat
    )
    return f'<h2 id="run">Run</h2>\n<div class="wide"><table><tbody>{rows}</tbody></table></div>'
