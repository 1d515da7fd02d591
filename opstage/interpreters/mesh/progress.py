"""`Progress`: a thread that lets MPI go on with what is under way while this process computes.

MPI moves messages while somebody is in one of its calls. So where it takes calls of several threads, one looks for
messages again and again, as long as there is anything under way, without Python's lock.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Any, final

_PAUSE = 2e-4
"""Seconds between two looks."""


@final
class Progress:
    """Looks on one communicator. `begin` and `end` are called by one thread, which counts what is under way."""

    def __init__(self, mpi: Any, comm: Any):
        self._mpi, self._comm = mpi, comm
        self._several = mpi.Query_thread() == mpi.THREAD_MULTIPLE
        self._aloft = 0
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self) -> None:
        """One exchange more is under way."""
        self._aloft += 1
        if self._thread is None and self._several:
            self._thread = threading.Thread(target=self._look, name="opstage MPI progress", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        self._wanted.set()

    def end(self) -> None:
        """One less."""
        self._aloft -= 1
        if not self._aloft:
            self._wanted.clear()

    def close(self) -> None:
        """End the thread, before MPI ends."""
        self._closed = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _look(self) -> None:
        while self._wanted.wait() and not self._closed:
            try:
                self._comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG)
            except self._mpi.Exception:  # raised where it is waited for
                time.sleep(0.05)
            time.sleep(_PAUSE)
