"""`Words`: what processes tell each other about failures, beside the exchanges."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any, final

FAILED, ASK, ANSWER = 1, 2, 3
_ANSWERS = 1.5
"""Seconds in which a waiting process must answer."""
_TOGETHER = 0.5
"""Seconds in which processes that fail at the same time hear of each other."""


@final
class Words:
    """The words of all processes, on a communicator of their own.

    now     the number and the name of the exchange that this process is in, which it answers to those that ask
    heard   the first process that has said that it fails, and why
    """

    def __init__(self, mpi: Any, comm: Any):
        self._mpi, self._comm = mpi, comm
        self.process, self.processes = int(comm.rank), int(comm.size)
        self.now = 0, ""
        self.heard: tuple[int, str] | None = None
        self._answers: dict[int, str] = {}
        self._outgoing: list[Any] = []

    def listen(self) -> None:
        """Receive what others have said, and answer those that ask."""
        comm, status = self._comm, self._mpi.Status()

        def come() -> bool:
            return bool(comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status))

        while come() or come():  # Open MPI says no, and then looks
            source, tag = status.Get_source(), status.Get_tag()
            text: str = comm.recv(source=source, tag=tag)
            if tag == FAILED:
                self.heard = (source, text) if self.heard is None else self.heard
            elif tag == ASK:
                self._outgoing.append(comm.isend("number {} {}".format(*self.now), source, ANSWER))
            else:
                self._answers[source] = text

    def answers(self) -> dict[int, str]:
        """Ask all others which exchange they are in; return the answers of those that give one in time."""
        self._answers.clear()
        others = [p for p in range(self.processes) if p != self.process]
        for process in others:
            self._outgoing.append(self._comm.isend("", process, ASK))
        until = time.perf_counter() + _ANSWERS
        while time.perf_counter() < until and len(self._answers) < len(others) and self.heard is None:
            self.listen()
            time.sleep(0.01)
        return dict(self._answers)

    def fail(self, text: str, dead: Collection[int]) -> int:
        """Tell all who live that this process fails; return the lowest of those that fail at the same time."""
        for process in range(self.processes):
            if process != self.process and process not in dead:
                with suppress(self._mpi.Exception):  # it has died meanwhile
                    self._outgoing.append(self._comm.isend(text, process, FAILED))
        until = time.perf_counter() + _TOGETHER
        lowest = self.process
        status = self._mpi.Status()
        while time.perf_counter() < until:
            try:
                while self._comm.Iprobe(self._mpi.ANY_SOURCE, FAILED, status):
                    source = status.Get_source()
                    self._comm.recv(source=source, tag=FAILED)
                    lowest = min(lowest, source)
            except self._mpi.Exception:  # of one that has died
                pass
            time.sleep(0.01)
        return lowest
