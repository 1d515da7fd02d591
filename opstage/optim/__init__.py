"""Optimizers, learning-rate schedules and gradient clipping; formulas, defaults and argument names are those of
torch.optim. See `Optimizer`."""

from __future__ import annotations

from .. import threads  # noqa: F401  first, so that a fork waits for imports in other threads
from . import clip, schedule
from .adaptive import Adadelta, Adagrad, Adam, AdamW, Rmsprop
from .descent import Momentum, Nesterov, Sgd
from .groups import grouped
from .muon_optimizer import Muon
from .optimizer import Optimizer, Rate, Slot
from .schedule import Schedule

sgd = Sgd
momentum = Momentum
nesterov = Nesterov
adagrad = Adagrad
rmsprop = Rmsprop
adam = Adam
adamw = AdamW
adadelta = Adadelta
muon = Muon

SHIPPED: dict[str, type[Optimizer]] = {
    name: value
    for name, value in list(globals().items())
    if name.islower() and isinstance(value, type) and issubclass(value, Optimizer)
}
"""The optimizers by the names above, which configurations and the command line use too."""

__all__ = [  # type checkers read it, so the names of SHIPPED are written out
    "SHIPPED",
    "Optimizer",
    "Rate",
    "Schedule",
    "Slot",
    "adadelta",
    "adagrad",
    "adam",
    "adamw",
    "clip",
    "grouped",
    "momentum",
    "muon",
    "nesterov",
    "rmsprop",
    "schedule",
    "sgd",
]
__dir__ = __all__.copy
