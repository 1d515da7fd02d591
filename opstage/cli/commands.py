"""The commands and what they share: flags by dotted path (`--model.depth 6` sets any field of the configuration),
and the end of a command that runs as several processes."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import override

from .. import __version__
from ..config import GROUPS, Layer
from ..distributed.processes import ENDED, NotJoinedError, launched
from ..ops.dims.scope import LARGEST_SIZE
from ..ops.errors import OpstageError, RankError, UsageError, brief, printable
from .exit_codes import INTERRUPTED, TERMINATED, UNHEARD, EndAtOnce, Terminated, silence

if TYPE_CHECKING:
    from ..distributed.transport import Transport
    from ..runs.settings import Settings


_DOTTED = re.compile(r"--([A-Za-z_]\w*(?:\.\w+)+)(?:=(.*))?", re.DOTALL)
_META = "opstage.dotted"


class DottedCommand(click.Command):
    """A command that accepts `--table.field VALUE` and `--table.field=VALUE` in addition to its own flags."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        dotted: dict[str, str | None] = {}
        rest: list[str] = []
        while args:
            word, *args = args
            if word == "--":
                rest += [word, *args]
                break
            match = _DOTTED.fullmatch(word)
            if match is None:
                rest.append(word)
            else:
                value = match[2]
                if value is None and args and not args[0].startswith("--"):
                    value, *args = args
                before = dotted.get(match[1])  # of groups all apply, of other flags the last
                joined = match[1] == GROUPS and before and value
                dotted[match[1]] = f"{before}; {value}" if joined else value
        ctx.meta[_META] = dotted
        return super().parse_args(ctx, rest)


def flag_layer(paths: Mapping[str, str], given: Mapping[str, Any]) -> Layer:
    """Return the flags as a layer: `paths` maps a flag's name to the path it sets, `given` to its value or None.

    The dotted flags of the running command override them.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, path in paths.items():
        if given[name] is not None:
            values[path], origins[path] = str(given[name]), f"--{name.replace('_', '-')}"
    for path, text in dotted_flags().items():
        values[path], origins[path] = text, f"--{path}"
    return Layer(values, origins, text=True)


def dotted_flags() -> Mapping[str, str | None]:
    """Return the dotted flags of the running command."""
    given: Mapping[str, str | None] = click.get_current_context().meta.get(_META, {})
    return given


OPTION_PATHS = {name: f"options.{name}" for name in ("backend", "device", "dtype", "seed")}


def with_option_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --backend, --device, --dtype and --seed."""
    for decorate in (
        click.option("--seed", type=int, metavar="N", help="Seeds initial values, shuffling and random ops."),
        click.option("--dtype", metavar="NAME", help="float32 or float64."),
        click.option("--device", metavar="NAME", help="cpu, cuda, or cuda:1 for one GPU of several."),
        click.option("--backend", metavar="NAME", help="eager, compiled, shape_check, or any registered interpreter."),
    ):
        command = decorate(command)
    return command


def run_or_model(
    model: str | None, config: Path | None, paths: Mapping[str, str], flags: Mapping[str, Any], purpose: str = "use"
) -> Settings:
    """Return the settings of the run in a directory, with the options of the flags, or of a model as by train."""
    from ..runs.settings import configure, configure_saved

    if model is None or not Path(model).is_dir():
        return configure(model, file=config, flags=[flag_layer(paths, flags)]).settings
    if config is not None or dotted_flags():
        raise UsageError(f"{model} is a run, which has its own settings; leave --config and other settings out")
    settings = configure_saved(Path(model), purpose).settings
    given = {name: value for name, value in flags.items() if value is not None}
    return replace(settings, options=settings.options.replace(**given))


def _shown(entry: str) -> str:
    """Return an entry as typed, shortened if long."""
    return entry if len(entry) <= 80 else brief(entry)


def read_sizes(text: str) -> dict[str, int]:
    """Parse `B=32,T=16` to a mapping. Raises UsageError."""
    sizes: dict[str, int] = {}
    for entry in filter(None, text.split(",")):
        name, equals, number = (part.strip() for part in entry.partition("="))
        if not (name and equals and number.isdecimal()):
            raise UsageError(f"--at {_shown(entry)}: expected NAME=NUMBER, as in --at B=32,T=16")
        if len(number) > 19 or not 0 < int(number) <= LARGEST_SIZE:
            raise UsageError(f"--at {_shown(entry)}: a size is at least 1 and at most {LARGEST_SIZE}")
        if name in sizes:
            raise UsageError(f"--at {text}: {name} is given twice")
        sizes[name] = int(number)
    return sizes


# Several processes ----------------------------------------------------------------------------------------------------

_PATIENCE = 5.0
"""Seconds within which a failing process reports the error and ends all others."""


def speaks() -> bool:
    """Whether this process prints messages: the only one, or the first."""
    return launched()[0] == 0


def tell_launcher(code: int) -> None:
    """Record how process 0 has ended, for `opstage launch`: once one has died, mpiexec always returns 0."""
    if launched()[0] == 0 and (path := os.environ.get(ENDED)):
        with suppress(OSError), open(path, "x") as file:  # the record of an earlier failure stays
            file.write(str(code))


def conclude(text: str, code: int, error: BaseException) -> int:
    """Report on standard error why one of several processes ends; return its exit code."""
    if isinstance(error, NotJoinedError):
        click.echo(text if error.speaks else "the same here, see process 0: MPI does not join this process", err=True)
        return code
    if launched()[1] == 1:
        click.echo(text, err=True)
        return code
    from ..distributed.processes import world
    from ..runs.processes import DisagreementError, agree

    try:
        transport = world()
    except NotJoinedError:  # nobody can be told: each says what is wrong
        click.echo(text, err=True)
        return code
    except UsageError as missing:
        if not speaks():
            time.sleep(_PATIENCE)  # if process 0 has the same error, it reports it and ends all
        click.echo(f"opstage: {missing}", err=True)
        return 2
    if not transport.agreed:  # the others are about to report what they have, or why they end
        try:
            agree(transport, {}, text.removeprefix("opstage: "))
        except DisagreementError as known:
            error, text = known, f"opstage: {known}"
        except RankError:
            pass
    if isinstance(error, DisagreementError):
        if speaks():
            click.echo(text, err=True)
        return code
    if not _report(transport, text, error):
        time.sleep(_PATIENCE)  # the failing process ends all, with its exit code
    transport.abort(code)
    return code


def report_at_once(error: RankError) -> None:
    """Report the failure of another process before this one writes the files of its run, which takes a while."""
    from ..distributed.processes import world

    _report(world(), f"opstage: {error}", error)


_REPORTS: list[bool] = []


def _report(transport: Transport, text: str, error: BaseException) -> bool:
    """Tell all other processes of an error, once; report it, and return True, if this process is the one to do so."""
    if not _REPORTS:
        _REPORTS.append(transport.fail(error))
        if _REPORTS[0]:
            click.echo(f"{text}\n  (said by process {launched()[0]} of {launched()[1]})", err=True)
    return _REPORTS[0]


# The commands ---------------------------------------------------------------------------------------------------------

COMMANDS = {
    "new": "train:new",
    "train": "train:train",
    "launch": "launch:launch",
    "evaluate": "predict:evaluate",
    "predict": "predict:predict",
    "export": "predict:export_command",
    "report": "info:report",
    "generate": "predict:generate",
    "check": "check.command:check",
    "graph": "graph:graph",
    "bench": "timing:bench",
    "plan": "timing:plan",
    "info": "info:info",
    "import": "import_export:import_command",
    "import-weights": "import_export:import_weights_command",
    "export-weights": "import_export:export_weights_command",
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
