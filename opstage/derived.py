"""`opstage.derived`: ops that are programs over other ops, `opstage.ops.derived` under the name that users write."""

from . import threads  # noqa: F401  first, so that a fork waits for imports in other threads
from .ops.derived import *  # noqa: F403
from .ops.derived import __all__, counted  # noqa: F401  new model files count labels by it

__dir__ = __all__.copy
