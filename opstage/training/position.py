"""`Position`: where a training loop stands, and what came of the epochs before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochResult:
    """One epoch: mean training loss, held-out metrics (means per sample), and how long its training took."""

    epoch: int
    train_loss: float
    held_out: Mapping[str, float]
    seconds: float
    samples: int


@dataclass(frozen=True)
class Position:
    """A step boundary: `batch` steps of epoch `epoch` are done, both counted from 0, and the epochs of `results`.

    loss_sum, samples, seconds    what the epoch has gathered so far; the loss is summed over samples
    lr_scale                      what callbacks have multiplied the learning rate by
    stopped                       why a callback has ended the run; empty while it goes on
    """

    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    samples: int = 0
    seconds: float = 0.0
    results: tuple[EpochResult, ...] = ()
    lr_scale: float = 1.0
    stopped: str = ""
