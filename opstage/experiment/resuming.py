"""Going on with a run: what must be as it was, what its checkpoint gives back, and how many epochs it has now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..distributed.processes import world
from ..documents import Document
from ..ops.errors import UsageError
from ..training import checkpoint
from ..training.callback import Callback
from ..training.fit import Position
from ..training.state import OptimizerState
from .settings import MAY_CHANGE, Configuration
from .task import Task
from .versions import read_digests, show_digest

LINES = "metrics_lines"
"""Beside the identity in a checkpoint: the lines of metrics.jsonl that were on disk before it."""

_OPTIMIZER = "optimizer"


def identity_of(task: Task, configuration: Configuration) -> dict[str, Any]:
    """Return all that a resumed run must have unchanged, except the state of the loop."""
    provided = {_OPTIMIZER: task.provided} if task.provided else {}
    return {"settings": configuration.literals(), "data": task.data, **provided}


def restore(
    task: Task, folder: Path, identity: Mapping[str, Any], callbacks: Sequence[Callback]
) -> tuple[Position, OptimizerState | None, int | None, int]:
    """Restore the checkpoint; return its position, the optimizer's state, lines of metrics.jsonl, and the run's
    epochs."""
    fabric = world()
    mapped = task.settings.options.zero > 0 or fabric.processes > 1
    snapshot = checkpoint.load(folder, mapped=mapped, verify=fabric.process == 0)
    held = Document(dict(snapshot.config), f"{folder}: the run's identity", "it is no checkpoint of a run")
    settings = held["settings"].object()
    for path, value in identity["settings"].items():
        before = settings.get(path)
        if path not in MAY_CHANGE and before != value:
            raise UsageError(
                f"{folder}: cannot be resumed: its {path} is {before}, but the run's configuration says {value}"
            )
    require_same_data(folder, read_digests(held["data"]), identity["data"])
    began = "" if (kept := held.get(_OPTIMIZER)) is None else kept.text()
    if began != task.provided:
        told = [text or "that of its settings" for text in (began, task.provided)]
        raise UsageError(
            f"{folder}: cannot be resumed: its optimizer was {told[0]}, and now it is {told[1]}; an Optimizer that a "
            "Python program made is given again: opstage.fit(…, optimizer=…, resume=True)"
        )
    lines = held.get(LINES)
    at, batches = snapshot.position, len(task.batches)
    if not (at.epoch == len(at.results) and at.batch <= batches and (at.batch == 0) == (at.samples == 0)):
        raise UsageError(
            f"{folder}: cannot be resumed: it stands after {at.batch} of {batches} batches of epoch {at.epoch + 1}, "
            f"with {len(at.results)} epochs done and {at.samples} samples seen in this one, where no run can stand"
        )
    asked, done = task.settings.run.epochs, at.epoch + (at.batch > 0)
    if asked < done:
        stands = f"{at.epoch} epochs done" if not at.batch else f"begun its epoch {done}"
        raise UsageError(f"{folder}: cannot be resumed for {asked} epochs: it has {stands}; ask for at least {done}")
    state = checkpoint.restore(task.trainer, snapshot, task.optimizer, callbacks)
    epochs = str(settings.get("run.epochs"))
    return at, state, None if lines is None else lines.count(), int(epochs) if epochs.isdecimal() else asked


def prolonged(task: Task, start: Position, epochs: int, callbacks: Sequence[Callback]) -> Position:
    """Return the start position for another number of epochs: a run that had ended continues if it has more."""
    if not start.stopped or task.settings.run.epochs <= epochs:
        return start
    for callback in callbacks:
        callback.extend()
    return replace(start, stopped="")


def extended(task: Task, at: Position, epochs: int) -> str:
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
