"""The short name of `opstage.ops.transform`: one module under two names."""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ops.transform import *  # noqa: F403

import_module("opstage.threads")  # first, so that a fork waits for imports in other threads
sys.modules[__name__] = import_module("opstage.ops.transform")
