"""Runs: a configuration, the run that it describes, and the directory that keeps the run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .. import lazily

if TYPE_CHECKING:
    from .run import RunOutcome as RunOutcome
    from .run import train as train
    from .settings import Configuration as Configuration
    from .settings import DataSettings as DataSettings
    from .settings import OptimizerSettings as OptimizerSettings
    from .settings import RunSettings as RunSettings
    from .settings import Settings as Settings
    from .settings import configure as configure

__getattr__ = lazily(__name__, __file__)
__dir__ = partial(__getattr__, "__all__")
