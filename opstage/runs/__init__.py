"""Runs: a configuration, the run that it describes, and the directory that keeps the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .config import DataSettings, OptimizerSettings, RunSettings
    from .run import RunOutcome, train
    from .settings import Configuration, Settings, configure


__all__ = [
    "Configuration",
    "DataSettings",
    "OptimizerSettings",
    "RunOutcome",
    "RunSettings",
    "Settings",
    "configure",
    "train",
]

__getattr__ = lazily(
    __name__,
    {
        ".config": "DataSettings OptimizerSettings RunSettings",
        ".run": "RunOutcome train",
        ".settings": "Configuration Settings configure",
    },
)
