"""`Position`: the step that a training loop has reached, and the results of the epochs before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochResult:
    """The result of one epoch: mean training loss, held-out metrics (means per sample), and training time.

    counted    by how much the sums of the held-out metrics were divided: the number of samples, or what the metrics
               call `count`; None for an epoch that an older version has trained
    """

    epoch: int
    train_loss: float
    held_out: Mapping[str, float]
    seconds: float
    samples: int
    counted: float | None = None


@dataclass(frozen=True)
class Position:
    """A step boundary: `batch` steps of epoch `epoch` are done, both counted from 0, and the epochs of `results`.

    loss_sum, samples, seconds    the totals of the epoch so far; the loss is summed over samples
    lr_scale                      the factor by which callbacks have scaled the learning rate
    stopped                       why a callback has ended the run; empty while it continues
    """

    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    samples: int = 0
    seconds: float = 0.0
    results: tuple[EpochResult, ...] = ()
    lr_scale: float = 1.0
    stopped: str = ""
