"""Processes of a mesh as threads of this one, with queues between them: the engine by which spreading is tested."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from opstage.distributed.processes import using

T = TypeVar("T")
PATIENCE = 120.0


class Threads:
    """A `Transport`. An exchange that another thread calls otherwise is an AssertionError."""

    def __init__(self, process: int, processes: int, lines: Mapping[tuple[int, int], Any]):
        self.process, self.processes, self._lines = process, processes, lines
        self._pending: list[PendingExchange] = []
        self.sent = 0
        self.waited = 0.0
        self.agreed = False
        self.hosts = ("here",) * processes

    def exchange(self, parts: Mapping[int, Any], room: Mapping[int, Any], called: str) -> None:
        self.start(parts, room, called).wait()

    def start(self, parts: Mapping[int, Any], room: Mapping[int, Any], called: str) -> PendingExchange:
        for to, part in parts.items():
            self._lines[self.process, to].put((called, np.array(part)))
            self.sent += part.nbytes
        self._pending.append(PendingExchange(self, room, called))
        return self._pending[-1]

    def land(self, pending: PendingExchange) -> None:
        """Fill the room of a pending, after those of all that were begun before."""
        while not pending.over:
            first = self._pending.pop(0)
            for come, out in first.room.items():
                name, part = self._lines[come, self.process].get(timeout=PATIENCE)
                assert name == first.called, (name, first.called)
                assert (part.shape, part.dtype) == (out.shape, out.dtype), first.called
                out[...] = part
            first.over = True

    def left(self) -> int:
        """How many exchanges were begun that nobody has waited for."""
        return len(self._pending)

    def watch(self, done: Callable[[], bool], called: str) -> None:
        while not done():
            pass

    def leave_run(self, error: BaseException) -> None:
        pass

    def fail(self, error: BaseException) -> bool:
        return True

    def abort(self, code: int) -> None:
        raise AssertionError(code)

    def wait_at_most(self, seconds: float) -> None:
        pass


class PendingExchange:
    """An exchange under way: nothing of it has come until somebody waits."""

    def __init__(self, transport: Threads, room: Mapping[int, Any], called: str):
        self._transport, self.room, self.called, self.over = transport, room, called, False

    def wait(self) -> None:
        self._transport.land(self)

    def abandon(self) -> None:
        pass


def on_processes(count: int, run: Callable[[Threads], T]) -> list[T]:
    """The results of `run` on each of so many processes."""
    lines = {(a, b): queue.Queue() for a in range(count) for b in range(count)}
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def one(process: int) -> None:
        transport = Threads(process, count, lines)
        try:
            with using(transport):
                results[process] = run(transport)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(process,), daemon=True) for process in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.1 if errors else PATIENCE)
    if errors:
        raise errors[0]
    return [results[process] for process in range(count)]
