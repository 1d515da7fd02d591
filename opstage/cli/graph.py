"""`opstage graph MODEL`: a model's training step, or its forward pass, as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..files import write_file
from ..interpreters.graph import Graph
from ..interpreters.graph.html_page import Remark, to_html
from ..ops.errors import UsageError
from ..runs.directory import other_version
from ..training.program_check import check_model, record_model
from .commands import OPTION_PATHS, model_command, read_sizes, run_or_model

FORMATS = {"text": (".txt",), "dot": (".dot", ".gv"), "svg": (".svg",), "html": (".html", ".htm"), "onnx": (".onnx",)}
"""Maps each format to its file suffixes."""


@model_command()
@click.option(
    "--format",
    "form",
    type=click.Choice([*FORMATS]),
    metavar="NAME",
    help="Output format: text, dot, svg, html, onnx.",
)
@click.option("--step/--forward", default=True, help="Write a training step (default), or the loss alone.")
@click.option("--at", metavar="B=32,…", default="", help="Sizes of named dims; others stay symbolic.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write to FILE.")
def graph(
    model: str | None, form: str | None, step: bool, at: str, output: Path | None, config: Path | None, **flags: Any
) -> None:
    """Record MODEL (cnn by default) and write its graph.

    The formats are text with a line per op, Graphviz (dot), a drawing (svg), a page for the browser (html), which also
    shows the findings of a check, and an ONNX model. The suffix of FILE selects the format; the default is text.

    MODEL is configured as by train, for instance --model.dense 64. It may also be a run directory.
    """
    sizes = read_sizes(at)
    form = _format(form, output)
    if form == "onnx" and output is None:
        raise UsageError("--format onnx: not supported on a terminal; name a file with -o FILE")
    settings = run_or_model(model, config, OPTION_PATHS, flags)
    if model is not None and Path(model).is_dir() and (said := other_version(Path(model))):
        click.echo(said, err=True)
    chosen = settings.defined.make(settings.model)
    step = step and chosen.loss is not None
    optimizer = settings.optimizer.make() if step else None
    clip = settings.optimizer.make_clip()
    recorded = record_model(chosen, settings.options, optimizer, clip, sizes=sizes)
    if form == "onnx":
        assert output is not None
        recorded.to_onnx(output)
        return
    title = f"{settings.defined.called}, {'one training step' if step else 'the forward pass'}"
    remarks = check_model(chosen, settings.options, optimizer, clip, sizes=sizes).remarks if form == "html" else []
    text = _written(recorded, form, f"{title} at {at}" if at else title, remarks)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_file(output, [text.encode()])


def _format(form: str | None, output: Path | None) -> str:
    """Return the requested format, by name or by the suffix of the file. Raises UsageError if they differ."""
    suffix = "" if output is None else output.suffix.lower()
    by_suffix = next((name for name, suffixes in FORMATS.items() if suffix in suffixes), None)
    if form is None and by_suffix is None and suffix:
        known = ", ".join(suffix for suffixes in FORMATS.values() for suffix in suffixes)
        raise UsageError(f"{output}: the suffix {suffix} is not that of a format; expected one of {known}, or --format")
    if form is not None and by_suffix not in (None, form):
        raise UsageError(f"{output}: --format {form} does not go with {suffix}, the suffix of {by_suffix}")
    return form or by_suffix or "text"


def _written(recorded: Graph, form: str, title: str, remarks: Sequence[Remark]) -> str:
    match form:
        case "dot":
            return recorded.to_dot()
        case "svg":
            return recorded.to_svg()
        case "html":
            return to_html(recorded, title, remarks)
        case _:
            return str(recorded)
