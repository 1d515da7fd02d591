"""`opstage train [MODEL]`: check a model's shapes, train and report it. `opstage new`: a file to start from."""

from __future__ import annotations

import keyword
import os
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import click

from ..files import write_file
from ..ops.errors import RankError, UsageError, brief, printable
from ..optim.groups import group_lines, group_text
from ..runs.directory import CHECKPOINT, SOURCE
from ..runs.model_files import changes
from ..runs.progress import Watcher, format_metrics, make_watcher, stopped_line
from ..runs.run import RunOutcome, run_task
from ..runs.run_setup import Task, prepare
from ..runs.settings import Configuration, Settings, configure, configure_resumed
from ..training.finite import NotFiniteError
from ..training.fit import EpochResult
from ..training.lr_range import LrRange, lr_range_test
from .commands import (
    OPTION_PATHS,
    PATH,
    Command,
    flag_layer,
    is_quiet,
    model_command,
    quiet_option,
    report_at_once,
    speaks,
    tell,
)
from .exit_codes import UNHEARD, heeding_termination, silence

_HEADINGS = {
    "Training": "epochs lr batch_size data out resume config",
    "Instead of training": "print_config show_groups lr_range compare compare_steps",
    "Mesh": "mesh zero",
    "Output": "no_progress quiet",
}


@model_command(groups=_HEADINGS)
@click.option("--epochs", type=int, metavar="N", help="Passes over the training data (default: the recipe's).")
@click.option("--lr", type=float, metavar="RATE", help="Peak learning rate (default: the recipe's).")
@click.option("--batch-size", type=int, metavar="N", help="Examples per step (default: the recipe's).")
@click.option("--data", metavar="FILE", help="Data file (default: the data of the recipe).")
@click.option("--out", metavar="DIR", help="Save metrics, checkpoints and a report in this new DIR.")
@click.option("--mesh", metavar="AXES", help="Shard batches over the ranks of a mesh, such as data=4.")
@click.option("--zero", type=int, metavar="LEVEL", help="Shard optimizer state (2), parameters too (3): ZeRO.")
@click.option("--resume", type=PATH, metavar="DIR", help="Resume the run in DIR.")
@click.option("--print-config", is_flag=True, help="Print every setting with its source.")
@click.option("--show-groups", is_flag=True, help="Print the optimizer settings of each parameter.")
@click.option("--lr-range", metavar="A,B", help="Train briefly at rates from A to B; print the losses.")
@click.option("--compare", metavar="A,B", help="Run first steps on A and B; print the first op that differs.")
@click.option("--compare-steps", type=int, default=3, show_default=True, metavar="N", help="Number of compared steps.")
@click.option("--no-progress", is_flag=True, help="Print a line per epoch, without a progress bar.")
@quiet_option
def train(
    model: str | None,
    config: Path | None,
    resume: Path | None,
    print_config: bool,
    show_groups: bool,
    lr_range: str | None,
    compare: str | None,
    compare_steps: int,
    no_progress: bool,
    **flags: Any,
) -> int:
    """Train MODEL (cnn by default) and print its metrics on held-out data.

    MODEL is a shipped model or a model file, my_model.py. Set any setting by its dotted name, as in --model.dropout 0.1
    or --optimizer.name adam; --print-config lists all of them.

    A side of --compare is a backend, followed by a device, dtype or options after colons: eager,eager:float64 or
    eager,eager:fast_kernels=false. The exit code is 1 if the sides differ.
    """
    layer = flag_layer(_PATHS, flags)
    if resume is None:
        configuration = configure(model, file=config, flags=[layer])
    elif config is not None:
        raise UsageError("--resume takes the configuration that the run was started with; leave --config out")
    else:
        configuration = configure_resumed(resume, model, flags=[layer])
        say_changed(resume, configuration)
    if print_config:
        click.echo(configuration.toml(), nl=False)
        return 0
    if show_groups:
        task = prepare(configuration.settings)
        click.echo(printable(group_text(task.trainer.moved_by(task.optimizer))))
        return 0
    if lr_range is not None:
        click.echo(str(_range_test(configuration.settings, lr_range)))
        return 0
    if compare is not None:
        from ..runs.backend_comparison import compare as compare_sides

        comparison = compare_sides(configuration.settings, compare.split(","), steps=compare_steps)
        click.echo(str(comparison))
        return 0 if comparison.agree else 1
    with heeding_termination():
        task = prepare(configuration.settings)
        voice = Voice(task.settings.run.out)
        voice.heard = speaks() and not is_quiet()
        _announce(task, voice)

        def watch(done: int, steps: int) -> Watcher:
            return Audible(make_watcher(task.settings.run.epochs, done, steps, bar=not no_progress), voice)

        try:
            outcome = run_task(task, configuration, watch, resume=resume is not None, say=voice.say)
        except KeyboardInterrupt:
            if task.settings.run.out is not None and speaks():
                click.echo(f"saved; opstage train --resume {task.settings.run.out} goes on from here", err=True)
            raise
        except NotFiniteError as error:
            if speaks():
                click.echo(_not_finite(error, task.settings), err=True)
            return 1
    _conclude(task, configuration, outcome, voice)
    return 0


_PATHS = {
    "epochs": "run.epochs",
    "out": "run.out",
    "lr": "optimizer.lr",
    "batch_size": "data.batch_size",
    "data": "data.file",
    "mesh": "options.mesh",
    "zero": "options.zero",
    **OPTION_PATHS,
}


def say_changed(run: Path, configuration: Configuration) -> None:
    """Report which files of a run's model differ from the copies that the run keeps and resumes with."""
    for file in changes(run, configuration.settings.defined):
        click.echo(f"{file} has changed since {run} was started, which means its own copy in {run / SOURCE}", err=True)


def _range_test(settings: Settings, text: str) -> LrRange:
    """Run the learning-rate range test, which keeps nothing."""
    try:
        start, end = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"--lr-range {brief(text)}: expected two rates, as in --lr-range 1e-6,1") from None
    constant = replace(settings.optimizer, schedule="constant")
    task = prepare(replace(settings, optimizer=constant, given=settings.defined))
    return lr_range_test(task.trainer, task.optimizer, task.batches, start=start, end=end)


def _announce(task: Task, voice: Voice) -> None:
    options = task.settings.options
    voice.say(
        f"{task.settings.defined.called}: {task.trainer.parameter_count:,} parameters; shapes of the whole training "
        f"step checked for every batch size in {1e3 * task.check_seconds:.0f} ms"
    )
    voice.say(
        f"data: {len(task.training)} samples to train on, {len(task.held_out)} held out; backend {options.backend} on "
        f"{options.device}, {options.dtype}, seed {options.seed}"
    )
    if task.left_out:
        voice.say(task.left_out)
    if task.settings.optimizer.groups or task.settings.optimizer.freeze:
        for line in group_lines(task.trainer.moved_by(task.optimizer)):
            voice.say(line)


def _not_finite(error: NotFiniteError, settings: Settings) -> str:
    """Return the message of a run stopped by nan or infinity: where, which checkpoint is kept, how to find out more."""
    out = settings.run.out
    again = f"opstage train {settings.run.model} with the same settings and" if out is None else f"--resume {out} with"
    lines = [f"opstage: stopped at {error.place}"]
    if out is not None:
        lines.append(f"  {out / CHECKPOINT} is the last checkpoint whose numbers are all finite")
    if not settings.options.detect_anomaly:
        lines.append(
            f"  {again} --options.detect_anomaly true names the op and the line that made the first such value"
        )
    lines.append(
        "  a smaller --lr or an --optimizer.clip_norm may prevent it; --run.require_finite false goes on regardless"
    )
    return "\n".join(lines)


def _conclude(task: Task, configuration: Configuration, outcome: RunOutcome, voice: Voice) -> None:
    last, counted = outcome.results[-1].held_out, outcome.results[-1].counted
    reached = format_metrics(last)
    if "accuracy" in last and counted:
        right = f"({round(last['accuracy'] * counted)} of {round(counted)})"
        rest = format_metrics({name: value for name, value in last.items() if name != "accuracy"})
        reached = f"{format_metrics({'accuracy': last['accuracy']})} {right}{', ' if rest else ''}{rest}"
    epochs = len(outcome.results)
    voice.say(f"held-out {reached}, after {epochs} epoch{'s' * (epochs != 1)} in {outcome.seconds:.1f} s")
    for line in outcome.shares:
        voice.say(line)
    if outcome.stopped:
        voice.say(stopped_line(epochs, task.settings.run.epochs, outcome.stopped))
    out = configuration.settings.run.out
    if out is not None:
        voice.say(f"saved in {out}: report.html, metrics.jsonl, config.toml, checkpoint")


# Standard output that may fail before the run ends: a closed pipe, a full disk, a lost terminal -----------------------


@final
class Voice:
    """Writes to standard output until that fails.

    Then a run that is kept in a directory continues silently; any other ends with exit code UNHEARD.
    """

    def __init__(self, kept: os.PathLike[str] | None):
        self._kept = kept
        self.heard = True

    def say(self, line: str) -> None:
        """Write a line."""
        if self.heard:
            try:
                click.echo(printable(line))
            except OSError as error:
                self.lost(error)

    def lost(self, error: OSError) -> None:
        """Handle a failure of standard output."""
        self.heard = False
        silence()
        if self._kept is None:
            raise click.exceptions.Exit(UNHEARD)
        with suppress(OSError):
            reason = error.strerror or str(error)
            click.echo(f"opstage: no more output ({reason}); the run continues and is saved in {self._kept}", err=True)


@final
class Audible(AbstractContextManager["Audible"]):
    """A watcher that stops showing progress once standard output fails."""

    def __init__(self, watcher: Watcher, voice: Voice):
        self._watcher = watcher
        self._voice = voice

    def __enter__(self) -> Self:
        self._try("__enter__")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._try("__exit__", kind, error, trace)
        if isinstance(error, RankError):
            report_at_once(error)

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """Show a step."""
        self._try("step", epoch, step, loss, samples)

    def epoch(self, result: EpochResult) -> None:
        """Show an epoch."""
        self._try("epoch", result)

    def _try(self, method: str, *arguments: Any) -> None:
        if self._voice.heard:
            try:
                getattr(self._watcher, method)(*arguments)
            except OSError as error:
                self._voice.lost(error)


# opstage new ----------------------------------------------------------------------------------------------------------

TEMPLATE = "new_model.txt"


@click.command(cls=Command)
@click.argument("name")
@quiet_option
def new(name: str) -> None:
    """Write NAME.py, a model with comments, which runs as it is.

    Then use the file as a model: opstage check NAME.py, opstage train NAME.py --data FILE.
    """
    path = Path(name if name.endswith(".py") else f"{name}.py")
    if not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        raise UsageError(
            f"{path.name}: {path.stem!r} is not a module name; use letters, digits and _, and not a keyword"
        )
    if path.exists():
        raise UsageError(f"{path} exists; choose another name")
    write_file(path, [files(__package__).joinpath(TEMPLATE).read_bytes()])
    tell(f"wrote {path}")
    tell(f"  opstage check {path}    its shapes, for every batch size")
    tell(f"  opstage train {path} --out runs/{path.stem}    on the data of its recipe; --data FILE for yours")
