"""A run, from its configuration to its last file: data, trainer, loop, and the run directory."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from typing_extensions import override

from ..distributed.processes import world
from ..files import Document
from ..ops.errors import UsageError, require_extra
from ..ops.mesh import parse_mesh
from ..training import checkpoint as checkpoint
from ..training.callback import Callback, Loop
from ..training.callbacks import BestCheckpoint
from ..training.fit import EpochResult, Observer, Position, Saver, fit, require_callbacks
from ..training.state import OptimizerState
from .directory import (
    BEST,
    CHECKPOINT,
    CONFIG,
    METRICS,
    ORIGINS,
    PREPARATION,
    RUN,
    UNSCALED,
    RunDirectory,
    describe_run,
    origins_json,
    other_version,
    read_digests,
    read_preparation,
    read_run,
    show_digest,
)
from .evaluation import model_metrics
from .journal import Journal
from .metrics_log import read_metrics
from .model_files import keep_source
from .processes import (
    Processes,
    Voting,
    agree,
    broadcast_number,
    connect,
    fingerprint,
    raise_together,
    require_processes,
)
from .progress import Unwatched, Watcher
from .report_samples import shown
from .run_setup import Task, prepare
from .settings import MAY_CHANGE_ON_RESUME, Configuration, Settings

# Resuming a run -------------------------------------------------------------------------------------------------------

LINES = "metrics_lines"
"""Beside the identity in a checkpoint: the lines of metrics.jsonl that were on disk before it."""

_OPTIMIZER = "optimizer"


def run_identity(task: Task, configuration: Configuration) -> dict[str, Any]:
    """Return all that a resumed run must have unchanged, except the state of the loop."""
    provided = {_OPTIMIZER: task.provided} if task.provided else {}
    return {"settings": configuration.literals(), "data": task.data, **provided}


def restore(
    task: Task, folder: Path, identity: Mapping[str, Any], callbacks: Sequence[Callback]
) -> tuple[Position, OptimizerState | None, int | None, int]:
    """Restore the checkpoint; return its position, the optimizer's state, lines of metrics.jsonl, and the run's
    epochs."""
    transport = world()
    mapped = task.settings.options.zero > 0 or transport.processes > 1
    snapshot = checkpoint.load(folder, mapped=mapped, verify=transport.process == 0)
    held = Document(dict(snapshot.config), f"{folder}: the run's identity", "it is no checkpoint of a run")
    settings = held["settings"].object()
    for path, value in identity["settings"].items():
        before = settings.get(path)
        if path not in MAY_CHANGE_ON_RESUME and before != value:
            raise UsageError(
                f"{folder}: cannot be resumed: its {path} is {before}, but the run's configuration says {value}"
            )
    require_same_data(folder, read_digests(held["data"]), identity["data"])
    began = "" if (kept := held.get(_OPTIMIZER)) is None else kept.text()
    if began != task.provided:
        optimizers = [text or "that of its settings" for text in (began, task.provided)]
        raise UsageError(
            f"{folder}: cannot be resumed: its optimizer was {optimizers[0]}, and now it is "
            f"{optimizers[1]}; pass an Optimizer that a "
            "Python program made again: opstage.fit(…, optimizer=…, resume=True)"
        )
    lines = held.get(LINES)
    at, batches = snapshot.position, len(task.batches)
    if not (at.epoch == len(at.results) and at.batch <= batches and (at.batch == 0) == (at.samples == 0)):
        raise UsageError(
            f"{folder}: cannot be resumed: it stands after {at.batch} of {batches} batches of epoch {at.epoch + 1}, "
            f"with {len(at.results)} epochs done and {at.samples} samples seen in this one, which is impossible"
        )
    asked, done = task.settings.run.epochs, at.epoch + (at.batch > 0)
    if asked < done:
        stands = f"{at.epoch} epochs done" if not at.batch else f"begun its epoch {done}"
        raise UsageError(f"{folder}: cannot be resumed for {asked} epochs: it has {stands}; ask for at least {done}")
    state = checkpoint.restore(task.trainer, snapshot, task.optimizer, callbacks)
    epochs = str(settings.get("run.epochs"))
    return at, state, None if lines is None else lines.count(), int(epochs) if epochs.isdecimal() else asked


def extend_position(task: Task, start: Position, epochs: int, callbacks: Sequence[Callback]) -> Position:
    """Return the start position for another number of epochs: a run that had ended continues if it has more."""
    if not start.stopped or task.settings.run.epochs <= epochs:
        return start
    for callback in callbacks:
        callback.extend()
    return replace(start, stopped="")


def describe_extension(task: Task, at: Position, epochs: int) -> str:
    """Return the line that reports the new number of epochs."""
    done, optimizer = at.epoch * len(task.batches) + at.batch, task.settings.optimizer
    line = f"goes on to {task.settings.run.epochs} epochs, {task.steps:,} steps, where it was to have {epochs} epochs"
    if at.stopped and task.settings.run.epochs <= epochs:
        return f"{line}; but it has ended: {at.stopped}"
    if at.stopped:
        line = f"{line}; it had ended ({at.stopped}), and what ended it waits anew from here, against the best so far"
    if task.provided or optimizer.schedule == "constant":
        return line
    rate = task.optimizer.scaled(at.lr_scale).step_scalars(done + 1)["lr"]
    return (
        f"{line}; the schedule {optimizer.schedule} is one of {task.steps:,} steps now, its rate {rate:.3g} from here"
    )


def require_same_data(place: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for part in now:
        if before.get(part) != now[part]:
            raise UsageError(
                f"{place}: cannot be resumed: its {part.replace('_', '-')} data have changed since: "
                f"{show_digest(before[part]) if part in before else 'none'} then, {show_digest(now[part])} now"
            )


@final
@dataclass(frozen=True)
class RunOutcome:
    """The result of a run: the results of its epochs, and the seconds that this process spent on it.

    stopped   why a callback has ended it; empty if none has
    shares    a line for each of several processes: its time, how long it waited, what it sent
    """

    results: Sequence[EpochResult]
    seconds: float
    stopped: str = ""
    shares: Sequence[str] = ()


def train(settings: Settings | Configuration, *, resume: bool = False) -> RunOutcome:
    """Train as the settings say, like `opstage train` but silently; with `resume` continue the run in `run.out`.

    Raises `UsageError` for settings, data or a directory that cannot be used.
    """
    configuration = settings if isinstance(settings, Configuration) else Configuration.of(settings)
    task = prepare(configuration.settings)
    return run_task(task, configuration, lambda done, steps: Unwatched(), resume=resume)


def run_task(
    task: Task,
    configuration: Configuration,
    watch: Callable[[int, int], Watcher],
    *,
    resume: bool = False,
    say: Callable[[str], None] | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunOutcome:
    """Train, and keep the files that `run.out` asks for; with `resume` continue from the checkpoint there.

    `say` receives messages; without it, messages about lost data become Python warnings.

    `watch(steps done, all steps)` creates the progress display. An interrupt or an error saves a checkpoint and is then
    re-raised. The callbacks of the settings and `callbacks` are called and saved as in `training.fit`; a resumed run
    needs new instances of the same ones.
    """
    settings = task.settings
    if not task.trainer.executes:
        raise UsageError(
            f"backend {settings.options.backend!r} computes no values, so it cannot train; "
            f"opstage check {settings.run.model} checks the whole training step without training"
        )
    measures = model_metrics(task.model, settings.options)
    best = None if settings.run.out is None else settings.run.out / BEST
    callbacks = (*settings.callbacks.make(best), *callbacks)
    transport = world()
    several, first = transport.processes > 1, transport.process == 0
    of_best = [callback for callback in callbacks if isinstance(callback, BestCheckpoint)]
    for callback in of_best:
        callback.of_run, callback.writes = best, first
    require_callbacks(callbacks, task.trainer, measures, task.test_batches)
    start, state, lines = Position(), None, None
    if several:
        require_processes(task, transport)
        agree(transport, fingerprint(task, configuration))
        connect(task)
    with ExitStack() as stack:
        journal = keeper = None
        if not first:
            word = broadcast_number(transport, 0)
            if word == _GOES_ON:
                assert settings.run.out is not None
                start, state, _, epochs = restore(
                    task, settings.run.out / CHECKPOINT, run_identity(task, configuration), callbacks
                )
                start = extend_position(task, start, epochs, callbacks)
            if word:  # all take part in a checkpoint, since each may hold shards, and all end if it cannot be written
                keeper = _CheckpointSaver(task, None, {}, callbacks=callbacks)
        if first and several and settings.run.out is None:
            broadcast_number(transport, 0)
        if first and settings.run.out is not None:
            directory = stack.enter_context(_directory(settings, task, configuration, resume=resume))
            if resume and (said := other_version(directory.path)):
                (say or _warn)(said)
            identity = run_identity(task, configuration)
            for callback in of_best:
                callback.identity = identity
            whole = checkpoint.exists(directory.path / CHECKPOINT)
            if resume and not whole and read_metrics(directory.path / METRICS, torn_end=True):
                raise UsageError(
                    f"{directory.path} has trained, but its {CHECKPOINT} is missing, so it cannot continue; "
                    "restore it from a copy, or start a new run with another --out, in Python out="
                )
            if several:
                broadcast_number(transport, _GOES_ON if resume and whole else _BEGINS)
            if resume and whole:
                start, state, lines, epochs = restore(task, directory.path / CHECKPOINT, identity, callbacks)
                if epochs != settings.run.epochs:
                    (say or _silent)(describe_extension(task, start, epochs))
                    start = extend_position(task, start, epochs, callbacks)
                    _write_configuration(directory, configuration)  # from now on, the run has this many epochs
            journal = stack.enter_context(Journal(task, configuration, directory, start, say or _silent, lines))
            if journal.gap:
                (say or _warn)(journal.gap)
            keeper = _CheckpointSaver(task, directory.path / CHECKPOINT, identity, journal, callbacks)
        if keeper is not None and state is None:
            # a full disk is noticed now, and a run that ends early has a checkpoint
            state = task.trainer.init_optim(task.optimizer)
            keeper.interrupted(state, start)
        watcher: Watcher = Unwatched()
        if first:
            watcher = stack.enter_context(watch(start.epoch * len(task.batches) + start.batch, task.steps))
        saver: Saver | None = keeper
        if several:
            saver = voting = Voting(keeper, transport)
            stack.enter_context(voting.catch_signals())
        following = _LoopListener(journal)
        processes = Processes(transport, parse_mesh(settings.options.mesh)) if several else None
        if journal is not None:
            journal.processes = processes
        since = time.perf_counter()
        results = fit(
            task.trainer,
            task.optimizer,
            task.batches,
            task.test_batches,
            measures,
            epochs=settings.run.epochs,
            observer=_Observers([o for o in (processes, journal, watcher) if o is not None]),
            state=state,
            start=start,
            saver=saver,
            require_finite=settings.run.require_finite,
            callbacks=(following, *callbacks),
        )
        shares, seconds = [] if processes is None else processes.lines(), time.perf_counter() - since
        if keeper is not None:
            found = shown(task)
            if journal is not None:
                journal.shown = found
        return RunOutcome(results, seconds, following.stopped, shares)


def begin(task: Task, configuration: Configuration) -> Path:
    """Create the directory of a run without steps, with its trainer as it is, for `--resume`."""
    with _directory(task.settings, task, configuration, resume=False) as directory:
        keeper = _CheckpointSaver(task, directory.path / CHECKPOINT, run_identity(task, configuration))
        try:
            keeper.interrupted(task.trainer.init_optim(task.optimizer), Position())
        except BaseException:
            directory.abandon()
            raise
        return directory.path


@final
class _LoopListener(Callback):
    """Gives the journal access to the loop."""

    def __init__(self, journal: Journal | None):
        self._journal = journal
        self._loop: Loop | None = None

    @property
    @override
    def name(self) -> str:
        return ""

    @property
    def stopped(self) -> str:
        return "" if self._loop is None else self._loop.position.stopped

    @override
    def begin(self, loop: Loop) -> None:
        self._loop = loop
        if self._journal is not None:
            self._journal.loop = loop


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
class _CheckpointSaver:
    """Saves a checkpoint after each epoch, every `checkpoint_every` steps within one, and on an interrupt.

    Without a folder it only takes part in the collective save, as all processes but the first do.
    """

    def __init__(
        self,
        task: Task,
        folder: Path | None,
        identity: Mapping[str, Any],
        journal: Journal | None = None,
        callbacks: Sequence[Callback] = (),
    ):
        self._callbacks = callbacks
        self._journal = journal
        self._task = task
        self._folder = folder
        self._identity = identity

    def boundary(self, state: OptimizerState, position: Position) -> None:
        if position.batch == 0 or self._task.trainer.steps_taken % self._task.settings.run.checkpoint_every == 0:
            self.interrupted(state, position)

    def interrupted(self, state: OptimizerState, position: Position) -> None:
        task = self._task
        # everything that the checkpoint refers to must be on disk before it
        lines = {} if self._journal is None else {LINES: self._journal.sync()}
        identity = {**self._identity, **lines}
        snapshot = checkpoint.take_snapshot(
            task.trainer, task.optimizer, state, position, identity, self._callbacks, fetched=False
        )
        with raise_together(world()):
            checkpoint.save(self._folder, snapshot, require_finite=task.settings.run.require_finite)


def _directory(settings: Settings, task: Task, configuration: Configuration, *, resume: bool) -> RunDirectory:
    """Return the locked run directory, with the files that a run starts with."""
    out = settings.run.out
    assert out is not None
    if settings.run.tensorboard:
        require_extra("tensorboard", "tensorboard", "run.tensorboard")
    if settings.run.plot:
        require_extra("matplotlib", "plot", "run.plot")
    if resume:
        directory = RunDirectory.reopen(out)
        try:
            read_preparation(out)  # without it, a resumed run could not be used when it ends
            require_same_data(out, read_run(out / RUN)["data"], task.data)
        except UsageError:
            directory.close()
            raise
        return directory
    directory = RunDirectory.create(out)
    try:
        described = describe_run(
            seed=settings.options.seed,
            model=settings.defined.called,
            parameters=task.trainer.parameter_count,
            data=task.data,
            source=keep_source(directory, settings.defined),
        )
        if task.preparation is not None:
            prepared = json.dumps(task.preparation.to_document(), indent=1) + "\n"
            described["preparation"] = hashlib.sha256(prepared.encode()).hexdigest()
            directory.write(PREPARATION, prepared)
        if task.unscaled is not None:
            described[UNSCALED] = task.unscaled
        directory.write(RUN, json.dumps(described, indent=1) + "\n")
        _write_configuration(directory, configuration)
    except BaseException:
        directory.abandon()
        raise
    return directory


def _write_configuration(directory: RunDirectory, configuration: Configuration) -> None:
    """Write the configuration of a run."""
    kept = configuration.from_anywhere()
    directory.write(ORIGINS, origins_json(kept.literals(), kept.origins))
    directory.write(CONFIG, kept.toml())


_GOES_ON, _BEGINS = 1, 2
"""Sent by process 0, which has the run directory: whether all resume from a checkpoint there."""


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)


def _silent(line: str) -> None:
    """Drop the line, for a silent run."""
