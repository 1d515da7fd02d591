"""`opstage.callbacks`: callbacks of `fit`, `opstage.training.callbacks` under the name that users write."""

from . import threads  # noqa: F401  first, so that a fork waits for imports in other threads
from .training.callbacks import *  # noqa: F403
from .training.callbacks import __all__

__dir__ = __all__.copy
