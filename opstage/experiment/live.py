"""When the report of a run that goes on is written anew: soon, and for a hundredth of the run's time at most."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

SHARE = 0.01
"""Of the time that a run has taken, so much may have been spent on its report."""
INTERVAL = 3.0
"""Seconds between two writings, at least."""
_FIRST = 0.03
"""Seconds that the first writing is taken to need."""


@final
class Pace:
    """Says when it is time, from what writing took before.

    A writing is due `INTERVAL` seconds after the last one, once those so far and one more like the last are no
    more than `SHARE` of all the time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._began = self._last = clock()
        self._spent = 0.0
        self._latest = _FIRST

    @property
    def due(self) -> bool:
        """Whether it is time."""
        now = self._clock()
        return now - self._last >= INTERVAL and self._spent + self._latest <= SHARE * (now - self._began)

    def spend(self, write: Callable[[], object]) -> None:
        """Write, and note what it took."""
        since = self._clock()
        try:
            write()
        finally:
            self._last = self._clock()
            self._latest = self._last - since
            self._spent += self._latest
