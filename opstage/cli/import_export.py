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
from ..ops.errors import UsageError
from ..runs.directory import CHECKPOINT
from ..runs.run import begin
from ..runs.run_setup import prepare
from ..runs.settings import configure
from ..training import checkpoint as checkpoint
from ..training.snapshot import TrainerValues
from .commands import (
    OPTION_PATHS,
    PATH,
    Command,
    DottedCommand,
    ModelName,
    config_option,
    flag_layer,
    is_quiet,
    quiet_option,
    tell,
    with_option_flags,
)


@click.command("import", cls=Command)
@click.argument("model", type=PATH)
@click.option("--out", required=True, type=PATH, metavar="FILE", help="Python file to write.")
@click.option("--force", is_flag=True, help="Overwrite FILE and its weights.")
@click.option("--loss", type=click.Choice(LOSSES), metavar="NAME", help=f"Loss for training: {', '.join(LOSSES)}.")
@click.option("--output", default="", metavar="NAME", help="Output for the loss, of several.")
@click.option("--fixed", multiple=True, metavar="NAME=VALUE", help="Fix an input to a value, as in shape=2 3.")
@click.option("--where", multiple=True, metavar="RELATION", help="Constraint on open sizes, as in T >= 65.")
@quiet_option
def import_command(
    model: Path, out: Path, force: bool, loss: str | None, output: str, fixed: Sequence[str], where: Sequence[str]
) -> None:
    """Write MODEL, an ONNX file, as Python source in ops.

    The weights are written next to FILE in the safetensors format. FILE is a model file: opstage check FILE, opstage
    train FILE --data DATA, opstage graph FILE. Before it is written, it is proved op by op to compute what MODEL
    computes.
    """
    from ..interop.onnx.model import fixed_values, load
    from ..interop.source import write_source

    found = load(model, fixed=fixed_values(fixed), where=tuple(where))
    made = write_source(found, out, origin=model.name, loss=loss or "", output=output, force=force)
    tell(f"wrote {made.source}, {made.lines} lines, and {made.weights}, {made.parameters:,} parameters")
    tell(f"  opstage check {made.source}    its shapes, for every size")
    how = "" if loss else " --model.loss cross_entropy"
    tell(f"  opstage train {made.source}{how} --data FILE --out runs/{made.source.stem}")


_with_map = click.option(
    "--map",
    "choices",
    multiple=True,
    metavar="PATH=NAME",
    help="Load tensor NAME into parameter PATH.",
)


@click.command("import-weights", cls=DottedCommand)
@click.argument("model", type=ModelName())
@click.argument("file", type=PATH)
@click.option("--out", metavar="DIR", help="Create a run that starts from the weights in this new DIR.")
@config_option
@_with_map
@quiet_option
@with_option_flags
def import_weights_command(
    model: str, file: Path, out: str | None, config: Path | None, choices: Sequence[str], **flags: Any
) -> None:
    """Load the weights of FILE into MODEL, and print the tensor of each parameter.

    FILE is a safetensors file, the index of several, or a folder with one of these. In PyTorch,
    safetensors.torch.save_file(net.state_dict(), FILE) writes one. Tensors are assigned by the table of names in the
    model file, otherwise by similar names and by shapes. --map PATH=NAME assigns one, NAME:T its transpose, and
    --map -=NAME skips a tensor; repeat the option for several.

    Without --out nothing is saved. With --out, train --resume DIR continues from the weights. Set sizes as for train:
    --model.depth 6.
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
        tell(f"saved in {directory}; continue with: opstage train --resume {directory}")


@click.command("export-weights", cls=Command)
@click.argument("run", type=PATH)
@click.argument("file", type=PATH)
@click.option("--like", type=PATH, metavar="OTHER", help="Take names and layouts from this safetensors file.")
@_with_map
@quiet_option
def export_weights_command(run: Path, file: Path, like: Path | None, choices: Sequence[str]) -> None:
    """Write the weights of RUN to FILE in the safetensors format.

    RUN is a run directory or a checkpoint. In PyTorch, net.load_state_dict(safetensors.torch.load_file(FILE)) loads
    FILE. Names are the usual ones of PyTorch, or those of the file of --like, whose tensors --map assigns.
    """
    values = _weights_of(run)
    if like is None:
        if choices:
            raise UsageError("--map: requires --like, the file whose tensors it names")
        written = export_weights(values)
    else:
        other = read_state_dict(like)
        _show(propose_for(values, other, _chosen(choices)), like)
        written = export_weights(values, other, _chosen(choices))
    write_state_dict(file, written)
    kept, others = stored_once(written)
    tell(f"{len(kept)} tensors, {sum(array.size for array in kept.values()):,} numbers in {file}")
    for name, stored in others.items():
        said = f"{name} is tied to {stored}, and stored once; safetensors.torch.load_model(net, FILE) reads both"
        tell(said)


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
    if is_quiet():
        return
    console = Console(highlight=False)
    console.print(proposed.table(), crop=False)
    taken = sum(row.source is not None for row in proposed.rows)
    click.echo(f"{file}: a tensor for {taken} of {len(proposed.rows)} parameters, {len(proposed.errors)} errors")
