"""`Progress`: a thread that lets MPI progress while this process computes.

MPI only moves messages during its calls. So if it supports concurrent threads, this thread polls for messages, without
Python's lock, while anything is in flight.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Any, final

_PAUSE = 2e-4
"""Seconds between polls."""


@final
class Progress:
    """Polls one communicator. `begin` and `end` must be called by one thread; they count the exchanges in flight."""

    def __init__(self, mpi: Any, comm: Any):
        self._mpi, self._comm = mpi, comm
        self._several = mpi.Query_thread() == mpi.THREAD_MULTIPLE
        self._aloft = 0
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self) -> None:
        """Count an exchange that has started."""
        self._aloft += 1
        if self._thread is None and self._several:
            self._thread = threading.Thread(target=self._look, name="opstage MPI progress", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        self._wanted.set()

    def end(self) -> None:
        """Count an exchange that has ended."""
        self._aloft -= 1
        if not self._aloft:
            self._wanted.clear()

    def close(self) -> None:
        """Stop the thread, before MPI ends."""
        self._closed = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _look(self) -> None:
        while self._wanted.wait() and not self._closed:
            try:
                self._comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG)
            except self._mpi.Exception:  # reported by the exchange's wait
                time.sleep(0.05)
            time.sleep(_PAUSE)
