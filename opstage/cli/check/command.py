"""`opstage check TARGET…`: its flags, and what is printed."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from ...interpreters.shape_check.formats import FORMATS, CheckOutcome, render
from ...interpreters.shape_check.formats.terminal import render_unusable, suggestion
from ...ops.amounts import parse_bytes
from ...ops.errors import UsageError
from ...options import Options
from ...training.optim import SHIPPED
from ..flags import OPTION_PATHS, DottedCommand, dotted_flags, flag_layer, with_option_flags
from .process import check_all
from .request import Asked, Request
from .target import CheckTarget, may_declare, read_target


def _seconds(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """`60`, `60s`, `2m`, `500ms`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?", text.strip())
    seconds = float(match[1]) * {"ms": 1e-3, "m": 60.0}.get(match[2] or "s", 1.0) if match is not None else 0.0
    if seconds <= 0:
        raise click.BadParameter(f"{text!r} is not a duration; expected one such as 60s, 2m or 500ms")
    return seconds


def _bytes(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """`8GiB`, `500MB`, `1000000`; without it the machine's memory."""
    if text is None:
        return _machine_memory()
    try:
        return parse_bytes(text)
    except UsageError:
        raise click.BadParameter(f"{text!r} is no amount of memory; expected one such as 8GiB or 500MB") from None


@click.command(cls=DottedCommand)
@click.argument("targets", metavar="[TARGET]…", nargs=-1)
@click.option(
    "--input", "inputs", multiple=True, metavar="TEXT", help="An argument's shape: 'x: B 3 32 32', 'y: B int64'."
)
@click.option("--where", multiple=True, metavar="TEXT", help="A constraint on named dims: 'T <= 1024'.")
@click.option("--param", multiple=True, metavar="TEXT", help="A parameter's shape: 'w: 10 3072', 'blocks.0.w: D D'.")
@click.option("--params", metavar="NAME", help="The function or value of the file that has the parameters.")
@click.option("--state", metavar="NAME", help="The same for the state of a program that has one.")
@click.option("--train/--eval", default=True, help="In training form (the default) or in evaluation form.")
@click.option(
    "--step/--forward", default=None, help="The whole training step (default for a loss), or the forward pass."
)
@click.option("--optimizer", type=click.Choice(tuple(SHIPPED)), help="Whose update the step ends with.")
@click.option("--checkpoint", metavar="PATH", help="Hold a run directory or .safetensors file against the parameters.")
@click.option("--data", metavar="FILE", help="Hold a data file (.npz, .csv), or `recipe`, against the batch.")
@click.option("--batch-size", type=click.IntRange(1), metavar="N", help="Rows of the data in a batch.")
@click.option("--runs-on", is_flag=True, help="Say on which interpreters, in which dtypes and whether in ONNX it runs.")
@click.option("--table", is_flag=True, help="Add what each block and each op costs.")
@click.option("--at", metavar="B=32,…", default="", help="Sizes for the named dims: costs are numbers then.")
@click.option("--memory", is_flag=True, help="Add the tensor memory that a step takes, per interpreter.")
@click.option("--max-memory", metavar="SIZE", help="Find the largest size that fits; an error where nothing does.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="terminal", show_default=True, help="What to write."
)
@click.option("--suggest", is_flag=True, help="End with all constraints that would make it valid, ready to paste.")
@click.option("--strict", is_flag=True, help="Undecided conditions are errors.")
@click.option("--warnings-as-errors", is_flag=True, help="Warnings too end with exit code 1.")
@click.option("--skip-undeclared", is_flag=True, help="Pass over files in which no function declares its shapes.")
@click.option(
    "--time-limit", callback=_seconds, default="60s", show_default=True, metavar="TIME", help="For each file."
)
@click.option("--memory-limit", callback=_bytes, metavar="SIZE", help="For each file (default: the machine's memory).")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A TOML file with any of the settings.")
@with_option_flags
def check(
    targets: tuple[str, ...],
    form: str,
    suggest: bool,
    warnings_as_errors: bool,
    skip_undeclared: bool,
    time_limit: float,
    memory_limit: int | None,
    config: Path | None,
    **flags: Any,
) -> int:
    """Check programs on shapes alone, for every size of their named dims, without any data.

    A TARGET is a shipped model (cnn by default; configured as by train, for instance --model.dense 64), a file of your
    own with a function in it (my_model.py:loss, package.module:loss), or a file whose functions declare their shapes
    with @opstage.shapes. A file runs in a process of its own.

    Exit code 0: nothing is wrong; 1: errors were found; 2: something could not be checked.
    """
    option_flags = {name: flags.pop(name) for name in OPTION_PATHS}
    chosen = [read_target(word) for word in targets] or [CheckTarget("", model="")]
    if skip_undeclared:
        chosen = [t for t in chosen if t.file is None or t.function is not None or may_declare(t.file)]
    users = [target for target in chosen if target.model is None]
    if users and dotted_flags():
        raise UsageError(f"--{next(iter(dotted_flags()))} is a setting of shipped models, and {users[0].word} is none")
    columns = shutil.get_terminal_size().columns if form == "terminal" and _has_colours(sys.stdout) else None
    asked = Asked(**flags, columns=columns, options=_options(config, option_flags) if users else {})
    outcomes: dict[CheckTarget, list[CheckOutcome]] = {target: [] for target in chosen}
    for target in chosen:
        if target.model is not None:
            from .shipped import check_configured  # with all that training needs

            layer = flag_layer(OPTION_PATHS, option_flags)
            outcomes[target].append(check_configured(target.model or None, config, layer, asked))
    requests = [_request(target, asked, time_limit, memory_limit) for target in outcomes if target.model is None]
    for outcome in check_all(requests) if requests else []:
        target = next(t for t in users if outcome.target == t.word or outcome.target.startswith(f"{t.word}:"))
        outcomes[target].append(outcome)
    every = [outcome for target in outcomes for outcome in outcomes[target]]
    return _conclude(every, form, suggest, warnings_as_errors)


def _request(target: CheckTarget, asked: Asked, time_limit: float, memory_limit: int | None) -> Request:
    return Request(
        target.word,
        None if target.file is None else str(target.file),
        target.module,
        target.function,
        asked,
        time_limit,
        memory_limit,
    )


def _conclude(outcomes: list[CheckOutcome], form: str, suggest: bool, warnings_as_errors: bool) -> int:
    """Print all outcomes; the exit code, which is the worst of theirs."""
    code = max((outcome.exit_code(warnings_as_errors) for outcome in outcomes), default=0)
    if form != "terminal":
        click.echo(render(form, outcomes, code), nl=False)
        return code
    colour = _has_colours(sys.stdout)
    shown = [outcome for outcome in outcomes if outcome.unusable is None or outcome.printed or len(outcomes) > 1]
    if shown:
        click.echo(render(form, shown, code, colour=colour), nl=False, color=colour)
    for outcome in outcomes:
        if outcome.unusable is not None:
            on_error = _has_colours(sys.stderr)
            click.echo(render_unusable(outcome, colour=on_error), nl=False, err=True, color=on_error)
    if suggest:
        click.echo(suggestion(outcomes) or "no constraint is missing")
    return code


def _has_colours(stream: Any) -> bool:
    """A terminal that was not told to be plain (no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and bool(stream.isatty())


def _options(config: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """The Options that a file and the flags set, by name. Raises UsageError for values that are not allowed."""
    base = Options() if config is None else Options.from_toml(config)
    given = {name: value for name, value in flags.items() if value is not None}
    chosen = Options.from_dict(given, base=base, source="the command line")
    return {
        name: getattr(chosen, name) for name in Options.__slots__ if getattr(chosen, name) != getattr(Options(), name)
    }


def _machine_memory() -> int | None:
    """Bytes of memory that the machine has, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
