"""`opstage import`: an ONNX model as source. `opstage import-weights`, `export-weights`: weights of other libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ..interop.network import LOSSES
from ..interop.weights import export_weights, import_weights, propose_for, read_state_dict, write_state_dict
from ..interop.weights.mapping import WeightMap, names_by_path
from ..interop.weights.proposal import stored_once
from ..models import Model
from ..ops.errors import UsageError, printable
from ..runs.directory import CHECKPOINT
from ..runs.run import begin
from ..runs.run_setup import prepare
from ..runs.settings import configure
from ..training import checkpoint as checkpoint
from ..training.snapshot import TrainerValues
from .commands import OPTION_PATHS, DottedCommand, flag_layer, with_option_flags


@click.command("import")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The Python file that is written."
)
@click.option("--force", is_flag=True, help="Write over FILE and its weights where they are there.")
@click.option("--loss", type=click.Choice(LOSSES), default=None, help="What training compares its output by.")
@click.option("--output", default="", metavar="NAME", help="The output that is compared, where there are several.")
@click.option("--fixed", multiple=True, metavar="NAME=VALUE", help="Give an input a value, as in shape=2 3.")
@click.option("--where", multiple=True, metavar="RELATION", help="A constraint on open sizes, as in T >= 65.")
def import_command(
    model: Path, out: Path, force: bool, loss: str | None, output: str, fixed: Sequence[str], where: Sequence[str]
) -> None:
    """Write MODEL, an ONNX file, as source in ops: FILE, and its weights beside it in the safetensors format.

    The file is a model of your own: opstage check FILE, opstage train FILE --data DATA, opstage graph FILE. It is
    proved to compute what MODEL computes, op by op, before it is written.
    """
    from ..interop.onnx.model import fixed_values, load
    from ..interop.source import write_source

    found = load(model, fixed=fixed_values(fixed), where=tuple(where))
    made = write_source(found, out, origin=model.name, loss=loss or "", output=output, force=force)
    click.echo(f"wrote {made.source}, {made.lines} lines, and {made.weights}, {made.parameters:,} parameters")
    click.echo(f"  opstage check {made.source}    its shapes, for every size")
    how = "" if loss else " --model.loss cross_entropy"
    click.echo(f"  opstage train {made.source}{how} --data FILE --out runs/{made.source.stem}")


_with_map = click.option(
    "--map",
    "choices",
    multiple=True,
    metavar="PATH=NAME",
    help="Take tensor NAME for parameter PATH (NAME:T for its transpose); -=NAME leaves a tensor out. May be repeated.",
)


@click.command("import-weights", cls=DottedCommand)
@click.argument("model")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", metavar="DIR", help="Make a run in this new directory that starts from the weights.")
@click.option("--config", type=click.Path(path_type=Path), metavar="SETTINGS", help="A TOML file with any setting.")
@_with_map
@with_option_flags
def import_weights_command(
    model: str, file: Path, out: str | None, config: Path | None, choices: Sequence[str], **flags: Any
) -> None:
    """Bring the weights of FILE to MODEL, and show which tensor became which parameter.

    FILE is a safetensors file, the index of several, or a folder with one of these. Tensors go to parameters by the
    names that the model's own file gives, else by likeness of names and by shapes.

    In PyTorch, safetensors.torch.save_file(net.state_dict(), FILE) writes such a file. Without --out nothing is kept.
    With it, opstage train --resume DIR goes on from the weights. Sizes are set as for opstage train: --model.depth 6.
    """
    layer = flag_layer({**OPTION_PATHS, "out": "run.out"}, {**flags, "out": out})
    configuration = configure(model, file=config, flags=[layer])
    tensors = read_state_dict(file)
    task = prepare(configuration.settings)
    chosen = {**_named(task.model, tensors), **_chosen(choices)}
    _show(propose_for(task.trainer.export(), tensors, chosen), file)
    import_weights(task.trainer, tensors, chosen)
    if configuration.settings.run.out is not None:
        directory = begin(task, configuration)
        click.echo(f"kept in {directory}; go on with: opstage train --resume {directory}")


@click.command("export-weights")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    metavar="OTHER",
    help="A safetensors file of the model that is to load FILE; names and layouts are taken from it.",
)
@_with_map
def export_weights_command(run: Path, file: Path, like: Path | None, choices: Sequence[str]) -> None:
    """Write the weights of RUN, a run directory or a checkpoint, to FILE in the safetensors format.

    In PyTorch, net.load_state_dict(safetensors.torch.load_file(FILE)) reads it. Names are PyTorch's usual ones, or
    those of the file given by --like.
    """
    values = _weights_of(run)
    if like is None:
        if choices:
            raise UsageError("--map needs the file given by --like, whose tensors it names")
        written = export_weights(values)
    else:
        other = read_state_dict(like)
        _show(propose_for(values, other, _chosen(choices)), like)
        written = export_weights(values, other, _chosen(choices))
    write_state_dict(file, written)
    kept, others = stored_once(written)
    click.echo(f"{len(kept)} tensors, {sum(array.size for array in kept.values()):,} numbers in {file}")
    for name, stored in others.items():
        said = f"{name} is tied to {stored}, and stored once; safetensors.torch.load_model(net, FILE) reads both"
        click.echo(printable(said))


def _weights_of(run: Path) -> TrainerValues:
    folder = run / CHECKPOINT if checkpoint.exists(run / CHECKPOINT) else run
    return checkpoint.load(folder).trainer


def _named(model: Model, tensors: Mapping[str, Any]) -> dict[str, str]:
    """Return the tensors that the model's own table maps to parameters, if the file has them."""
    if model.names is None:
        return {}
    return {path: name for path, name in names_by_path(model.init, model.names).items() if name in tensors}


def _chosen(choices: Sequence[str]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for choice in choices:
        path, equals, name = choice.partition("=")
        if not (path and equals and name):
            raise UsageError(f"--map {choice}: expected PATH=NAME, as in --map head.weight=fc.weight")
        chosen[path] = f"{chosen[path]},{name}" if path == "-" and path in chosen else name
    return chosen


def _show(proposed: WeightMap, file: Path) -> None:
    console = Console(highlight=False)
    console.print(proposed.table(), crop=False)
    taken = sum(row.source is not None for row in proposed.rows)
    click.echo(f"{file}: a tensor for {taken} of {len(proposed.rows)} parameters, {len(proposed.errors)} errors")
