"""`opstage check TARGET…`: its flags, and what is printed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ...config import GROUPS, Layer, merge, read_toml
from ...distributed.processes import is_terminal
from ...interpreters.shape_check.formats import FORMATS, render
from ...interpreters.shape_check.formats.document import CheckOutcome
from ...interpreters.shape_check.formats.terminal import render_unusable, suggestion
from ...interpreters.shape_check.rules import RULES
from ...ops.errors import UsageError
from ...ops.readable_amounts import parse_bytes
from ...ops.spec import read_claims
from ...optim import SHIPPED
from ...options import Options, environment
from ..commands import (
    OPTION_PATHS,
    DottedCommand,
    ModelName,
    config_option,
    dotted_flags,
    flag_layer,
    with_option_flags,
)
from .cache import Cache, cache_folder
from .processes import check_each
from .request import Asked, Request, read_seconds
from .selection import (
    CheckTarget,
    Project,
    excluded_by,
    files_in,
    find_project,
    is_many,
    may_declare,
    read_target,
    require_rules,
    selected,
    with_programs,
)

TIME_LIMIT = 60.0
"""The default number of seconds for each file."""


def _parse(read: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the callback of an option that `read` parses if it is given; a UsageError of `read` names the option."""

    def parse(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
        try:
            return read(given) if given not in (None, ()) else given
        except UsageError as error:
            raise click.BadParameter(str(error)) from None

    return parse


def _read_rules(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Parse rule names separated by commas."""
    names = tuple(name.strip() for text in texts for name in text.split(",") if name.strip())
    require_rules(names)
    return names


_PATHS = {**OPTION_PATHS, "mesh": "options.mesh", "zero": "options.zero"}
_HEADINGS = {
    "Program": "inputs where param params state train step optimizer checkpoint data batch_size config",
    "Claims and ranges": "prove ranges bounds initial range_dtype",
    "Cost and memory": "table at memory max_memory runs_on mesh zero cluster",
    "Files": "exclude skip_undeclared keep time_limit memory_limit",
    "Findings": "select ignore rules strict warnings_as_errors",
    "Output": "form suggest quiet verbose",
}


@click.command(cls=DottedCommand, groups=_HEADINGS)
@click.argument("targets", metavar="[TARGET]…", nargs=-1, type=ModelName())
@click.option("--input", "inputs", multiple=True, metavar="TEXT", help="Shape of an argument: 'x: B 3', 'y: B int64'.")
@click.option("--where", multiple=True, metavar="TEXT", help="Constraint on named dims: 'T <= 1024'.")
@click.option("--param", multiple=True, metavar="TEXT", help="Shape of a parameter: 'blocks.0.w: D D'.")
@click.option("--params", metavar="NAME", help="Function or value that has the parameters.")
@click.option("--state", metavar="NAME", help="Function or value that has the state.")
@click.option("--train/--eval", default=True, help="Check in training form (default) or evaluation form.")
@click.option("--step/--forward", default=None, help="Check a training step (default for a loss), or less.")
@click.option(
    "--optimizer", type=click.Choice(tuple(SHIPPED)), metavar="NAME", help="Optimizer used in the checked step."
)
@click.option("--checkpoint", metavar="PATH", help="Compare parameters with a run or a .safetensors file.")
@click.option("--data", metavar="FILE", help="Compare the batch with a .npz or .csv file, or `recipe`.")
@click.option("--batch-size", type=click.IntRange(1), metavar="N", help="Number of rows in a batch of the data.")
@click.option(
    "--prove",
    multiple=True,
    callback=_parse(lambda texts: tuple(map(str, read_claims(texts)))),
    metavar="CLAIM",
    help="Prove claims about outputs: causal:T,independent:B.",
)
@click.option("--ranges", is_flag=True, help="Find values that may overflow or be nan.")
@click.option("--bounds", multiple=True, metavar="TEXT", help="Range of an input: 'x: 0 1', 'params.*: -2 2'.")
@click.option("--initial", is_flag=True, help="With --ranges: assume initial parameters.")
@click.option("--range-dtype", metavar="DTYPE", help="Dtype for --ranges and claims, such as bfloat16.")
@click.option("--table", is_flag=True, help="Print the cost of each block and op.")
@click.option("--at", metavar="B=32,…", default="", help="Sizes of named dims, at which costs are numbers.")
@click.option("--memory", is_flag=True, help="Print the tensor memory of a step, per interpreter.")
@click.option("--max-memory", metavar="SIZE", help="Find the largest open size that fits into this.")
@click.option("--runs-on", is_flag=True, help="Print where it runs: interpreters, dtypes, ONNX.")
@click.option("--mesh", metavar="AXES", help="Check the step of a rank: data=4, or data=N for all N.")
@click.option("--zero", type=int, metavar="LEVEL", help="With --mesh: shard optimizer state (2), parameters (3).")
@click.option("--cluster", metavar="FILE", help="With --mesh: predict 1 to 1,024 ranks of k=v,… machines.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Skip these files in folders.")
@click.option("--skip-undeclared", is_flag=True, help="Skip files in which no function declares its shapes.")
@click.option("--cache/--no-cache", "keep", default=True, help="Reuse results while no file changes (default).")
@click.option("--time-limit", callback=_parse(read_seconds), metavar="TIME", help="Time for each file (default: 60s).")
@click.option(
    "--memory-limit", callback=_parse(parse_bytes), metavar="SIZE", help="Memory for each file (default: all)."
)
@click.option(
    "--select",
    multiple=True,
    callback=_parse(_read_rules),
    metavar="RULE,…",
    help="Count warnings of these rules only.",
)
@click.option(
    "--ignore",
    multiple=True,
    callback=_parse(_read_rules),
    metavar="RULE,…",
    help="Do not count warnings of these rules.",
)
@click.option("--rules", is_flag=True, help="List all rules, and check nothing.")
@click.option("--strict/--no-strict", default=None, help="Treat as errors what is not proved.")
@click.option("--warnings-as-errors/--no-warnings-as-errors", default=None, help="Exit with code 1 for warnings too.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="terminal",
    metavar="NAME",
    help=f"Output format: {', '.join(FORMATS)}.",
)
@click.option("--suggest", is_flag=True, help="Print constraints that would make it valid.")
@click.option("-q", "--quiet", is_flag=True, help="Print only findings.")
@click.option("-v", "--verbose", is_flag=True, help="Print inputs and constraints of every program.")
@config_option
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
    **flags: Any,
) -> int:
    """Check programs on shapes alone, for every size of their named dims.

    A TARGET is a shipped model (cnn by default), a model file, or a function of a file (my_model.py:loss,
    package.module:loss). It may also be a file whose functions declare their shapes with @opstage.shapes, or a folder
    or pattern of such files. A model is configured as by train, for instance --model.dense 64.

    Each file runs in a separate process. Settings in [tool.opstage] of pyproject.toml, or in opstage.toml, apply if no
    flag sets them.

    Exit code 0: no errors; 1: errors were found; 2: something could not be checked.
    """
    if rules:
        click.echo("\n".join(f"{name:<24} {about}" for name, about in RULES.items()))
        return 0
    project = find_project(Path.cwd())
    settings = project.check
    given = flag_layer(_PATHS, {name: flags.pop(name) for name in _PATHS})
    chosen = _targets(targets, project, exclude, skip_undeclared)
    users = [target for target in chosen if target.model is None]
    columns = shutil.get_terminal_size().columns if form == "terminal" and _has_colours(sys.stdout) else None
    asked = Asked(
        **flags,
        strict=settings.strict if strict is None else strict,
        columns=columns,
        options=_options(project, config, given) if users else {},
        settings=dict(dotted_flags()),
        config=None if config is None else str(config),
    )
    outcomes: dict[CheckTarget, list[CheckOutcome]] = {target: [] for target in chosen}
    for target in chosen:
        if target.model is not None:
            from .checks import check_configured

            outcomes[target].append(check_configured(target.model or None, config, [given], asked, [project.options]))
    limit = time_limit or settings.time_limit or TIME_LIMIT
    cache = Cache(cache_folder() if keep else None)
    memory = memory_limit or _machine_memory()
    requests = [
        Request(t.word, None if t.file is None else str(t.file), t.module, t.function, asked, float(limit), memory)
        for t in users
    ]
    for target, found in zip(users, check_each(requests, cache)) if requests else ():
        outcomes[target] += found
    cache.trim()
    settings = replace(settings, select=select or settings.select, ignore=ignore or settings.ignore)
    project = replace(project, check=settings)
    every = [(outcome, target) for target in outcomes for outcome in outcomes[target]]
    whole = [str(t.file.absolute()) if t.file is not None and t.function is None else None for _, t in every]
    shown = selected([outcome for outcome, _ in every], project, whole)
    strictly = settings.warnings_as_errors if warnings_as_errors is None else warnings_as_errors
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
    excluded = (*project.check.exclude, *exclude)
    if not words and project.check.include:
        words = _included(project)
        for word in words:
            if not is_many(word) and not os.path.exists(word.partition(":")[0]):
                raise UsageError(f"include of the project: {word} is not a file or folder")
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
    return tuple([os.path.relpath(project.root / word) for word in project.check.include])


def _why_none(words: Sequence[str], project: Project, exclude: Sequence[str]) -> str:
    """Explain why folders and patterns contain nothing to check."""
    patterns = dict.fromkeys(project.check.exclude, "exclude of the project") | dict.fromkeys(exclude, "--exclude")
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


def _options(project: Project, config: Path | None, flags: Layer) -> dict[str, Any]:
    """Return the options that the project, a file, the environment or flags set, by name; later sources override.
    Raises UsageError, with the source, for values that are not allowed."""
    layers = [project.options, *([_options_of(config)] if config is not None else []), environment(), flags]
    own = [replace(each, values={k: v for k, v in each.values.items() if k.startswith("options.")}) for each in layers]
    merged = merge({"options": Options}, own)
    return {path.partition(".")[2]: merged.values[path] for each in own for path in each.values}


def _options_of(file: Path) -> Layer:
    """Return the options of a file of settings; those of models are skipped. A file without tables has options only."""
    layer = read_toml(file, {GROUPS})
    if any("." in path for path in layer.values):
        return layer
    return Layer.of({"options": layer.values}, str(file))


def _machine_memory() -> int | None:
    """Return the bytes of memory of the machine, if the system reports them."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
