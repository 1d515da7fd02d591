"""Actions that take effect together: an exception from outside comes before the first or after the last of them.

Python runs signal handlers and trace functions, and raises exceptions set by another thread, only between two
bytecodes. So one bytecode that only calls functions written in C is never interrupted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from typing import Any, TypeAlias

Action: TypeAlias = "Callable[[], Any]"
"""A function written in C, or a `partial` of one; exceptions could interrupt a Python function."""


def at_once(actions: Sequence[Action]) -> None:
    """Call the actions in order. The caller must keep a reference to any object that they replace: a finaliser runs
    Python."""
    deque(map(call, actions), 0)


setting: Callable[[object, str, Any], Action] = partial(partial, object.__setattr__)
"""The assignment `holder.name = value` to an existing attribute, also where `holder` is frozen."""
