"""report.html: a run on one page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .confusion import Classification
from .confusion_html import classification_html
from .curves import Curves, Panel
from .metrics import show_value
from .page import page_html
from .png import data_uri
from .processes import ProcessShare, processes_html
from .samples import GeneratedText, ImageRows
from .settings import Configuration
from .svg import panel_svg


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
    groups     the table of each parameter's optimizer, as HTML
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
    groups: str = ""
    processes: Sequence[ProcessShare] = ()


def report_html(content: ReportContent) -> str:
    """Return the page."""
    age = '<p id="age" class="muted"></p>' if content.written is not None else ""
    sections = [
        f"<h1>{escape(content.title)}</h1>",
        f'<p id="status">{escape(content.status)}</p>{age}',
        _held_out(content.held_out),
        _about(content),
        f'<h2 id="curves">Curves</h2>\n<div class="panels">{panels_html(content.curves.panels())}</div>',
    ]
    rates = content.curves.rates()
    if rates:
        sections.append(f'<h2 id="rates">Rates</h2>\n<div class="panels">{panels_html(rates)}</div>')
    if content.classification is not None:
        sections.append(classification_html(content.classification, content.classes))
    if content.samples is not None:
        sections.append(_samples(content.samples))
    sections.append(processes_html(content.processes))
    sections += [_groups(content.groups), _cost(content.cost), _configuration(content.configuration), _run(content.run)]
    return page_html(content.title, "\n".join(sections), written=content.written)


def panels_html(panels: Iterable[Panel]) -> str:
    """Return panels side by side, if there is room."""
    return "".join(f"<div>{panel_svg(panel)}</div>" for panel in panels)


def _held_out(means: Mapping[str, float]) -> str:
    shown = ", ".join(f"{name} {show_value(name, value)}" for name, value in sorted(means.items()))
    return f'<p id="held-out">On held-out data: {escape(shown)}.</p>' if shown else ""


def _about(content: ReportContent) -> str:
    """Return which run it is: its name, start, time of training, command and commit."""
    run, minutes, seconds = content.run, *divmod(round(content.seconds), 60)
    rows = {
        "run": content.name,
        "started": str(run.get("started", "")).replace("T", " ").replace("+00:00", " UTC"),
        "trained for": f"{minutes // 60}:{minutes % 60:02}:{seconds:02}",
        "command": str(run.get("command", "")),
        "git commit": str(run.get("commit", "")),
    }
    shown = [f'<tr><th>{name}</th><td class="code">{escape(text)}</td></tr>' for name, text in rows.items() if text]
    return f'<table id="about"><tbody>{"".join(shown)}</tbody></table>'


def _samples(made: ImageRows | GeneratedText) -> str:
    head = f'<h2 id="samples">Samples</h2>\n<p>{escape(made.caption)}</p>'
    if isinstance(made, GeneratedText):
        return f'{head}\n<pre class="code sample">{escape(made.text)}</pre>'
    rows = []
    for label, images in made.rows:
        drawn = "".join(f'<img src="{data_uri(image)}" alt="{escape(label)} {i}">' for i, image in enumerate(images))
        rows.append(f"<tr><th>{escape(label)}</th><td>{drawn}</td></tr>")
    return f'{head}\n<div class="wide"><table class="images"><tbody>{"".join(rows)}</tbody></table></div>'


def _groups(table: str) -> str:
    said = "What moves each parameter: the peak of its learning rate, its weight decay, the groups that it is in."
    return f'<h2 id="groups">Parameters</h2>\n<details><summary>{said}</summary>{table}</details>' if table else ""


def _cost(table: str) -> str:
    said = (
        "One training step as the shape checker sees it, for every batch size at once: FLOPs, bytes that kernels read "
        "and write, and bytes that stay from the forward pass until the backward pass has read them."
    )
    return f'<h2 id="cost">Shapes and cost</h2>\n<p>{said}</p>\n{table}'


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
