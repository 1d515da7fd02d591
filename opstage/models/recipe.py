"""`Recipe`: the default data and settings to train a model, in the model's file as `RECIPE`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data import Dataset

Split = tuple[Dataset, Dataset]


@dataclass(frozen=True)
class Recipe:
    """Default settings to train a model, and the value that a held-out metric then reaches (checked by tests).

    data      seed -> (training data, held-out data), bound to the model's batch by their names, or in its order; None
              for a model without default data
    metric    the held-out metric of the goal, "" for none; `goal` its value, reached from above when
              `lower_is_better`
    """

    data: Callable[[int], Split] | None = None
    epochs: int = 10
    batch_size: int = 64
    lr: float = 1e-3
    weight_decay: float | None = None
    metric: str = ""
    goal: float | None = None
    lower_is_better: bool = False
    warmup: float = 0.03
    """The fraction of all steps in which the learning rate rises."""
    clip_norm: float | None = None
    optimizer: str = "adamw"
    """Its name in opstage.optim; muon uses adamw for parameters that are not matrices, at the same rate."""
    read: Callable[[Path | None, float, Any], Split] | None = None
    """For data cut to a model's size: (file, fraction held out, model config) -> split; `data` without a file."""
