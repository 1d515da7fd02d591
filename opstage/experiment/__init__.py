"""Experiments: one configuration, the run that it means, and the directory in which the run is kept."""

from .run import RunOutcome, train
from .settings import Configuration, Settings, configure
from .tables import DataSettings, OptimizerSettings, RunSettings

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
