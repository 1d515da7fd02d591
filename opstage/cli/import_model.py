"""`opstage import MODEL.onnx --out MODEL.py`: an ONNX model as Opstage source and a weights file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ..interop.network import LOSSES


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
