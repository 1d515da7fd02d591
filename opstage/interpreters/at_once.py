"""Actions that take effect together: whatever is raised from outside comes before the first or after the last of them.

Python lets signal handlers, trace functions and exceptions that another thread has set in between two bytecodes, and
nowhere else. So what one bytecode does, a call of functions that are all written in C, nothing can tear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from typing import Any, TypeAlias

Action: TypeAlias = "Callable[[], Any]"
"""A function written in C, or a `partial` of one; a Python function would let exceptions in."""


def at_once(actions: Sequence[Action]) -> None:
    """Call them in their order. What they put out of its place must be held by the caller: a finaliser is Python."""
    deque(map(call, actions), 0)


setting: Callable[[object, str, Any], Action] = partial(partial, object.__setattr__)
"""The assignment `holder.name = value` to an attribute that is there already, also where `holder` is frozen."""
