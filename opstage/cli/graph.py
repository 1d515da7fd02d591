"""`opstage graph MODEL`: a shipped model's training step, or its forward pass, as a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..atomic import write_file
from ..experiment.settings import configure
from ..interpreters.graph import Graph
from ..models import model as shipped_model
from ..ops.errors import UsageError
from ..training.recorded import record_model
from .flags import OPTION_PATHS, DottedCommand, flag_layer, read_sizes, with_option_flags

FORMATS = ("text", "dot", "svg", "html", "onnx")

_STEPS = 1000  # of a schedule; its rates are inputs of the graph, so their number changes nothing in it


@click.command(cls=DottedCommand)
@click.argument("model", required=False)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="What to write.")
@click.option("--step/--forward", default=True, help="The whole training step (the default), or the loss alone.")
@click.option("--at", metavar="B=32,…", default="", help="Numbers for named sizes of the batch; others stay symbolic.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write to FILE, not here."
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A TOML file with any of the settings.")
@with_option_flags
def graph(
    model: str | None, form: str, step: bool, at: str, output: Path | None, config: Path | None, **flags: Any
) -> None:
    """Record MODEL and write the graph: a line per op, Graphviz, a drawing, a page for the browser, or an ONNX model.

    MODEL is cnn by default; its configuration is taken as by train, for instance --model.dense 64.
    """
    sizes = read_sizes(at)
    if form == "onnx" and output is None:
        raise UsageError("an ONNX model is no text for a terminal; name a file for it with -o FILE")
    settings = configure(model, file=config, flags=[flag_layer(OPTION_PATHS, flags)]).settings
    chosen = shipped_model(settings.run.model, settings.model)
    optimizer = settings.optimizer.make(_STEPS) if step else None
    recorded = record_model(chosen, settings.options, optimizer, settings.optimizer.make_clip(), sizes=sizes)
    if form == "onnx":
        assert output is not None
        recorded.to_onnx(output)
        return
    title = f"{settings.run.model}, {'one training step' if step else 'the forward pass'}"
    text = _written(recorded, form, f"{title} at {at}" if at else title)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_file(output, [text.encode()])


def _written(recorded: Graph, form: str, title: str) -> str:
    match form:
        case "dot":
            return recorded.to_dot()
        case "svg":
            return recorded.to_svg()
        case "html":
            return recorded.to_html(title)
        case _:
            return str(recorded)
