"""When to rewrite the report of a running run: soon, but using at most a hundredth of the run's time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

SHARE = 0.01
"""The fraction of the run's time that may be spent on its report."""
INTERVAL = 3.0
"""The minimum number of seconds between two writes."""
_FIRST = 0.03
"""The assumed cost of the first write, in seconds."""


@final
class Pace:
    """Decides when a write is due, from the cost of earlier ones.

    A write is due `INTERVAL` seconds after the last one, once the total cost, including another write like the last, is
    at most `SHARE` of the elapsed time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._began = self._last = clock()
        self._spent = 0.0
        self._latest = _FIRST

    @property
    def due(self) -> bool:
        """Whether a write is due."""
        now = self._clock()
        return now - self._last >= INTERVAL and self._spent + self._latest <= SHARE * (now - self._began)

    def spend(self, write: Callable[[], object]) -> None:
        """Write, and record the cost."""
        since = self._clock()
        try:
            write()
        finally:
            self._last = self._clock()
            self._latest = self._last - since
            self._spent += self._latest
