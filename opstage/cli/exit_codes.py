"""The exit codes of the commands, and how Ctrl-C, SIGTERM and closed output end them.

    0    done
    1    the answer is no: errors were found, two backends differ, numbers are not finite, another process has failed
    2    input that cannot be used, or no memory
    3    `opstage verify`: neither proved nor refuted
    130  interrupted by Ctrl-C
    137  `opstage launch`: processes of the run were killed
    141  standard output is closed, as after SIGPIPE
    143  terminated by SIGTERM

The console script imports this module before all others.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, final

INTERRUPTED, DIED, UNHEARD, TERMINATED = 130, 137, 128 + getattr(signal, "SIGPIPE", 13), 143


def say_interrupted() -> None:
    """Write one line to standard error, bypassing Python's buffers."""
    with suppress(OSError):
        os.write(2, b"interrupted\n")


class EndAtOnce:
    """A `with` block in which an interrupt ends the process with exit code 130, unless another handler is installed.

    It is for imports, before anything has begun that needs cleanup. A KeyboardInterrupt raised there may be swallowed
    by a library that probes for optional imports, or end in a traceback.
    """

    def __enter__(self) -> None:
        self._before = None
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, _end)

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _end(*_: object) -> None:
    say_interrupted()
    os._exit(INTERRUPTED)


@final
class Terminated(KeyboardInterrupt):
    """SIGTERM was received, which batch systems and containers send before they end a process. Code that saves its
    work on Ctrl-C also saves it on this."""


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


def silence() -> None:
    """Redirect standard output, with its buffered text, to the null device."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
