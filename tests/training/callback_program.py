"""The run of `resume_program` with callbacks, whose states are part of what a resume must bring back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from opstage import callbacks
from opstage.files import DISK, Disk
from opstage.training.callback import Callback, Loop
from opstage.training.fit import EpochResult
from opstage.training.snapshot import CallbackValues, Snapshot
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


def run(
    case: str, folder: Path, disk: Disk = DISK, before: program.Nothing = lambda: None, epochs: int = program.EPOCHS
) -> list[EpochResult]:
    """The whole run, or what is left of the one in `folder`."""
    return program.run(folder, disk, before, epochs=epochs, callbacks=CASES[case](folder))


def all_bits(snapshot: Snapshot) -> dict[str, Any]:
    """All of a run that must not depend on how often it was interrupted, callbacks included."""
    told = {name: (repr(dict(values.data)), bits(values.arrays)) for name, values in snapshot.callbacks.items()}
    position = snapshot.position
    return {**run_bits(replace(snapshot)), "callbacks": told, "loop": (position.lr_scale, position.stopped)}
