"""The run of `resume_program` with callbacks, whose states are part of what a resume must bring back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from opstage import callbacks
from opstage.data import Loader, Prefetch, from_arrays
from opstage.files import DISK, Disk
from opstage.training import checkpoint
from opstage.training.callback import Callback, Loop
from opstage.training.fit import EpochResult, Position, fit
from opstage.training.snapshot import CallbackValues, Snapshot
from opstage.training.state import OptimizerState
from tests.training import resume_program as program
from tests.training.same import bits, run_bits


class Total(Callback):
    """Adds up losses and parameters of all steps, and gives a metric: a callback of somebody's own."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.bias = np.zeros(5)

    def step(self, loop: Loop, loss: float) -> None:
        self.loss += loss
        self.bias = self.bias + loop.trainer.get_params()["first"]["bias"]

    def gives(self, names: Sequence[str]) -> Sequence[str]:
        return ["total"]

    def evaluated(self, loop: Loop) -> Mapping[str, float]:
        return {"total": self.loss}

    def export(self) -> CallbackValues:
        return CallbackValues({"loss": self.loss}, {"bias": self.bias.copy()})

    def restore(self, values: CallbackValues) -> None:
        self.loss = values.data["loss"]
        self.bias = np.array(values.arrays["bias"])


def slower(loop: Loop, loss: float) -> None:
    """Halves the rate at every fourth step, so that a resume at any boundary must know of it."""
    if loop.trainer.steps_taken % 4 == 0:
        loop.scale_lr(0.5)


CASES: dict[str, Callable[[Path], list[Callback]]] = {
    "own": lambda folder: [Total()],
    "early": lambda folder: [callbacks.EarlyStopping(patience=1, min_delta=100.0)],
    "ema": lambda folder: [callbacks.Ema(0.75), callbacks.ReduceOnPlateau("ema_loss", patience=1, min_delta=9)],
    "best": lambda folder: [Total(), callbacks.BestCheckpoint("total", folder / "best", mode="max")],
    "rates": lambda folder: [callbacks.EachStep(slower)],
    "ended": lambda folder: [callbacks.EachStep(lambda loop, _: loop.stop("enough") if loop.state.t == 9 else None)],
}


class Saver(program.EveryStep):
    """Saves at every boundary, with the states of callbacks."""

    def __init__(self, *given: Any, callbacks: Sequence[Callback]):
        super().__init__(*given)
        self.callbacks = callbacks

    def interrupted(self, state: OptimizerState, position: Position) -> None:
        made = checkpoint.take_snapshot(self.trainer, program.OPTIMIZER, state, position, {}, self.callbacks)
        checkpoint.save(self.folder, made, disk=self.disk)


def run(
    case: str, folder: Path, disk: Disk = DISK, before: program.Nothing = lambda: None, epochs: int = program.EPOCHS
) -> list[EpochResult]:
    """The whole run, or what is left of the one in `folder`."""
    rng = np.random.default_rng(2)
    data = from_arrays(x=rng.standard_normal((program.ROWS, 3)), y=rng.standard_normal((program.ROWS, 2)))
    trainer, state, start, made = program.make_trainer(), None, None, CASES[case](folder)
    if checkpoint.exists(folder):
        snapshot = checkpoint.load(folder)
        state, start = checkpoint.restore(trainer, snapshot, program.OPTIMIZER, made), snapshot.position
    return fit(
        trainer,
        program.OPTIMIZER,
        Prefetch(Loader(data, program.BATCH, seed=7)),
        Loader(data, 10, shuffle=False),
        program.metrics,
        epochs=epochs,
        state=state,
        start=start,
        saver=Saver(folder, trainer, disk, before, callbacks=made),
        callbacks=made,
    )


def all_bits(snapshot: Snapshot) -> dict[str, Any]:
    """All of a run that must not depend on how often it was interrupted, callbacks included."""
    told = {name: (repr(dict(values.data)), bits(values.arrays)) for name, values in snapshot.callbacks.items()}
    position = snapshot.position
    return {**run_bits(replace(snapshot)), "callbacks": told, "loop": (position.lr_scale, position.stopped)}


def main(case: str, folder: str, moment: str) -> None:
    kind, _, number = moment.partition(":")
    disk = program.KillingDisk(int(number)) if kind == "disk" else DISK
    run(case, Path(folder), disk, program.Countdown(int(number)) if kind == "step" else lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
