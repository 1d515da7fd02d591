"""Runs: a configuration, the run that it describes, and the directory that keeps the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazily

if TYPE_CHECKING:
    from .run import RunOutcome, train
    from .settings import Configuration, DataSettings, OptimizerSettings, RunSettings, Settings, configure


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
__dir__ = __all__.copy

__getattr__ = lazily(
    __name__,
    {
        ".run": "RunOutcome train",
        ".settings": "Configuration DataSettings OptimizerSettings RunSettings Settings configure",
    },
)
