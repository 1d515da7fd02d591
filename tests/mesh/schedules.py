"""Processes of one host as threads of this one, with real sockets and real shared memory between them.

One thread runs at a time. Before and after each note that is sent, before each that is received and wherever one waits,
a seeded draw says who goes on; one of them may be far ahead of the others for long. With boards, machine code writes
and reads the notes of compiled sums; there, too, somebody else may go on before and after.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np

from opstage.interpreters.mesh.board import Board
from opstage.interpreters.mesh.direct import DirectExchange
from opstage.interpreters.mesh.lending import Lending
from opstage.interpreters.mesh.mpi import MpiFabric
from opstage.interpreters.mesh.near import Near
from opstage.interpreters.mesh.processes import using
from opstage.interpreters.mesh.words import Words

T = TypeVar("T")
PATIENCE = 120.0
CHANGE = 0.1
"""How likely it is at each point that another process becomes the one that goes on whenever it can."""


class Turns:
    """Whose turn it is."""

    def __init__(self, count: int, seed: int):
        self._live, self._waiting, self._turn = set(range(count)), set[int](), -1
        self._draws, self._first = random.Random(seed), 0
        self._changed = threading.Condition()

    def pause(self, process: int) -> None:
        """Wait for the next turn of a process."""
        with self._changed:
            self._waiting.add(process)
            self._next(process)
            if not self._changed.wait_for(lambda: self._turn == process, PATIENCE):
                raise TimeoutError(process)
            self._waiting.remove(process)

    def leave(self, process: int) -> None:
        """Take no more turns."""
        with self._changed:
            self._live.remove(process)
            self._next(process)

    def _next(self, process: int) -> None:
        if self._turn in (process, -1):
            self._turn = -1
        if self._turn == -1 and self._live and self._waiting == self._live:
            if self._first not in self._live or self._draws.random() < CHANGE:
                self._first = self._draws.choice(sorted(self._live))
            self._turn = self._first
            self._changed.notify_all()


class Paused:
    """A socket, or what polls it, that pauses at each use."""

    def __init__(self, of: Any, turns: Turns, process: int):
        self._of, self._turns, self._process = of, turns, process

    def sendmsg(self, *given: Any) -> Any:
        self._turns.pause(self._process)
        self._of.sendmsg(*given)
        self._turns.pause(self._process)

    def recvmsg(self, *given: Any) -> Any:
        self._turns.pause(self._process)
        return self._of.recvmsg(*given)

    def poll(self, milliseconds: float) -> None:
        self._turns.pause(self._process)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class Mpi:
    """An MPI that is not there: processes of one host need it for failures alone."""

    BYTE = ANY_SOURCE = ANY_TAG = None
    Exception = AssertionError
    Status = object


class Comm:
    """A communicator over which nobody says a word."""

    def __init__(self, process: int, processes: int):
        self.rank, self.size = process, processes

    def Iprobe(self, *_: Any) -> bool:  # noqa: N802
        return False


def fabric(process: int, processes: int, near: Near) -> MpiFabric:
    """The transport of a process that is near all others."""
    made = object.__new__(MpiFabric)
    made._mpi, made._words, made._world, made._progress = Mpi, Words(Mpi, Comm(process, processes)), None, None
    made._near, made._near_processes, made.lending = near, near.processes, Lending(made, near)
    made.process, made.processes, made.hosts = process, processes, ("here",) * processes
    made.timeout, made.agreed, made.slept = PATIENCE, False, 0.0
    made.counts, made._names, made._number, made._refused = np.zeros(processes + 2, np.int64), {}, 0, None
    return made


_HERE = threading.local()


def _paused(method: Callable[..., bool]) -> Callable[..., bool]:
    """A part of a sum by machine code, with pauses before and after it."""

    def run(*given: Any) -> bool:
        _HERE.pause()
        done = method(*given)
        _HERE.done[method.__name__, done] += 1
        _HERE.pause()
        return done

    return run


def on_host(
    count: int, seed: int, run: Callable[[MpiFabric], T], *, boards: bool = True, done: Counter[Any] | None = None
) -> list[T]:
    """The results of `run` on each of so many processes, in one order of what they do.

    `done` counts the parts of sums by machine code, by name and by whether it could.
    """
    done = Counter() if done is None else done
    ends: list[dict[int, Any]] = [{} for _ in range(count)]
    for a, b in combinations(range(count), 2):
        ends[a][b], ends[b][a] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    turns, results, errors = Turns(count, seed), dict[int, T](), list[BaseException]()
    fabrics = []
    for process, sockets in enumerate(ends):
        near = Near(sockets, Board(process, sockets) if boards else None)
        for other, each in sockets.items():
            near._sockets[other] = Paused(each, turns, process)  # type: ignore[assignment]
        near._poll = Paused(near._poll, turns, process)  # type: ignore[assignment]
        fabrics.append(fabric(process, count, near))

    def one(process: int) -> None:
        _HERE.pause, _HERE.done = partial(turns.pause, process), done
        try:
            turns.pause(process)
            with using(fabrics[process]):
                results[process] = run(fabrics[process])
        except BaseException as error:
            errors.append(error)
            for each in ends[process].values():
                each.close()
        finally:
            turns.leave(process)

    threads = [threading.Thread(target=one, args=(process,), daemon=True) for process in range(count)]
    with ExitStack() as patches:
        for name in ("begin", "end"):
            patches.enter_context(patch.object(DirectExchange, name, _paused(getattr(DirectExchange, name))))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    for sockets in ends:
        for each in sockets.values():
            each.close()
    if errors:
        raise errors[0]
    return [results[process] for process in range(count)]
