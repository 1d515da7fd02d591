"""A run, from its configuration to its last file: data, trainer, loop, and what the directory keeps of it."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from ..documents import Document
from ..ops.errors import UsageError
from ..training import checkpoint
from ..training.fit import EpochResult, Observer, Position, fit
from ..training.optimizer_state import OptimizerState
from .directory import CHECKPOINT, CONFIG, ORIGINS, RUN, RunDirectory
from .extras import require_extra
from .journal import Journal
from .origins import origins_json
from .settings import MAY_CHANGE, Configuration, Settings
from .task import Task, prepare
from .versions import describe_run, read_digests, read_run


class Watcher(Observer, AbstractContextManager[Any], Protocol):
    """Someone who is shown the progress of a run."""


@final
@dataclass(frozen=True)
class RunOutcome:
    """The result of a run: the results of its epochs, and the seconds that this process spent on it."""

    results: Sequence[EpochResult]
    seconds: float


def train(settings: Settings | Configuration, *, resume: bool = False) -> RunOutcome:
    """Train what the settings say, as `opstage train` does, without a word; with `resume` go on in `run.out`.

    Raises `UsageError` for settings, data or a directory that cannot be used.
    """
    configuration = settings if isinstance(settings, Configuration) else Configuration.of(settings)
    task = prepare(configuration.settings)
    return run_task(task, configuration, lambda done, steps: _Unwatched(), resume=resume)


def run_task(
    task: Task,
    configuration: Configuration,
    watch: Callable[[int, int], Watcher],
    *,
    resume: bool = False,
    say: Callable[[str], None] | None = None,
) -> RunOutcome:
    """Train, keeping what `run.out` asks for; with `resume` go on from the checkpoint there.

    `say` is told in words what else there is to know; without it what is lost is a Python warning.

    `watch(steps done, all steps)` makes the one who is shown the progress. An interrupt saves a checkpoint, and then
    goes on its way; so does an error.
    """
    settings = task.settings
    if not task.trainer.executes:
        raise UsageError(
            f"backend {settings.options.backend!r} computes no values, so nothing is trained on it; "
            f"opstage check {settings.run.model} checks the whole training step without training"
        )
    start, state, lines = Position(), None, None
    with ExitStack() as stack:
        journal = keeper = None
        if settings.run.out is not None:
            directory = stack.enter_context(_directory(settings, task, configuration, resume=resume))
            identity = {"settings": configuration.literals(), "data": task.data}
            if resume and checkpoint.exists(directory.path / CHECKPOINT):
                start, state, lines = _restore(task, directory.path / CHECKPOINT, identity)
            journal = stack.enter_context(Journal(task, configuration, directory, start, say or _silent, lines))
            if journal.gap:
                (say or _warn)(journal.gap)
            keeper = _Keeper(task, directory.path / CHECKPOINT, identity, journal)
            if state is None:  # a folder without room for a checkpoint says so now, and a run that ends early has one
                state = task.trainer.init_optim(task.optimizer)
                keeper.interrupted(state, start)
        watcher = stack.enter_context(watch(start.epoch * len(task.batches) + start.batch, task.steps))
        since = time.perf_counter()
        results = fit(
            task.trainer,
            task.optimizer,
            task.batches,
            task.test_batches,
            task.model.metrics,
            epochs=settings.run.epochs,
            observer=_Observers([o for o in (journal, watcher) if o is not None]),
            state=state,
            start=start,
            saver=keeper,
            require_finite=settings.run.require_finite,
        )
        return RunOutcome(results, time.perf_counter() - since)


def begin(task: Task, configuration: Configuration) -> Path:
    """The directory of a run that has taken no step, its trainer as it stands: `--resume` goes on from there."""
    with _directory(task.settings, task, configuration, resume=False) as directory:
        keeper = _Keeper(task, directory.path / CHECKPOINT, {"settings": configuration.literals(), "data": task.data})
        try:
            keeper.interrupted(task.trainer.init_optim(task.optimizer), Position())
        except BaseException:
            directory.abandon()
            raise
        return directory.path


@final
class _Unwatched(AbstractContextManager["_Unwatched"]):
    """Nobody is shown the progress."""

    def __exit__(self, *exception: object) -> None:
        return None

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        pass

    def epoch(self, result: EpochResult) -> None:
        pass


@final
class _Observers:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]):
        self._observers = observers

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        for observer in self._observers:
            observer.step(epoch, step, loss, samples)

    def epoch(self, result: EpochResult) -> None:
        for observer in self._observers:
            observer.epoch(result)


@final
class _Keeper:
    """Saves a checkpoint after each epoch, every so many steps within one, and on an interrupt."""

    def __init__(self, task: Task, folder: Path, identity: Mapping[str, Any], journal: Journal | None = None):
        self._journal = journal
        self._task = task
        self._folder = folder
        self._identity = identity

    def boundary(self, state: OptimizerState, position: Position) -> None:
        if position.batch == 0 or self._task.trainer.steps_taken % self._task.settings.run.checkpoint_every == 0:
            self.interrupted(state, position)

    def interrupted(self, state: OptimizerState, position: Position) -> None:
        task = self._task
        # what the checkpoint says was written is on the disk before it is
        lines = {} if self._journal is None else {_LINES: self._journal.sync()}
        identity = {**self._identity, **lines}
        snapshot = checkpoint.take_snapshot(task.trainer, task.optimizer, state, position, identity)
        checkpoint.save(self._folder, snapshot, require_finite=task.settings.run.require_finite)


def _directory(settings: Settings, task: Task, configuration: Configuration, *, resume: bool) -> RunDirectory:
    """The run directory, held and with the files that a run begins with."""
    out = settings.run.out
    assert out is not None
    if settings.run.tensorboard:
        require_extra("tensorboard", "tensorboard", "run.tensorboard")
    if settings.run.plot:
        require_extra("matplotlib", "plot", "run.plot")
    if resume:
        directory = RunDirectory.reopen(out)
        try:
            _require_same_data(out, read_run(out / RUN)["data"], task.data)
        except UsageError:
            directory.close()
            raise
        return directory
    described = describe_run(
        seed=settings.options.seed, model=settings.run.model, parameters=task.trainer.parameter_count, data=task.data
    )
    directory = RunDirectory.create(out)
    try:
        directory.write(RUN, json.dumps(described, indent=1) + "\n")
        kept = configuration.from_anywhere()
        directory.write(ORIGINS, origins_json(kept.literals(), kept.origins))
        directory.write(CONFIG, kept.toml())
    except BaseException:
        directory.abandon()
        raise
    return directory


_LINES = "metrics_lines"


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)


def _silent(line: str) -> None:
    """For who asked for a run without a word."""


def _restore(
    task: Task, folder: Path, identity: Mapping[str, Any]
) -> tuple[Position, OptimizerState | None, int | None]:
    """Where the checkpoint stands, the optimizer's state there, and the lines of metrics.jsonl, where it says."""
    snapshot = checkpoint.load(folder)
    held = Document(dict(snapshot.config), f"{folder}: the run's identity", "it is no checkpoint of a run")
    settings = held["settings"].object()
    for path, value in identity["settings"].items():
        before = settings.get(path)
        if path not in MAY_CHANGE and before != value:
            raise UsageError(
                f"{folder}: cannot be resumed: its {path} is {before}, but the run's configuration says {value}"
            )
    _require_same_data(folder, read_digests(held["data"]), identity["data"])
    lines = held.get(_LINES)
    at, batches = snapshot.position, len(task.batches)
    if not (at.epoch == len(at.results) and at.batch <= batches and (at.batch == 0) == (at.samples == 0)):
        raise UsageError(
            f"{folder}: cannot be resumed: it stands after {at.batch} of {batches} batches of epoch {at.epoch + 1}, "
            f"with {len(at.results)} epochs done and {at.samples} samples seen in this one, where no run can stand"
        )
    state = checkpoint.restore(task.trainer, snapshot, task.optimizer)
    return at, state, None if lines is None else lines.count()


def _require_same_data(place: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for part in now:
        if before.get(part) != now[part]:
            raise UsageError(
                f"{place}: cannot be resumed: its {part.replace('_', '-')} data have changed since: "
                f"{_data_line(before.get(part))} then, {_data_line(now[part])} now"
            )


def _data_line(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return "none"
    arrays = ", ".join(f"{name} {text[:-52]}" for name, text in part["arrays"].items())
    return f"{part['rows']} rows ({arrays})"
