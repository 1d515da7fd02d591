"""`opstage.transform`: derivatives inside programs, `opstage.ops.transform` under the name that users write.

The package `opstage/transforms` is another thing: the interpreters and ops that compute these derivatives.
"""

from . import threads  # noqa: F401  first, so that a fork waits for imports in other threads
from .ops.transform import *  # noqa: F403
from .ops.transform import __all__

__dir__ = __all__.copy
