"""The transport on MPI. It moves bytes and detects failures of other processes.

Waiting polls MPI, signals, failure messages of other processes, and the clock. Each message is preceded by a short
header that names its exchange; if two processes are in different exchanges, the error names both.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, final

from ...ops.errors import OpstageError, RankError, UsageError
from ..host import Array
from .processes import ENDED
from .progress import Progress

HEAD, BODY = 1, 2
FAILED, ASK, ANSWER = 1, 2, 3
_HEAD_BYTES = 160
_BRIEF = 5e-5
"""Seconds of waiting in which it polls continuously, only yielding the core; then it pauses between polls."""
_PAUSE = 2e-5
"""Seconds between polls after that; the kernel adds timer slack, 50 µs unless it is reduced."""
_LOOK = 0.05
"""Seconds between checks for messages about failures."""
_PATIENCE = 5.0
"""Seconds in which a failing process has notified and terminated all others."""
_DRAIN = 0.1
"""Seconds before the abort in which the launcher reads what was printed; MPICH's drops what it has not read by then."""
_ANSWERS = 1.5
"""Seconds in which a waiting process must answer."""


give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


def _nothing() -> None:
    """Do nothing: the default end of an exchange."""


@final
class MpiFlight:
    """An exchange in flight: its number and name, its requests, and the arrays that they use.

    words   the header for each process; `heads` has the received headers
    """

    def __init__(
        self,
        fabric: MpiFabric,
        called: tuple[int, str],
        words: Mapping[int, bytes],
        heads: Mapping[int, bytearray],
        first: Mapping[int, Any],
        rest: Mapping[int, Any],
        arrays: Any,
        over: Callable[[], None],
    ):
        self._fabric, self.called, self.words, self.heads = fabric, called, words, heads
        self.first, self.rest, self._arrays, self._over = first, rest, arrays, over

    def wait(self) -> None:
        """See `Flight.wait`."""
        self._fabric.land(self)
        self._over()


@final
class MpiFabric:
    """All processes that were started together.

    timeout   seconds without any incoming data after which all processes are asked for their state
    agreed    whether the processes have compared what they are about to run
    waited    seconds spent waiting; `sent` is the number of bytes sent, without headers
    heard     the failure message of another process, if one has arrived
    """

    def __init__(self, timeout: float = 60.0):
        _end_with_launcher()
        _pause_to_the_microsecond()
        mpi = _wait_until_all_processes_have_started(timeout)
        atexit.register(_end_at_last, timeout)
        self._mpi: Any = mpi
        with at_most(timeout):
            self._world = mpi.COMM_WORLD.Dup()
            self._words = mpi.COMM_WORLD.Dup()
            self.hosts: Sequence[str] = mpi.COMM_WORLD.allgather(socket.gethostname())
        for comm in (self._world, self._words):
            comm.Set_errhandler(mpi.ERRORS_RETURN)
        self.process, self.processes = int(self._world.rank), int(self._world.size)
        self.timeout = timeout
        self.agreed = False
        self.heard: tuple[int, str] | None = None
        self.waited = 0.0
        self.sent = 0
        self._counts: dict[int, int] = {}  # exchanges with each process
        self._number = 0
        self._progress = Progress(mpi, self._words) if len({*self.hosts}) > 1 else None
        self._now = ""
        self._answers: dict[int, str] = {}
        self._outgoing: list[Any] = []
        self._said = False
        self._hook = sys.excepthook
        sys.excepthook = self._unhandled

    def exchange(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> None:
        """See `Fabric.exchange`."""
        self._begun(parts, room, called).wait()

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> MpiFlight:
        """See `Fabric.start`."""
        if self._progress is None:  # within a host, MPI needs no progress thread
            return self._begun(parts, room, called)
        self._progress.begin()
        return self._begun(parts, room, called, self._progress.end)

    def _begun(
        self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str, over: Callable[[], None] = _nothing
    ) -> MpiFlight:
        if self.heard is not None:
            raise self._from_other(*self.heard)
        words = {}
        for p in parts.keys() | room.keys():
            self._number = self._counts[p] = self._counts.get(p, 0) + 1
            words[p] = f"{self._number} {called}".encode()[:_HEAD_BYTES].ljust(_HEAD_BYTES, b"\0")
        self._now = called
        heads = {process: bytearray(_HEAD_BYTES) for process in room}
        world, byte = self._world, self._mpi.BYTE
        try:
            first = {p: world.Irecv([heads[p], byte], p, HEAD) for p in room}
            bodies = {p: world.Irecv([out, byte], p, BODY) for p, out in room.items()}
            sends = []
            for p, part in parts.items():
                sends += [world.Isend([words[p], byte], p, HEAD), world.Isend([part, byte], p, BODY)]
                self.sent += part.nbytes
        except self._mpi.Exception as error:
            raise self._lost(error) from None
        rest = {**bodies, **{-1 - i: send for i, send in enumerate(sends)}}
        return MpiFlight(self, (self._number, called), words, heads, first, rest, (parts, room), over)

    def land(self, flight: MpiFlight) -> None:
        """Wait for an exchange, and check that all received messages belong to it."""
        self._number, self._now = flight.called
        try:
            self._wait(flight.first)
            for p, found in flight.heads.items():
                if found != flight.words[p]:
                    raise self._elsewhere(p, found.rstrip(b"\0").decode(errors="replace"))
            self._wait(flight.rest)
        except self._mpi.Exception as error:
            raise self._lost(error) from None

    def describe(self, process: int) -> str:
        """Return a description of a process."""
        return f"process {process} of {self.processes} on {self.hosts[process]}"

    # Waiting ----------------------------------------------------------------------------------------------------------

    def watch(self, done: Callable[[], bool], called: str) -> None:
        """See `Fabric.watch`."""
        self._now = called
        self._until(done, list)

    def _wait(self, requests: Mapping[int, Any]) -> None:
        left = [*requests.items()]

        def done() -> bool:
            while left and left[-1][1].Test():
                left.pop()
            return not left

        def missing() -> list[int]:
            left[:] = [each for each in left if not each[1].Test()]
            return [process for process, _ in left if process >= 0]

        self._until(done, missing)

    def _until(self, done: Callable[[], bool], missing: Callable[[], list[int]]) -> None:
        """Poll until it is done, another process fails, or the `missing` processes time out."""
        began = looked = now = time.perf_counter()
        while not done():
            now = time.perf_counter()
            if now - began < _BRIEF:
                give_way()
                continue
            time.sleep(_PAUSE)
            if now - looked > _LOOK:
                looked = now
                self.listen()
                late = missing()
                if now - began > self.timeout:
                    raise self._standstill(now - began, late)
        self.waited += now - began

    def listen(self) -> None:
        """Receive messages about other processes. Raises RankError if one has failed."""
        words, status = self._words, self._mpi.Status()
        while words.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status):
            source, tag = status.Get_source(), status.Get_tag()
            text: str = words.recv(source=source, tag=tag)
            if tag == FAILED:
                self.heard = (source, text) if self.heard is None else self.heard
            elif tag == ASK:
                self._outgoing.append(words.isend(self._now, source, ANSWER))
            else:
                self._answers[source] = text
        if self.heard is not None:
            raise self._from_other(*self.heard)

    # When another fails -----------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> bool:
        """Notify all others that this process fails, before it exits; return whether it should report the error to the
        user."""
        if self.heard is not None or self._said:
            _note(1, "x")
            return self._said
        self._said = True
        _note(1, "x")
        reason = error.reason if isinstance(error, RankError) else str(error)
        text = reason if isinstance(error, RankError) else f"{type(error).__name__}: {reason}"
        dead = set(self._dead())
        for process in range(self.processes):
            if process != self.process and process not in dead:
                self._outgoing.append(self._words.isend(text, process, FAILED))
        until = time.perf_counter() + 0.5
        lowest = self.process
        status = self._mpi.Status()
        while time.perf_counter() < until:  # of processes that fail at the same time, the lowest one reports
            try:
                while self._words.Iprobe(self._mpi.ANY_SOURCE, FAILED, status):
                    source = status.Get_source()
                    self._words.recv(source=source, tag=FAILED)
                    lowest = min(lowest, source)
            except self._mpi.Exception:
                pass
            time.sleep(0.01)
        return not isinstance(error, RankError) or lowest == self.process

    def abort(self, code: int) -> None:
        """Terminate all processes of the run."""
        _note(code, "w")
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_DRAIN)
        self._mpi.COMM_WORLD.Abort(code)

    def wait_at_most(self, seconds: float) -> None:
        """See `Fabric.wait_at_most`."""
        self.timeout = seconds

    def _unhandled(self, kind: Any, error: BaseException, trace: Any) -> None:
        """Handle an uncaught exception: otherwise the others would wait for this process."""
        if self.fail(error):
            if not isinstance(error, OpstageError):
                print(f"{self.describe(self.process)}:", file=sys.stderr)
            self._hook(kind, error, trace)
        else:
            time.sleep(_PATIENCE)  # the process that failed terminates all, with its exit code
        self.abort(1)

    def _from_other(self, source: int, text: str) -> RankError:
        return RankError(f"{self.describe(source)} has failed: {text}")

    def _elsewhere(self, process: int, found: str) -> RankError:
        return RankError(
            f"{self.describe(process)} is in another collective: it is in number {found}, and "
            f"{self.describe(self.process)} in number {self._number} {self._now}; all ranks must run one program, on "
            "batches of one shape"
        )

    def _standstill(self, seconds: float, missing: list[int]) -> RankError:
        self._answers.clear()
        others = [p for p in range(self.processes) if p != self.process]
        for process in others:
            self._outgoing.append(self._words.isend("", process, ASK))
        until = time.perf_counter() + _ANSWERS
        while time.perf_counter() < until and len(self._answers) < len(others):
            self.listen()
            time.sleep(0.01)
        silent = [p for p in others if p not in self._answers]
        if silent:
            who = " and ".join(map(self.describe, silent))
            why = (
                f"{who} does not answer: it stands still, or computes for longer than that; option timeout allows more"
            )
        else:
            said = "; ".join(f"{self.describe(p)} in {self._answers[p]}" for p in others)
            why = f"all processes wait for each other: {said}"
        return RankError(
            f"nothing came from {' and '.join(map(self.describe, missing)) or 'the network'} for {seconds:.0f} s in "
            f"collective {self._number}, {self._now}: {why}"
        )

    def _dead(self) -> list[int]:
        """Return the processes known to have died, if MPI runs with `--with-ft ulfm`."""
        try:
            group = self._world.Get_failed()
            return [int(p) for p in group.Translate_ranks(list(range(group.size)), self._world.Get_group())]
        except Exception:
            return []

    def _lost(self, error: Any) -> RankError:
        who = " and ".join(map(self.describe, self._dead()))
        at = f"in collective {self._number}, {self._now}"
        if who:
            return RankError(f"{who} has died {at}; --resume goes on from the last checkpoint")
        return RankError(
            f"{error.Get_error_string()} {at}: another process has died, or is in another collective; all ranks must "
            "run one program, on batches of one shape"
        )


def _wait_until_all_processes_have_started(seconds: float) -> Any:
    """Return MPI once all processes have initialised it. Raises UsageError without mpi4py.

    If a process died before, the others wait for it in C and cannot receive messages. After `seconds` this process is
    terminated, with a traceback that shows the name of this function.
    """
    with at_most(seconds):
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise UsageError(
                "this process was started together with others, but mpi4py, by which they meet, cannot be used "
                f"({error}): pip install 'opstage[mpi]'"
            ) from None
    return MPI


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Terminate the process if the block takes longer: it waits for something, with Python's lock held, that never
    comes."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _end_at_last(seconds: float) -> None:
    """Let this process exit even if another one has died and will not take part in MPI's finalisation."""
    faulthandler.dump_traceback_later(seconds, exit=True)


def _note(code: int, mode: str) -> None:
    """Report to `opstage launch` how the run ended: after a process has died, Open MPI's mpiexec always returns 0."""
    path = os.environ.get(ENDED)
    if path:
        with suppress(OSError), open(path, mode) as file:
            file.write(str(code))


def _pause_to_the_microsecond() -> None:
    """Reduce the kernel's timer slack for this thread."""
    if sys.platform == "linux":
        timer_slack, nanoseconds = 29, 1000
        ctypes.CDLL(None).prctl(timer_slack, nanoseconds)


def _end_with_launcher() -> None:
    """Have the kernel kill this process when its parent, the launcher, ends."""
    if sys.platform == "linux":
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)
        if os.getppid() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
