"""`opstage new NAME`: write a model file to start from."""

from __future__ import annotations

import keyword
from importlib.resources import files
from pathlib import Path

import click

from ..atomic import write_file
from ..ops.errors import UsageError

TEMPLATE = "new_model.txt"


@click.command()
@click.argument("name")
def new(name: str) -> None:
    """Write NAME.py, a model of your own with comments, which runs as it is.

    It is then named by its file: opstage check NAME.py, opstage train NAME.py --data FILE.
    """
    path = Path(name if name.endswith(".py") else f"{name}.py")
    if not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        raise UsageError(
            f"{path.name}: {path.stem!r} is not a name for a Python module; it is of letters, digits and _, no keyword"
        )
    if path.exists():
        raise UsageError(f"{path} is there already; choose another name")
    write_file(path, [files(__package__).joinpath(TEMPLATE).read_bytes()])
    click.echo(f"wrote {path}")
    click.echo(f"  opstage check {path}    its shapes, for every batch size")
    click.echo(f"  opstage train {path} --out runs/{path.stem}    on the data of its recipe; --data FILE for yours")
