"""`opstage predict|evaluate|export|generate RUN`: use a run as a model."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..distributed.processes import is_terminal
from ..models import gpt as gpt
from ..ops.errors import UsageError, escaped
from ..runs.directory import other_version
from ..runs.evaluation import model_metrics
from ..runs.export import FORMATS, export
from ..runs.model_files import named_file
from ..runs.predictions import initial_predictor, prepared_inputs, require_suffix, write_predictions
from ..runs.progress import format_metrics
from ..runs.run_setup import least_batch, prepare
from ..runs.settings import configure, configure_saved
from ..runs.text_generation import Sampling, load_gpt
from ..runs.text_generation import generate as generated
from ..runs.trained_model import WHICH, OtherVersionWarning, Trained, load
from ..training.fit import evaluate as judge
from ..training.predictor import ROWS
from .commands import (
    OPTION_PATHS,
    PATH,
    Command,
    DottedCommand,
    dotted_flags,
    flag_layer,
    quiet_option,
    tell,
    with_option_flags,
)
from .train import say_changed


def open_run(run: Path, flags: dict[str, Any]) -> Trained:
    """Load the trained model of a run with the options of the flags; report which of its files have changed since."""
    given = {name: flags[name] for name in OPTION_PATHS if flags[name] is not None}
    options = configure_saved(run).settings.options.replace(**given) if given and run.is_dir() else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OtherVersionWarning)  # printed below, as a line of its own
        trained = load(run, which=flags["which"], options=options)
    if said := other_version(run):
        click.echo(said, err=True)
    say_changed(run, trained.configuration)
    return trained


def _with_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add RUN, --which, and the interpreter options."""
    which = click.option(
        "--which",
        type=click.Choice(WHICH),
        default="last",
        show_default=True,
        metavar="NAME",
        help=f"Parameters to use: {', '.join(WHICH)}.",
    )
    return click.argument("run", type=PATH)(which(with_option_flags(command)))


def _require_another(out: Path, data: Path) -> None:
    """Raise UsageError if the predictions would overwrite the data that they are for."""
    with contextlib.suppress(OSError):  # of a file that is not there yet, or of rows that reading them refuses
        if out.samefile(data):
            raise UsageError(f"--out {out}: is the file of --data, which would be overwritten; choose another name")


@click.command(cls=DottedCommand)
@_with_run
@click.option("--data", type=PATH, required=True, metavar="FILE", help="Data file to predict for.")
@click.option("--out", type=PATH, required=True, metavar="FILE", help="File for the predictions: .csv or .npz.")
@click.option(
    "--rows", type=click.IntRange(1), default=ROWS, show_default=True, metavar="N", help="Number of rows at a time."
)
@quiet_option
def predict(run: Path, data: Path, out: Path, rows: int, **flags: Any) -> None:
    """Predict for every row of a data file with the model of RUN.

    The file is read like the data of the run, with the same columns and scaling; a label column is ignored. Predictions
    for a folder of images have a column `path`.

    RUN may also be a model, such as an ONNX file, which predicts without training. A file from `opstage export` takes
    the data of its run. Other models take arrays or columns with the names of their inputs, unscaled. A single input
    may be all columns of a table except the label; select others by --data.columns 'x=weight,height' and --data.label.
    """
    require_suffix(out)
    _require_another(out, data)
    if not run.is_dir() and named_file(str(run)) is not None:
        settings = configure(str(run), flags=[flag_layer(OPTION_PATHS, flags)]).settings
        predictor = initial_predictor(settings.defined.make(settings.model), settings.options)
        inputs, preparation = prepared_inputs(predictor, data, settings.data)
        outputs, classes = predictor(*inputs, rows=rows), None if preparation is None else preparation.classes
        count = write_predictions(out, outputs, classes, None if preparation is None else preparation.files(data))
        tell(f"{count} predictions in {out}, before training")
        return
    if dotted_flags():
        raise UsageError(f"{run} is a run, which has its own settings; leave --{next(iter(dotted_flags()))} out")
    trained = open_run(run, flags)
    files = None if trained.preparation is None else trained.preparation.files(data)
    outputs = trained.predict(data, rows=rows)
    count = write_predictions(out, outputs, trained.classes, files)
    tell(f"{count} predictions in {out}")


@click.command(cls=DottedCommand)
@_with_run
@click.option("--data", metavar="FILE", help="Data file with labels (default: held-out rows).")
def evaluate(run: Path, data: str | None, **flags: Any) -> None:
    """Print the metrics of the model of RUN.

    RUN may also be a model, as for train: it is evaluated without training, on the rows that training would hold out.
    """
    if run.is_dir():
        if dotted_flags():
            raise UsageError(f"{run} is a run, which has its own settings; leave --{next(iter(dotted_flags()))} out")
        trained = open_run(run, flags)
        dataset = trained.prepared_rows(data)
        click.echo(f"{len(dataset)} samples: {format_metrics(trained.evaluate_dataset(dataset))}")
        return
    layer = flag_layer({"data": "data.file", **OPTION_PATHS}, {**flags, "data": data})
    settings = configure(str(run), flags=[layer]).settings
    if "data.batch_size" not in dotted_flags():  # nothing is trained, so fewer rows than a batch are enough
        settings = replace(settings, data=replace(settings.data, batch_size=least_batch(settings)))
    task = prepare(settings)
    found = judge(task.trainer, model_metrics(task.model, task.settings.options), task.test_batches)
    click.echo(f"{len(task.held_out)} samples, before training: {format_metrics(found)}")


@click.command("export", cls=Command)
@_with_run
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    metavar="NAME",
    help=f"Format (default: suffix of FILE): {', '.join(FORMATS)}.",
)
@click.option("-o", "--out", "--output", "out", type=PATH, required=True, metavar="FILE", help="File to write.")
@quiet_option
def export_command(run: Path, form: str | None, out: Path, **flags: Any) -> None:
    """Write the model of RUN to a file.

    The formats are its prediction function as ONNX, and its parameters as safetensors.
    """
    form = form if form is not None else out.suffix.removeprefix(".")
    if form not in FORMATS:
        raise UsageError(f"{out}: the suffix is not that of a format; give --format {' or --format '.join(FORMATS)}")
    trained = open_run(run, flags)
    export(trained, out, form)
    tell(f"wrote {out}" + (", tried in onnxruntime: the same numbers" if form == "onnx" else ""))


# opstage generate -----------------------------------------------------------------------------------------------------


@click.command(cls=DottedCommand)
@click.argument("source", type=PATH)
@click.option("--prompt", default="", metavar="TEXT", help="Start of the text (default: a new line).")
@click.option("--length", type=int, default=500, show_default=True, metavar="N", help="Number of bytes to generate.")
@click.option(
    "--temperature",
    type=float,
    default=0.8,
    show_default=True,
    metavar="T",
    help="Temperature; 0 takes the likeliest byte.",
)
@click.option("--top-k", type=int, metavar="K", help="Sample from the K likeliest bytes (default: all).")
@with_option_flags
def generate(
    source: Path, prompt: str, length: int, temperature: float, top_k: int | None, **flags: str | int | None
) -> None:
    """Print PROMPT and the text with which the gpt in SOURCE continues it.

    SOURCE is a run directory, as `opstage train gpt --out DIR` writes it, or a safetensors file of its parameters. The
    config of a file is the default except for flags such as --model.depth 6.

    Files and pipes receive the bytes unchanged. A terminal shows bytes that are not UTF-8 as �, and control codes, such
    as colours, as \\x1b….
    """
    layer = flag_layer(OPTION_PATHS, flags)
    settings = configure("gpt", flags=[layer]).settings
    told = any(path.startswith("model.") for path in layer.values)
    config: gpt.Config | None = settings.model if told or not source.is_dir() else None
    config, params = load_gpt(source, config)
    sampling = Sampling(temperature, top_k, settings.options.seed)
    text = os.fsencode(prompt)
    write = _to_terminal() if is_terminal(sys.stdout) else _to_file
    write(text)
    for byte in generated(config, params, text, length, sampling, options=settings.options):
        write(bytes([byte]))
    write(b"", final=True)


def _to_file(data: bytes, final: bool = False) -> None:
    """Write the bytes unchanged, and a newline at the end."""
    click.echo(data, nl=final)


def _to_terminal() -> Callable[..., None]:
    """Return a function that writes bytes to a terminal as UTF-8, with control codes escaped."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(data: bytes, final: bool = False) -> None:
        click.echo(escaped(decoder.decode(data, final)), nl=final)

    return write
