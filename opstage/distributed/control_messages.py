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
"""Seconds in which a process that has noticed a failure hears of a lower one that has."""
_DELIVERY = 0.02
"""Seconds in which MPI delivers the messages of a failure."""


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

    def fail(self, text: str, dead: Collection[int], *, reports: bool) -> bool:
        """Tell all who live that this process fails; return whether it is to report the failure: always if it `reports`
        an error of its own, else if it is the lowest of those that notice one at the same time.

        Only a process that does not know whether a lower one will report waits for that.
        """
        others = {process for process in range(self.processes) if process != self.process and process not in dead}
        for process in others:
            with suppress(self._mpi.Exception):  # it has died meanwhile
                self._outgoing.append(self._comm.isend(text, process, FAILED))
        began, status = time.perf_counter(), self._mpi.Status()
        lower = {process for process in others if process < self.process and not reports}
        while time.perf_counter() - began < (_TOGETHER if lower else _DELIVERY):
            try:
                while self._comm.Iprobe(self._mpi.ANY_SOURCE, FAILED, status):
                    source = status.Get_source()
                    self._comm.recv(source=source, tag=FAILED)
                    if source in lower:
                        return False
            except self._mpi.Exception:  # of one that has died
                pass
            time.sleep(0.002)
        return True
