"""Ctrl-C while modules are imported, before anything is begun that would have to be ended with care.

A KeyboardInterrupt that is raised in an import may be swallowed there, by a library that tries what it can import, or
come out as a traceback from a place that catches nothing. So it is not raised: the process says one word and ends.
"""

from __future__ import annotations

import os

INTERRUPTED = 130


def say_interrupted() -> None:
    """One line on standard error, past Python's buffers."""
    try:
        os.write(2, b"interrupted\n")
    except OSError:
        pass


class EndAtOnce:
    """In a `with` block, an interrupt ends the process with exit code 130; unless somebody else handles interrupts."""

    def __enter__(self) -> None:
        import signal
        import threading

        self._before = None
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, _end)

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            import signal

            signal.signal(signal.SIGINT, self._before)


def _end(*_: object) -> None:
    say_interrupted()
    os._exit(INTERRUPTED)
