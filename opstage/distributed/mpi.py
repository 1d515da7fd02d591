"""The transport on MPI. It moves bytes and detects failures of other processes.

Waiting polls MPI, signals, failure messages of other processes, and the clock. The tag of a message is a checksum of
what its exchange is called; if two processes are in different exchanges, they tell each other, and the error names
both.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, final
from weakref import WeakSet
from zlib import crc32

from ..ops.errors import OpstageError, RankError
from ..ops.host_arrays import Array, address_of
from ..threads import tell_in_child, usable_cores
from .processes import (
    ENDED,
    ControlMessages,
    at_most,
    end_at_last,
    end_with_launcher,
    pause_to_the_microsecond,
    wait_until_all_processes_have_started,
)

# Exchanges ------------------------------------------------------------------------------------------------------------


@final
class MpiExchange:
    """An exchange by persistent requests: `start` makes it, and again once it has ended.

    number  of the pending exchange
    tag     of its messages
    once    whether it ends for good
    """

    def __init__(self, transport: MpiTransport, parts: Mapping[int, Array], called: str):
        self._transport = transport
        self.called, self.number, self.tag, self.once = called, 0, -1, False
        self._sent = sum([part.nbytes for part in parts.values()])
        self._receives: list[tuple[int, int, Any]] = []  # of each process its bytes
        self._sends: list[Any] = []
        self._every: list[Any] = []
        self._kept: object = None  # while it is pending

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array]) -> None:
        """Make it, with arrays that stand where those did that it was prepared with."""
        transport, self._kept = self._transport, (parts, room)
        tag = transport.begin(self)
        if tag != self.tag:
            self.free()
            self.tag = tag
            self._receives = [(p, out.nbytes, transport.prepare_receive(out, p)) for p, out in room.items()]
            self._sends = [transport.prepare_send(part, p, tag) for p, part in parts.items()]
            self._every = [*[request for _, _, request in self._receives], *self._sends]
        transport.start_all(self._every, self._sent)

    def wait(self) -> None:
        """See `PendingExchange.wait`."""
        self._transport.land(self, self._receives, self._sends)
        self._kept = None
        if self.once:
            self.free()

    def abandon(self) -> None:
        """See `PendingExchange.abandon`."""
        self._transport.abandoned.append(self)

    @property
    def over(self) -> bool:
        """Return whether nothing of it is under way any more, as of one that is abandoned."""
        return all(request.Test() for request in self._every)

    def free(self) -> None:
        """Drop the requests, none of which is under way."""
        every, self._every = self._every, []
        for request in every:
            request.Free()

    def __del__(self) -> None:
        with suppress(Exception):  # MPI may have ended
            self.free()


# Progress while this process computes ---------------------------------------------------------------------------------

_POLL = 2e-4
"""Seconds between polls."""


@final
class Progress:
    """Polls one communicator. `begin` and `end` must be called by one thread; they count the pending exchanges."""

    def __init__(self, mpi: Any, comm: Any):
        self._mpi, self._comm = mpi, comm
        self._several = mpi.Query_thread() == mpi.THREAD_MULTIPLE
        self._pending = 0
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self) -> None:
        """Count an exchange that has started."""
        self._pending += 1
        if self._thread is None and self._several:
            self._thread = threading.Thread(target=self._look, name="opstage MPI progress", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        self._wanted.set()

    def end(self) -> None:
        """Count an exchange that has ended."""
        self._pending -= 1
        if not self._pending:
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
            time.sleep(_POLL)


_BRIEF, _LONGER = (0.0, 5e-5), (2e-4, 2e-3)
"""Seconds of waiting in which it polls continuously, and until which it only yields the core; then it pauses between
polls. Longer where each process of the host has a core."""
_PAUSE = 2e-5
"""Seconds between polls after that; the kernel adds timer slack, 50 µs unless it is reduced."""
_LOOK = 0.05
"""Seconds between checks for messages about failures."""
_PATIENCE = 5.0
"""Seconds in which a failing process has notified and terminated all others."""
_DRAIN = 0.1
"""Seconds before the abort in which the launcher reads what was printed; MPICH's drops what it has not read by then."""
_LEFT = 16
"""Tags tell so many runs apart that have ended by an error, so that exchanges after one never fit those of others."""
_TAGS = 1 << 24

give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


@final
class MpiTransport:
    """All processes that were started together.

    timeout   seconds without incoming data after which all processes are asked for their state
    agreed    whether the processes have compared what they are about to run
    waited    seconds spent waiting
    sent      the bytes sent
    left      how many runs have ended by an error, see `leave_run`
    abandoned exchanges that nobody will wait for, whose memory is kept until they are over
    """

    def __init__(self, timeout: float = 60.0):
        end_with_launcher()
        pause_to_the_microsecond()
        mpi = wait_until_all_processes_have_started(timeout)
        atexit.register(end_at_last, timeout)
        self._mpi: Any = mpi
        with at_most(timeout):
            self._world = mpi.COMM_WORLD.Dup()
            control = mpi.COMM_WORLD.Dup()
            self.hosts: Sequence[str] = mpi.COMM_WORLD.allgather(socket.gethostname())
        for comm in (self._world, control):
            comm.Set_errhandler(mpi.ERRORS_RETURN)
        self._control = ControlMessages(mpi, control)
        self.process, self.processes = int(self._world.rank), int(self._world.size)
        self.timeout = timeout
        self.agreed, self.waited, self.sent = False, 0.0, 0
        self._number, self.left = 0, 0
        self.abandoned: list[MpiExchange] = []
        self._prepared: WeakSet[MpiExchange] = WeakSet()
        atexit.register(self._free)
        self._status = mpi.Status()
        here = list(self.hosts).count(self.hosts[self.process])
        self._spin, self._brief = _LONGER if here <= usable_cores() else _BRIEF
        self._refused: RankError | None = None
        self._progress = Progress(mpi, control) if len({*self.hosts}) > 1 else None
        self._said = False
        self._hook = sys.excepthook
        sys.excepthook = self._unhandled
        tell_in_child(self, MpiTransport._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """Take part in nothing in the child of a fork."""
        self._control.heard = self.process, "it was forked, and a fork takes no part in collectives"
        sys.excepthook = self._hook

    def exchange(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> None:
        """See `Transport.exchange`."""
        self.start(parts, room, called).wait()

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> MpiExchange:
        """See `Transport.start`."""
        exchange = MpiExchange(self, parts, called)
        exchange.once = True
        exchange.start(parts, room)
        return exchange

    def prepared(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> MpiExchange:
        """Return an exchange of vectors that stand where these do, which can be started again and again."""
        exchange = MpiExchange(self, parts, called)
        self._prepared.add(exchange)
        return exchange

    def _free(self) -> None:
        """Drop all that is prepared, before MPI ends."""
        for exchange in [*self._prepared]:
            exchange.free()

    def begin(self, exchange: MpiExchange) -> int:
        """Begin the next exchange, and return the tag of its messages."""
        if self._refused is not None or self._control.heard is not None:
            self._require_no_failure()
        if self.abandoned:
            self.abandoned = [each for each in self.abandoned if not each.over]
        self._number = exchange.number = self._number + 1
        self._control.now = exchange.number, exchange.called
        if self._progress is not None:  # within a host, MPI needs no progress thread
            self._progress.begin()
        return _LEFT * _checksum(exchange.called) + self.left % _LEFT

    def prepare_receive(self, out: Array, process: int) -> Any:
        """Return the request of a message that comes; it does not keep the memory."""
        return self._world.Recv_init(self._as_bytes(out), process, self._mpi.ANY_TAG)

    def prepare_send(self, part: Array, process: int, tag: int) -> Any:
        """Return the request of a message that is sent; it does not keep the memory."""
        return self._world.Send_init(self._as_bytes(part), process, tag)

    def _as_bytes(self, x: Array) -> Any:
        return [self._mpi.buffer.fromaddress(address_of(x), x.nbytes), self._mpi.BYTE]

    def start_all(self, requests: Sequence[Any], sent: int) -> None:
        """Start prepared requests, which send `sent` bytes."""
        self.sent += sent
        try:
            self._mpi.Prequest.Startall(requests)
        except self._mpi.Exception as error:
            raise self._lost(error) from None

    def land(self, exchange: MpiExchange, receives: Sequence[tuple[int, int, Any]], sends: Sequence[Any]) -> None:
        """Wait until everything has come and is sent, and check that it belongs to this exchange."""
        self._number, self._control.now = exchange.number, (exchange.number, exchange.called)
        status = self._status
        try:
            for process, nbytes, request in receives:
                try:
                    if not request.Test(status):
                        self._until(partial(request.Test, status), partial(list, (process,)))
                except self._mpi.Exception as error:
                    if error.Get_error_class() != self._mpi.ERR_TRUNCATE:
                        raise
                if status.Get_tag() != exchange.tag:
                    raise self._elsewhere(process, status.Get_tag(), exchange.tag)
                if status.Get_count(self._mpi.BYTE) != nbytes:
                    raise self._of_another_size(process, status.Get_count(self._mpi.BYTE), nbytes)
            for request in sends:
                if not request.Test():
                    self._until(request.Test, list)
        except self._mpi.Exception as error:
            raise self._lost(error) from None
        if self._progress is not None:
            self._progress.end()

    def describe(self, process: int) -> str:
        """Return a description of a process."""
        return f"process {process} of {self.processes} on {self.hosts[process]}"

    # Waiting ----------------------------------------------------------------------------------------------------------

    def watch(self, done: Callable[[], bool], called: str) -> None:
        """See `Transport.watch`."""
        self._control.now = self._number, called
        self._until(done, list)

    def _until(self, done: Callable[[], bool], missing: Callable[[], list[int]]) -> None:
        """Poll until it is done, another process fails, or the `missing` processes time out."""
        began = looked = now = time.perf_counter()
        while not done():
            if now - began >= self._brief:
                time.sleep(_PAUSE)
            elif now - began >= self._spin:
                give_way()
            now = time.perf_counter()
            if now - looked > _LOOK:
                looked = now
                self.listen()
                if now - began > self.timeout:
                    error = self._standstill(now - began, missing())
                    if not done():  # it may have come while the others were asked
                        raise error
                    break
        self.waited += now - began

    def listen(self) -> None:
        """Receive messages about other processes. Raises RankError if one has failed, or if MPI knows that one has
        died."""
        try:
            self._control.listen()
        except self._mpi.Exception as error:
            self._require_no_failure()
            raise self._lost(error) from None
        self._require_no_failure()

    def leave_run(self, error: BaseException) -> None:
        """See `Transport.leave_run`."""
        self.left += 1
        if isinstance(error, RankError) and self._refused is None:
            self._refused = error

    def _require_no_failure(self) -> None:
        if self._refused is not None:
            raise RankError(self._refused.reason)
        if self._control.heard is not None:
            source, text = self._control.heard
            raise RankError(f"{self.describe(source)} has failed: {text}")

    # When another fails -----------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> bool:
        """See `Transport.fail`."""
        if self._control.heard is not None or self._said:
            _note(1, "x")
            return self._said
        self._said = True
        _note(1, "x")
        reason = error.reason if isinstance(error, RankError) else str(error)
        text = reason if isinstance(error, RankError) else f"{type(error).__name__}: {reason}"
        return self._control.fail(text, {*self._dead()}, reports=not isinstance(error, RankError))

    def abort(self, code: int) -> None:
        """Terminate all processes of the run."""
        _note(code, "w")
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_DRAIN)
        self._mpi.COMM_WORLD.Abort(code)

    def wait_at_most(self, seconds: float) -> None:
        """See `Transport.wait_at_most`."""
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

    def _elsewhere(self, process: int, tag: int, own: int) -> RankError:
        who, here = self.describe(process), self.describe(self.process)
        why = "all ranks must run one program, on batches of one shape"
        left = (tag - own) % _LEFT
        if left:
            gone, stays = (who, here) if left < _LEFT // 2 else (here, who)
            why = f"{gone} goes on after an error by which a run has ended there, and not on {stays}"
        with suppress(self._mpi.Exception):
            answers = self._control.answers()
        self._require_no_failure()
        what = answers.get(process, "another one")
        return RankError(
            f"{who} is in another collective: it is in {what}, and {here} in number {self._number} "
            f"{self._control.now[1]}; {why}"
        )

    def _standstill(self, seconds: float, missing: list[int]) -> RankError:
        try:
            answers = self._control.answers()
        except self._mpi.Exception as error:
            self._require_no_failure()
            return self._lost(error)
        self._require_no_failure()
        others = [p for p in range(self.processes) if p != self.process]
        silent = [p for p in others if p not in answers]
        if silent:
            who = " and ".join(map(self.describe, silent))
            why = (
                f"{who} does not answer: it stands still, or computes for longer than that; option timeout allows more"
            )
        else:
            said = "; ".join(f"{self.describe(p)} in {answers[p]}" for p in others)
            why = f"all processes wait for each other: {said}"
        return RankError(
            f"nothing came from {' and '.join(map(self.describe, missing)) or 'the network'} for {seconds:.0f} s in "
            f"collective {self._number}, {self._control.now[1]}: {why}"
        )

    def _dead(self) -> list[int]:
        """Return the processes known to have died, if MPI runs with `--with-ft ulfm`."""
        try:
            group = self._world.Get_failed()
            return [int(p) for p in group.Translate_ranks(list(range(group.size)), self._world.Get_group())]
        except Exception:
            return []

    def _place(self) -> str:
        return f"in collective {self._number}, {self._control.now[1]}"

    def _died(self, processes: Sequence[int]) -> RankError:
        who = " and ".join(map(self.describe, processes))
        return RankError(f"{who} has died {self._place()}; --resume continues from the last checkpoint")

    def _of_another_size(self, process: int, come: int, expected: int) -> RankError:
        return RankError(
            f"{self.describe(process)} has sent {come} bytes where {expected} were expected, {self._place()}; "
            "all ranks must run one program, on batches of one shape"
        )

    def _lost(self, error: Any) -> RankError:
        dead = self._dead()
        if dead:
            return self._died(dead)
        return RankError(
            f"{error.Get_error_string()} {self._place()}: another process has died, or is in another collective; "
            "all ranks must run one program, on batches of one shape"
        )


@lru_cache(4096)
def _checksum(called: str) -> int:
    """Return a number below `_TAGS`, of which messages have it in their tags, that tells exchanges apart."""
    return crc32(called.encode()) % _TAGS


def _note(code: int, mode: str) -> None:
    """Report to `opstage launch` how the run ended: after a process has died, Open MPI's mpiexec always returns 0."""
    path = os.environ.get(ENDED)
    if path:
        with suppress(OSError), open(path, mode) as file:
            file.write(str(code))
