"""Experiments: one configuration, the run that it means, and the directory in which the run is kept."""

from .run import Outcome, train
from .settings import Configuration, DataSettings, OptimizerSettings, RunSettings, Settings, configure

__all__ = [
    "Configuration",
    "DataSettings",
    "OptimizerSettings",
    "Outcome",
    "RunSettings",
    "Settings",
    "configure",
    "train",
]
