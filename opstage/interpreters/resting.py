"""Pauses Python's garbage collector while a program is recorded and compiled.

Its finalizers and callbacks are not part of a recorded program. And planning creates many objects that stay: the
collector would traverse all of them again and again without finding garbage.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from ..forks import make_lock, tell_in_child


@final
class _Collector:
    """The collector, shared by all threads: it resumes when the last thread that paused it has finished."""

    def __init__(self) -> None:
        self._lock = make_lock(waits_for_others=False)
        self._asked = 0
        self._enabled = False
        self._own = threading.local()  # how often this thread has asked, in `count`
        tell_in_child(self, _Collector._forked)

    def stop(self) -> None:
        with self._lock:
            if not self._asked:
                self._enabled = gc.isenabled()
            self._asked += 1
            self._own.count = self._of_this_thread() + 1
            gc.disable()

    def go_on(self) -> None:
        with self._lock:
            self._asked -= 1
            self._own.count -= 1
            if not self._asked and self._enabled:
                gc.enable()

    def _of_this_thread(self) -> int:
        return getattr(self._own, "count", 0)

    def _forked(self) -> None:
        """In a forked child the other threads no longer exist."""
        if self._asked:
            self._asked = self._of_this_thread()
            if not self._asked and self._enabled:
                gc.enable()


_collector = _Collector()


@contextmanager
def resting() -> Iterator[None]:
    """No garbage collection in any thread until this ends; objects without reference cycles are freed as usual."""
    _collector.stop()
    try:
        yield
    finally:
        _collector.go_on()
