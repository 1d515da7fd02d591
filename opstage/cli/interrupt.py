"""Handle Ctrl-C during imports, before anything has begun that needs cleanup.

A KeyboardInterrupt raised in an import may be swallowed by a library that probes for optional imports, or end in a
traceback. So it is not raised: the process prints one word and ends.
"""

from __future__ import annotations

import os

INTERRUPTED = 130


def say_interrupted() -> None:
    """Write one line to standard error, bypassing Python's buffers."""
    try:
        os.write(2, b"interrupted\n")
    except OSError:
        pass


class EndAtOnce:
    """A `with` block in which an interrupt ends the process with exit code 130, unless another handler is installed."""

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
