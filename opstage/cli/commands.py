"""The commands and what they share: flags by dotted path (`--model.depth 6` sets any field of the configuration),
groups of options in --help, completion, and the end of a command that runs as several processes."""

from __future__ import annotations

import io
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem
from typing_extensions import override

from .. import __version__
from ..config import GROUPS, Layer, hints_of
from ..distributed.processes import ENDED, NotJoinedError, launched
from ..ops.dims.scope import LARGEST_SIZE
from ..ops.errors import OpstageError, RankError, UsageError, brief, nearest, printable
from .exit_codes import INTERRUPTED, TERMINATED, UNHEARD, EndAtOnce, Terminated, silence

if TYPE_CHECKING:
    from ..distributed.transport import Transport
    from ..runs.settings import Settings


_DOTTED = re.compile(r"--([A-Za-z_]\w*(?:\.\w+)+)(?:=(.*))?", re.DOTALL)
_META = "opstage.dotted"
_INTERPRETER = {"Interpreter": "backend device dtype seed"}


class Command(click.Command):
    """A command whose options are listed in groups, each a heading and the names of its parameters."""

    def __init__(self, *args: Any, groups: Mapping[str, str] | None = None, **named: Any):
        super().__init__(*args, **named)
        self.groups = {**(groups or {}), **_INTERPRETER}

    @override
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        rest = {each.name: record for each in options if (record := each.get_help_record(ctx)) is not None}
        grouped = {
            heading: [rest.pop(name) for name in names.split() if name in rest]
            for heading, names in {"Options": "", **self.groups}.items()
        }
        grouped["Output" if "Output" in grouped else "Options"] += rest.values()
        for heading, rows in grouped.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    @override
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if any(isinstance(parameter.type, ModelName) for parameter in self.params):
            from ..models import MODELS

            with formatter.section("Shipped models"):
                formatter.write_text(", ".join(sorted(MODELS)))
        super().format_epilog(ctx, formatter)


class DottedCommand(Command):
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

    @override
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        flags = [f"--{path}" for path in _settings()] if incomplete.startswith("--") else []
        found = [CompletionItem(flag) for flag in flags if flag.startswith(incomplete)]
        return [*(_values_of_open_flag(ctx, incomplete) or ()), *found, *super().shell_complete(ctx, incomplete)]


# Shell completion -----------------------------------------------------------------------------------------------------


def _settings() -> dict[str, Any]:
    """Return the annotations of all settings that do not depend on the model, by dotted path."""
    from ..runs.settings import Settings

    tables = {table: cls for table, cls in hints_of(Settings).items() if isinstance(cls, type)}
    return {f"{table}.{name}": kind for table, cls in tables.items() for name, kind in hints_of(cls).items()}


def _values_of_open_flag(ctx: click.Context, incomplete: str) -> list[CompletionItem] | None:
    """Return the values of a dotted flag that is the last word; None if there is no such flag."""
    path = next((path for path, value in ctx.meta.get(_META, {}).items() if value is None), None)
    if path is None:
        return None
    kind = _settings().get(path)
    values = get_args(kind) if get_origin(kind) is Literal else _backends() if path == "options.backend" else ()
    return [CompletionItem(value) for value in values if value.startswith(incomplete)]


def _backends() -> Sequence[str]:
    from ..interpreters.registry import backends

    return backends()


class ModelName(click.types.StringParamType):
    """A shipped model, or a path; completed as both."""

    name = "model"

    @override
    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from ..models import MODELS

        values = _values_of_open_flag(ctx, incomplete)
        if values is not None:
            return values
        models = [CompletionItem(name) for name in sorted(MODELS) if name.startswith(incomplete)]
        return [*models, CompletionItem(incomplete, type="file")]


def completed_by(values: Callable[[], Sequence[str]]) -> Callable[..., list[str]]:
    """Return a completion that offers `values`."""
    return lambda ctx, param, incomplete: [value for value in values() if value.startswith(incomplete)]


# Flags that several commands have -------------------------------------------------------------------------------------


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


_FLAGS = (
    click.option("--seed", type=int, metavar="N", help="Seed of initial values, shuffling and random ops."),
    click.option(
        "--dtype",
        metavar="NAME",
        shell_complete=completed_by(lambda: ("float32", "float64", "exact")),
        help="Dtype of floating inputs: float32, float64, exact.",
    ),
    click.option(
        "--device",
        metavar="NAME",
        shell_complete=completed_by(lambda: ("cpu", "cuda")),
        help="Device: cpu, cuda, or cuda:1 for one of several.",
    ),
    click.option(
        "--backend",
        metavar="NAME",
        shell_complete=completed_by(_backends),
        help="Interpreter: eager, compiled, shape_check, …",
    ),
)


def with_option_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --backend, --device, --dtype and --seed."""
    for decorate in _FLAGS:
        command = decorate(command)
    return command


PATH = click.Path(path_type=Path)
config_option = click.option("--config", type=PATH, metavar="FILE", help="Read any of the settings from a TOML file.")


def model_command(**named: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Return the decorator of a command of a MODEL that any setting configures, by --config and flags."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        function = with_option_flags(config_option(function))
        function = click.argument("model", required=False, type=ModelName())(function)
        return click.command(cls=DottedCommand, **named)(function)

    return decorate


_QUIET = "opstage.quiet"


def _set_quiet(context: click.Context, parameter: click.Parameter, quiet: bool) -> None:
    context.meta[_QUIET] = quiet


quiet_option = click.option(
    "-q", "--quiet", is_flag=True, expose_value=False, callback=_set_quiet, help="Print errors only."
)


def is_quiet() -> bool:
    """Return whether the running command has --quiet."""
    return bool(click.get_current_context().meta.get(_QUIET))


def tell(line: str) -> None:
    """Print a line about what a command has done, unless it has --quiet."""
    if not is_quiet():
        click.echo(printable(line))


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

GROUPED = {
    "Models": {
        "new": ("train:new", "Write a model file to start from."),
        "check": ("check.command:check", "Check shapes for every size of the named dims."),
        "graph": ("graph:graph", "Write a model as a graph: text, SVG, HTML, ONNX."),
        "plan": ("timing:plan", "Predict time and memory of a training step."),
        "bench": ("timing:bench", "Time a training step, and each of its kernels."),
    },
    "Runs": {
        "train": ("train:train", "Train a model and print its held-out metrics."),
        "launch": ("launch:launch", "Run a command on several processes."),
        "evaluate": ("predict:evaluate", "Print the metrics of a trained model."),
        "predict": ("predict:predict", "Predict for every row of a data file."),
        "generate": ("predict:generate", "Continue a text with a trained gpt."),
        "report": ("info:report", "Compare runs: results, settings and data."),
    },
    "Interoperability": {
        "export": ("predict:export_command", "Write a trained model as ONNX or safetensors."),
        "import": ("import_export:import_command", "Write an ONNX file as Python source in ops."),
        "export-weights": ("import_export:export_weights_command", "Write the weights of a run as safetensors."),
        "import-weights": ("import_export:import_weights_command", "Load weights of another library into a model."),
    },
    "Tools": {
        "info": ("info:info", "Print versions, BLAS, threads and GPUs."),
        "verify": ("verify:verify", "Prove or refute a VNN-LIB property of a model."),
    },
}
"""The commands by heading: the module and name of each, imported when used, and its summary."""

COMMANDS = {name: place for commands in GROUPED.values() for name, (place, _) in commands.items()}

FIRST_STEPS = """\
Opstage runs, differentiates and checks models that are written once.

First steps:
  opstage new my_model         write my_model.py, which runs as it is
  opstage check my_model.py    check its shapes, for every batch size
  opstage train my_model.py    train it; or opstage train mlp, a shipped model
  opstage --help               list all commands"""


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
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in COMMANDS and args[0][:1] != "-" and not ctx.resilient_parsing:
            raise click.UsageError(f"unknown command {brief(args[0])}{nearest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in GROUPED.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<14}", summary) for name, (_, summary) in commands.items()])

    @override
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        every = {name: summary for commands in GROUPED.values() for name, (_, summary) in commands.items()}
        found = [CompletionItem(name, help=every[name]) for name in sorted(every) if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

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
    warnings.filterwarnings("default", r".*options\.\w+ is now ", DeprecationWarning)  # Python hides them
    try:
        code = cli.main(standalone_mode=False, prog_name="opstage")
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError:
        click.echo(FIRST_STEPS, err=True)
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
