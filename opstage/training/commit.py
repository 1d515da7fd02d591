"""Commits that an interrupt cannot cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """`with uninterrupted():` puts off SIGINT until the block is done, so what it changes is changed whole.

    The handler that stood before the block gets the signal right after it (by default it raises KeyboardInterrupt).
    Python delivers signals to the main thread alone, so elsewhere there is nothing to put off; nor is there when the
    handler belongs to a host program that was not written in Python.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if arrived:
            if callable(before):
                before(*arrived[-1])
            else:  # SIG_DFL ends the process, SIG_IGN does nothing
                signal.raise_signal(signal.SIGINT)
