"""Handle SIGTERM, sent by a batch system or a container before it ends a process, as a kind of interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, final


@final
class Terminated(KeyboardInterrupt):
    """SIGTERM was received. Code that saves its work on Ctrl-C also saves it on this."""


@contextmanager
def heeding_termination() -> Iterator[None]:
    """A block in which SIGTERM raises `Terminated` in the main thread, unless it is ignored or already has a
    handler."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated
