"""`opstage check TARGET…`: its flags, and what is printed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ...config import Layer
from ...distributed.processes import is_terminal
from ...interpreters.shape_check.formats import FORMATS, render
from ...interpreters.shape_check.formats.document import CheckOutcome
from ...interpreters.shape_check.formats.terminal import render_unusable, suggestion
from ...interpreters.shape_check.rules import RULES
from ...ops.errors import UsageError
from ...ops.readable_amounts import parse_bytes
from ...ops.spec import read_claims
from ...optim import SHIPPED
from ...options import Options
from ..commands import OPTION_PATHS, DottedCommand, dotted_flags, flag_layer, with_option_flags
from .cache import Cache, cache_folder
from .processes import check_each
from .request import Asked, Request, seconds
from .selection import (
    CheckTarget,
    Project,
    excluded_by,
    files_in,
    find_project,
    is_many,
    may_declare,
    read_target,
    rules_named,
    selected,
    with_programs,
)

TIME_LIMIT = 60.0
"""The default number of seconds for each file."""


def _seconds(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Parse a duration: `60`, `60s`, `2m`, `500ms`."""
    found = None if text is None else seconds(text)
    if text is not None and found is None:
        raise click.BadParameter(f"{text!r} is not a duration; expected one such as 60s, 2m or 500ms")
    return found


def _rules(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Parse rule names separated by commas."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    return rules_named(names, f"--{parameter.name}")


def _claims(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Parse claims separated by commas."""
    try:
        return tuple(map(str, read_claims(texts)))
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def _bytes(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Parse an amount of memory: `8GiB`, `500MB`, `1000000`; by default the machine's memory."""
    if text is None:
        return _machine_memory()
    try:
        return parse_bytes(text)
    except UsageError:
        raise click.BadParameter(f"{text!r} is not an amount of memory; expected one such as 8GiB or 500MB") from None


@click.command(cls=DottedCommand)
@click.argument("targets", metavar="[TARGET]…", nargs=-1)
@click.option(
    "--input", "inputs", multiple=True, metavar="TEXT", help="An argument's shape: 'x: B 3 32 32', 'y: B int64'."
)
@click.option("--where", multiple=True, metavar="TEXT", help="A constraint on named dims: 'T <= 1024'.")
@click.option("--param", multiple=True, metavar="TEXT", help="A parameter's shape: 'w: 10 3072', 'blocks.0.w: D D'.")
@click.option(
    "--prove", multiple=True, callback=_claims, metavar="CLAIM,…", help="What outputs read: causal:T, independent:B."
)
@click.option("--ranges", is_flag=True, help="Find where numbers may overflow, or be nan.")
@click.option("--bounds", multiple=True, metavar="TEXT", help="Of inputs: 'x: 0 1', 'params.*: -2 2'.")
@click.option("--initial", is_flag=True, help="For --ranges: the first step, parameters as they are initialised.")
@click.option("--range-dtype", metavar="DTYPE", help="For --ranges and claims: read in this dtype, such as bfloat16.")
@click.option("--params", metavar="NAME", help="The function or value of the file that has the parameters.")
@click.option("--state", metavar="NAME", help="The same for the state of a program that has one.")
@click.option("--train/--eval", default=True, help="In training form (the default) or in evaluation form.")
@click.option(
    "--step/--forward", default=None, help="The whole training step (default for a loss), or the forward pass."
)
@click.option(
    "--optimizer",
    type=click.Choice(tuple(SHIPPED)),
    help="Whose update the step ends with: of a model, its recipe's; else sgd.",
)
@click.option("--checkpoint", metavar="PATH", help="Hold a run directory or .safetensors file against the parameters.")
@click.option("--data", metavar="FILE", help="Hold a data file (.npz, .csv), or `recipe`, against the batch.")
@click.option("--batch-size", type=click.IntRange(1), metavar="N", help="Rows of the data in a batch.")
@click.option("--runs-on", is_flag=True, help="Say on which interpreters, in which dtypes and whether in ONNX it runs.")
@click.option("--table", is_flag=True, help="Add what each block and each op costs.")
@click.option("--at", metavar="B=32,…", default="", help="Sizes for the named dims: costs are numbers then.")
@click.option("--memory", is_flag=True, help="Add the tensor memory that a step takes, per interpreter.")
@click.option("--mesh", metavar="AXES", help="Check the step of a rank of a mesh: data=4, or data=N for every N.")
@click.option(
    "--zero", type=int, metavar="LEVEL", help="With --mesh: share out the optimizer's state (2), parameters too (3)."
)
@click.option(
    "--cluster", metavar="FILE|k=v,…", help="With --mesh: predict the step on 1 to 1,024 ranks of such machines."
)
@click.option("--max-memory", metavar="SIZE", help="Find the largest size that fits; an error where nothing does.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="terminal", show_default=True, help="What to write."
)
@click.option("--suggest", is_flag=True, help="End with all constraints that would make it valid, ready to paste.")
@click.option(
    "--select", multiple=True, callback=_rules, metavar="RULE,…", help="The rules whose warnings count (all)."
)
@click.option("--ignore", multiple=True, callback=_rules, metavar="RULE,…", help="Rules whose warnings do not count.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Files and folders that are passed over in folders.")
@click.option("--rules", is_flag=True, help="List all rules, and check nothing.")
@click.option("--strict/--no-strict", default=None, help="What is not proved, conditions and --ranges, is an error.")
@click.option("--warnings-as-errors/--no-warnings-as-errors", default=None, help="Warnings too end with exit code 1.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing of what is right.")
@click.option("-v", "--verbose", is_flag=True, help="Show the inputs and constraints of every program.")
@click.option("--skip-undeclared", is_flag=True, help="Pass over files in which no function declares its shapes.")
@click.option("--time-limit", callback=_seconds, metavar="TIME", help="For each file (default: 60s).")
@click.option("--cache/--no-cache", "keep", default=True, help="Keep what was found while no file of it changes.")
@click.option("--memory-limit", callback=_bytes, metavar="SIZE", help="For each file (default: the machine's memory).")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A TOML file with any of the settings.")
@with_option_flags
def check(
    targets: tuple[str, ...],
    form: str,
    suggest: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    exclude: tuple[str, ...],
    rules: bool,
    strict: bool | None,
    warnings_as_errors: bool | None,
    quiet: bool,
    verbose: bool,
    skip_undeclared: bool,
    keep: bool,
    time_limit: float | None,
    memory_limit: int | None,
    config: Path | None,
    mesh: str | None,
    zero: int | None,
    **flags: Any,
) -> int:
    """Check programs on shapes alone, for every size of their named dims, without any data.

    A TARGET is a shipped model (cnn by default; configured as by train, for instance --model.dense 64), a file of your
    own with a function in it (my_model.py:loss, package.module:loss), a model file, a file whose functions declare
    their shapes with @opstage.shapes, or a folder or pattern of such files. Each file runs in a process of its own.
    What a project says in [tool.opstage] of pyproject.toml, or in opstage.toml, holds where no flag does.

    Exit code 0: nothing is wrong; 1: errors were found; 2: something could not be checked.
    """
    if rules:
        click.echo("\n".join(f"{name:<24} {about}" for name, about in RULES.items()))
        return 0
    project = find_project(Path.cwd())
    option_flags = {**{name: flags.pop(name) for name in OPTION_PATHS}, "mesh": mesh, "zero": zero}
    chosen = _targets(targets, project, exclude, skip_undeclared)
    users = [target for target in chosen if target.model is None]
    columns = shutil.get_terminal_size().columns if form == "terminal" and _has_colours(sys.stdout) else None
    asked = Asked(
        **flags,
        strict=project.strict if strict is None else strict,
        columns=columns,
        options=_options(config, option_flags, project.options) if users else {},
        settings=dict(dotted_flags()),
        config=None if config is None else str(config),
    )
    outcomes: dict[CheckTarget, list[CheckOutcome]] = {target: [] for target in chosen}
    for target in chosen:
        if target.model is not None:
            from .checks import check_configured

            layers = [flag_layer({**OPTION_PATHS, "mesh": "options.mesh", "zero": "options.zero"}, option_flags)]
            if project.options:
                of_project = _options(config, {}, project.options)
                layers.insert(
                    0, Layer.of({f"options.{name}": value for name, value in of_project.items()}, "the project")
                )
            outcomes[target].append(check_configured(target.model or None, config, layers, asked))
    limit = time_limit or project.time_limit or TIME_LIMIT
    cache = Cache(cache_folder() if keep else None)
    requests = [
        Request(t.word, None if t.file is None else str(t.file), t.module, t.function, asked, limit, memory_limit)
        for t in users
    ]
    for target, found in zip(users, check_each(requests, cache)) if requests else ():
        outcomes[target] += found
    cache.trim()
    project = replace(project, select=select or project.select, ignore=ignore or project.ignore)
    every = [(outcome, target) for target in outcomes for outcome in outcomes[target]]
    whole = [str(t.file.absolute()) if t.file is not None and t.function is None else None for _, t in every]
    shown = selected([outcome for outcome, _ in every], project, whole)
    strictly = project.warnings_as_errors if warnings_as_errors is None else warnings_as_errors
    if not shown and not skip_undeclared and form == "terminal" and not quiet:
        click.echo(f"nothing to check: {_why_none(targets or _included(project), project, exclude)}")
    code = _conclude(shown, form, suggest, strictly, verbose=verbose, quiet=quiet)
    errors = [finding for outcome in shown for finding in outcome.errors]
    if form == "terminal" and not all(
        project.counts(error.rule, None if error.source is None else error.source.file) for error in errors
    ):
        click.echo("--select and --ignore choose among warnings and notes; errors always count")
    return code


def _targets(
    words: tuple[str, ...], project: Project, exclude: tuple[str, ...], skip_undeclared: bool
) -> list[CheckTarget]:
    """Return the targets of the arguments, each once; without arguments those of the project, else the default
    model."""
    excluded = (*project.exclude, *exclude)
    if not words and project.include:
        words = _included(project)
        for word in words:
            if not is_many(word) and not os.path.exists(word.partition(":")[0]):
                raise UsageError(f"the project includes {word}, and there is no such file or folder")
    elif not words:
        return [CheckTarget("", model="")]
    found: dict[CheckTarget, None] = {}
    for word in words:
        if is_many(word):
            files = with_programs(files_in(word, excluded, project.root))
            found |= {CheckTarget(os.path.relpath(file), file=file): None for file in files}
            continue
        target = read_target(word)
        passed = target.file is not None and target.function is None and skip_undeclared
        if (
            passed
            and target.file
            and (excluded_by(target.file, excluded, project.root) or not may_declare(target.file))
        ):
            continue
        found[target] = None
    return [*found]


def _included(project: Project) -> tuple[str, ...]:
    """Return the project's `include` entries, relative to the working directory."""
    return tuple([os.path.relpath(project.root / word) for word in project.include])


def _why_none(words: Sequence[str], project: Project, exclude: Sequence[str]) -> str:
    """Explain why folders and patterns contain nothing to check."""
    patterns = dict.fromkeys(project.exclude, "exclude of the project") | dict.fromkeys(exclude, "--exclude")
    for word in words:
        for file in with_programs(files_in(word, (), project.root)) if is_many(word) else ():
            pattern = excluded_by(file, (*patterns,), project.root)
            if pattern is not None:
                return f"{os.path.relpath(file)} is excluded by {pattern!r} ({patterns[pattern]})"
    return "no file there declares shapes or has a model"


def _conclude(
    outcomes: list[CheckOutcome], form: str, suggest: bool, warnings_as_errors: bool, *, verbose: bool, quiet: bool
) -> int:
    """Print all outcomes and return the exit code, the worst of theirs."""
    code = max((outcome.exit_code(warnings_as_errors) for outcome in outcomes), default=0)
    if form != "terminal":
        click.echo(render(form, outcomes, code), nl=False)
        return code
    colour = _has_colours(sys.stdout)
    shown = [outcome for outcome in outcomes if outcome.unusable is None or outcome.printed or len(outcomes) > 1]
    if shown:
        text = render(
            form, shown, code, colour=colour, verbose=verbose, quiet=quiet, warnings_as_errors=warnings_as_errors
        )
        click.echo(text, nl=False, color=colour)
    for outcome in outcomes:
        if outcome.unusable is not None:
            on_error = _has_colours(sys.stderr)
            click.echo(render_unusable(outcome, colour=on_error), nl=False, err=True, color=on_error)
    if suggest:
        click.echo(suggestion(outcomes) or "no constraint is missing")
    return code


def _has_colours(stream: Any) -> bool:
    """Whether `stream` is a terminal and NO_COLOR does not forbid colours (no-color.org)."""
    return not os.environ.get("NO_COLOR") and is_terminal(stream)


def _options(config: Path | None, flags: dict[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Options set by flags, a file, the environment and the project, by name, in that order of precedence.
    Raises UsageError for values that are not allowed."""
    base = Options()
    if project:
        merged = Options.from_env(base=Options.from_dict(project))
        base = Options.from_dict({name: getattr(merged, name) for name in project})
    base = base if config is None else Options.from_toml(config, base=base)
    given = {name: value for name, value in flags.items() if value is not None}
    chosen = Options.from_dict(given, base=base, source="the command line")
    return {
        name: getattr(chosen, name) for name in Options.__slots__ if getattr(chosen, name) != getattr(Options(), name)
    }


def _machine_memory() -> int | None:
    """Return the bytes of memory of the machine, if the system reports them."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
