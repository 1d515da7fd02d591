"""The commands and their exit codes: 0 done, 1 findings, 2 unusable input, 130 interrupted, 141 output closed, 143
terminated.

Numbers that are not finite are findings.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module
from typing import Any

import click
from typing_extensions import override

from .. import __version__
from ..ops.errors import OpstageError, RankError
from ..ops.untrusted import printable
from .interrupt import INTERRUPTED, EndAtOnce
from .several import conclude, speaks
from .termination import Terminated

TERMINATED = 143

COMMANDS = {
    "new": "new:new",
    "train": "train:train",
    "launch": "launch:launch",
    "evaluate": "predict:evaluate",
    "predict": "predict:predict",
    "export": "predict:export_command",
    "report": "report:report",
    "generate": "generate:generate",
    "check": "check.command:check",
    "graph": "graph:graph",
    "bench": "bench:bench",
    "plan": "plan:plan",
    "info": "info:info",
    "import": "import_model:import_command",
    "import-weights": "weights:import_command",
    "export-weights": "weights:export_command",
    "verify": "verify:verify",
}
"""The module and name of each command, imported when used."""


class Commands(click.Group):
    """A group that imports only the command that runs."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        with EndAtOnce():
            command: click.Command = getattr(import_module(f".{module}", __package__), name)
        return command

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            from .output import UNHEARD, silence

            silence()
            raise click.exceptions.Exit(UNHEARD) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="opstage")
def cli() -> None:
    """Write a model once; run it, differentiate it and check its shapes by choosing an interpreter."""


def run() -> int:
    """Run the command of `sys.argv` and return the exit code. Opstage's own errors become one message and 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # characters that it cannot encode must not end a command
    try:
        code = cli.main(standalone_mode=False, prog_name="opstage")
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "opstage"
        return conclude(f"opstage: {printable(error.format_message())} (see {command} --help)", 2, error)
    except (click.Abort, KeyboardInterrupt) as error:
        terminated = isinstance(error.__cause__, Terminated)  # click turns every KeyboardInterrupt into Abort
        if speaks():
            click.echo("terminated" if terminated else "interrupted", err=True)
        return TERMINATED if terminated else INTERRUPTED
    except OpstageError as error:
        return conclude(f"opstage: {error}", 1 if isinstance(error, (ArithmeticError, RankError)) else 2, error)
    except MemoryError as error:
        reason = printable(str(error)) or "no memory is left"
        click.echo(f"opstage: {reason}; opstage check --memory says what a training step takes", err=True)
        return 2
