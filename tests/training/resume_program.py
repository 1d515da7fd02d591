"""A small training run that saves at every step; `python -m tests.training.resume_program FOLDER MOMENT` kills itself.

MOMENT is `never`, `step:N` (killed after the N-th step, before its save) or `disk:N` (killed before the N-th call by
which a save reaches the disk). It has all that a resume must bring back: dropout, running statistics, a schedule, an
optimizer with moments, shuffled epochs, and batches that another thread fetches.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opstage import Aux, Spec, optim, scalar_trainer
from opstage.data import Loader, Prefetch, from_arrays
from opstage.files import DISK, Disk
from opstage.ops.derived import dropout
from opstage.optim import schedule
from opstage.training import checkpoint
from opstage.training.callback import Callback
from opstage.training.fit import EpochResult, Position, fit
from opstage.training.state import OptimizerState
from opstage.training.trainer import ScalarTrainer

EPOCHS = 3
ROWS, BATCH = 22, 4
STEPS = EPOCHS * 6
OPTIMIZER = optim.adamw(lr=schedule.warmup_cosine(0.05, warmup_steps=3, total_steps=STEPS))

Nothing = Callable[[], None]


def loss(ops: Any, params: Any, state: Any, x: Any, y: Any, *, train: bool = False) -> Any:
    h = ops.tanh(ops.linear(params["first"]["weight"], params["first"]["bias"], x))
    mean = ops.reduce_mean(h, axis=0)
    running = ops.add(ops.scale(state["running"], c=0.9), ops.scale(ops.detach(mean), c=0.1))
    h = ops.sub(h, ops.broadcast_to(running, shape=h.shape))
    out = ops.linear(params["second"], None, dropout(ops, h, p=0.25, train=train))
    value = ops.mse_loss(out, y)
    return value, Aux(state={"running": running}, metrics={"mean": ops.sum(mean)})


def metrics(ops: Any, params: Any, state: Any, x: Any, y: Any) -> Any:
    value, _ = loss(ops, params, state, x, y)
    return {"loss": ops.mul(value, ops.const(float(x.shape[0])))}


def make_trainer(width: int = 5, dtype: str = "float32") -> ScalarTrainer:
    from opstage import Options

    rng = np.random.default_rng(1)
    params = {
        "first": {"weight": rng.standard_normal((width, 3)), "bias": np.zeros(width)},
        "second": rng.standard_normal((2, width)),
    }
    state = {"running": np.zeros(width)}
    options = Options(dtype=dtype)  # type: ignore[arg-type]
    return scalar_trainer(loss, params, Spec("B 3"), Spec("B 2"), options=options, state=state)


class EveryStep:
    """Saves at every boundary; `before` is called at each first."""

    def __init__(self, folder: Path, trainer: ScalarTrainer, disk: Disk, before: Nothing, callbacks: Any = ()):
        self.folder, self.trainer, self.disk, self.before, self.callbacks = folder, trainer, disk, before, callbacks

    def boundary(self, state: OptimizerState, position: Position) -> None:
        self.before()
        self.interrupted(state, position)

    def interrupted(self, state: OptimizerState, position: Position) -> None:
        snapshot = checkpoint.take_snapshot(self.trainer, OPTIMIZER, state, position, {"width": 5}, self.callbacks)
        checkpoint.save(self.folder, snapshot, disk=self.disk)


def run(
    folder: Path,
    disk: Disk = DISK,
    before: Nothing = lambda: None,
    *,
    epochs: int = EPOCHS,
    callbacks: Sequence[Callback] = (),
) -> list[EpochResult]:
    """The whole run, or what is left of the one in `folder`."""
    rng = np.random.default_rng(2)
    data = from_arrays(x=rng.standard_normal((ROWS, 3)), y=rng.standard_normal((ROWS, 2)))
    trainer, state, start = make_trainer(), None, None
    if checkpoint.exists(folder):
        snapshot = checkpoint.load(folder)
        state, start = checkpoint.restore(trainer, snapshot, OPTIMIZER, callbacks), snapshot.position
    return fit(
        trainer,
        OPTIMIZER,
        Prefetch(Loader(data, BATCH, seed=7)),
        Loader(data, 10, shuffle=False),
        metrics,
        epochs=epochs,
        state=state,
        start=start,
        saver=EveryStep(folder, trainer, disk, before, callbacks),
        callbacks=callbacks,
    )


class Countdown:
    """Kills the process at its N-th call."""

    def __init__(self, at: int):
        self._left = at

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class KillingDisk(Disk):
    """Ends the process without notice before the N-th call."""

    def __init__(self, at: int):
        self._countdown = Countdown(at)

    def write(self, file: int, data: memoryview) -> int:
        self._countdown()
        return super().write(file, data[:700])


def _counted(name: str) -> Callable[..., Any]:
    def call(self: KillingDisk, *arguments: Any) -> Any:
        self._countdown()
        return getattr(Disk, name)(self, *arguments)

    return call


for _name in ("create", "sync", "close", "rename", "sync_folder", "remove"):
    setattr(KillingDisk, _name, _counted(_name))


def main(folder: str, moment: str) -> None:
    kind, _, number = moment.partition(":")
    disk = KillingDisk(int(number)) if kind == "disk" else DISK
    run(Path(folder), disk, Countdown(int(number)) if kind == "step" else lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
