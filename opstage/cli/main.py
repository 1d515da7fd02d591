"""The commands and how they end: 0 done, 1 findings, 2 unusable input, 130 interrupted, 143 terminated."""

from __future__ import annotations

import sys

import click

from .. import __version__
from ..ops.errors import OpstageError
from .bench import bench
from .check import check
from .generate import generate
from .graph import graph
from .info import info
from .termination import Terminated
from .train import train
from .weights import export_command, import_command

INTERRUPTED = 130
TERMINATED = 143


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    commands=[train, generate, check, graph, bench, info, import_command, export_command],
)
@click.version_option(__version__, prog_name="opstage")
def cli() -> None:
    """Write a model once; run it, differentiate it and check its shapes by choosing an interpreter."""


def main() -> None:
    """The console script: errors that Opstage raises on purpose become one message and exit code 2."""
    try:
        code = cli.main(standalone_mode=False, prog_name="opstage")
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "opstage"
        click.echo(f"opstage: {error.format_message()} (see {command} --help)", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt) as error:
        terminated = isinstance(error.__cause__, Terminated)  # click makes an Abort of every KeyboardInterrupt
        click.echo("terminated" if terminated else "interrupted", err=True)
        sys.exit(TERMINATED if terminated else INTERRUPTED)
    except OpstageError as error:
        click.echo(f"opstage: {error}", err=True)
        sys.exit(2)
