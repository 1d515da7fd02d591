"""The transport on MPI. It moves bytes and detects failures of other processes.

Waiting polls MPI, signals, failure messages of other processes, and the clock. Each message is preceded by a short
header that names its exchange; if two processes are in different exchanges, the error names both.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, final

import numpy as np

from ...forks import tell_in_child
from ...ops.errors import OpstageError, RankError
from ..host import Array
from ..native.notes import NAME
from .joining import (
    at_most,
    end_at_last,
    end_with_launcher,
    pause_to_the_microsecond,
    wait_until_all_processes_have_started,
)
from .lending import Lending
from .linking import link
from .mpi_flight import HEADER, MpiFlight, flat, nothing, text_of
from .near import Near, SentNote, SharedBlock
from .processes import ENDED
from .progress import Progress
from .words import Words

HEAD, BODY = 1, 2
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
_LEFT = 1 << 32
"""Added to the numbers of exchanges for each run that has ended by an error, so that those of others never fit them."""
_NAMES = 4096
"""Names of exchanges that are kept in the form in which they are sent."""

give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


@final
class MpiFabric:
    """All processes that were started together.

    timeout   seconds without incoming data after which all processes are asked for their state
    agreed    whether the processes have compared what they are about to run
    slept     seconds spent waiting in Python
    counts    the number of exchanges with each process (see also `leave_run`), the nanoseconds that machine code has
              waited, and the bytes sent, without headers
    lending   the memory that processes of this host read where it stands; None if there are no other ones
    """

    def __init__(self, timeout: float = 60.0):
        end_with_launcher()
        pause_to_the_microsecond()
        mpi = wait_until_all_processes_have_started(timeout)
        atexit.register(end_at_last, timeout)
        self._mpi: Any = mpi
        with at_most(timeout):
            self._world = mpi.COMM_WORLD.Dup()
            words = mpi.COMM_WORLD.Dup()
            self.hosts: Sequence[str] = mpi.COMM_WORLD.allgather(socket.gethostname())
            self._near = link(mpi, int(self._world.rank), self.hosts)
        for comm in (self._world, words):
            comm.Set_errhandler(mpi.ERRORS_RETURN)
        self._words = Words(mpi, words)
        self.process, self.processes = int(self._world.rank), int(self._world.size)
        self.timeout = timeout
        self.agreed, self.slept = False, 0.0
        self.counts = np.zeros(self.processes + 2, np.int64)
        self.lending = None
        if self._near is not None:
            self.lending = Lending(self, self._near)
            atexit.register(self._near.stay)
        self._near_processes = frozenset[int]() if self._near is None else self._near.processes
        self._names: dict[str, bytes] = {}
        self._number = 0
        self._refused: RankError | None = None
        self._progress = Progress(mpi, words) if len({*self.hosts}) > 1 else None
        self._said = False
        self._hook = sys.excepthook
        sys.excepthook = self._unhandled
        tell_in_child(self, MpiFabric._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """Take part in nothing in the child of a fork."""
        self._words.heard = self.process, "it was forked, and a fork takes no part in collectives"
        sys.excepthook = self._hook

    @property
    def waited(self) -> float:
        """The seconds spent waiting."""
        return self.slept + 1e-9 * int(self.counts[-2])

    @property
    def sent(self) -> int:
        """The bytes that were sent."""
        return int(self.counts[-1])

    @sent.setter
    def sent(self, value: int) -> None:
        self.counts[-1] = value

    def exchange(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> None:
        """See `Fabric.exchange`."""
        self._begun(parts, room, called).wait()

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> MpiFlight:
        """See `Fabric.start`."""
        if self._progress is None:  # within a host, MPI needs no progress thread
            return self._begun(parts, room, called)
        self._progress.begin()
        return self._begun(parts, room, called, self._progress.end)

    def count(self, processes: Iterable[int], called: str) -> tuple[dict[int, int], bytes]:
        """Return the numbers of a new exchange with each of these processes, and its name as it is sent."""
        self._require_no_failure()
        numbers = {}
        for p in processes:
            self._number = numbers[p] = int(self.counts[p]) + 1
            self.counts[p] = self._number
        self._words.now = called
        return numbers, self.name_of(called)

    def name_of(self, called: str) -> bytes:
        """Return what an exchange is called as it is sent."""
        name = self._names.get(called)
        if name is None:
            if len(self._names) > _NAMES:
                self._names.clear()
            name = self._names[called] = called.encode()[:NAME].ljust(NAME, b"\0")
        return name

    def _begun(
        self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str, over: Callable[[], None] = nothing
    ) -> MpiFlight:
        numbers, name = self.count(parts.keys() | room.keys(), called)
        near = self._near_processes
        world, byte = self._world, self._mpi.BYTE
        heads: dict[int, tuple[Any, bytearray]] = {}
        statuses: dict[int, Any] = {}
        rest: dict[int, Any] = {}
        try:
            for p, out in room.items():
                if p not in near:
                    head = bytearray(HEADER.size)
                    heads[p] = world.Irecv([head, byte], p, HEAD), head
                    rest[p], statuses[p] = world.Irecv([out, byte], p, BODY), self._mpi.Status()
            for p, part in parts.items():
                if p not in near:
                    self.sent += part.nbytes
                    rest[-1 - len(rest)] = world.Isend([HEADER.pack(numbers[p], part.nbytes, name), byte], p, HEAD)
                    rest[-1 - len(rest)] = world.Isend([part, byte], p, BODY)
        except self._mpi.Exception as error:
            raise self._lost(error) from None
        if near:
            self.tell({p: part for p, part in parts.items() if p in near}, numbers, name, stays=False)
        return MpiFlight(self, numbers, called, name, heads, rest, statuses, parts, room, over)

    def share(self, block: SharedBlock, process: int) -> None:
        """Let a process of this host map memory. Raises the errors of `exchange`."""
        assert self._near is not None
        try:
            self._near.share(block, process)
        except (ConnectionError, TimeoutError) as error:
            raise self._cut_off(error) from None

    def tell(self, parts: Mapping[int, Array], numbers: Mapping[int, int], name: bytes, *, stays: bool) -> None:
        """Send vectors to processes of this host; see `Near.tell`. Raises the errors of `exchange`."""
        assert self._near is not None
        self.sent += sum([part.nbytes for part in parts.values()])
        try:
            self._near.tell(parts, numbers, name, stays=stays)
        except (ConnectionError, TimeoutError) as error:
            raise self._cut_off(error) from None

    def land(self, flight: MpiFlight) -> None:
        """Wait for an exchange, and check that all received messages belong to it."""
        self.about(flight.numbers, flight.called)
        near = self._near_processes
        try:
            if flight.heads:
                self._wait({p: request for p, (request, _) in flight.heads.items()}, {})
            for p, (_, head) in flight.heads.items():
                number, nbytes, name = HEADER.unpack(head)
                self.compare(p, number, name, nbytes, flight.numbers[p], flight.name, flight.room[p].nbytes)
            for p, out in flight.room.items():
                if p in near:
                    note = self.note(p, flight.numbers[p], flight.name, out.nbytes)
                    flat(out)[:] = note.vector
                    self.release(p, note)
            if flight.rest:
                self._wait(flight.rest, flight.statuses)
        except self._mpi.Exception as error:
            raise self._lost(error) from None
        for p, status in flight.statuses.items():
            come, expected = status.Get_count(self._mpi.BYTE), flight.room[p].nbytes
            if come != expected:
                raise self._of_another_size(p, come, expected)

    def note(self, process: int, number: int, name: bytes, nbytes: int) -> SentNote:
        """Wait for the note of a process of this host, and check that it belongs to this exchange."""
        near = self._near
        assert near is not None
        at = process, number
        if at not in near.notes:
            near.hear(at)
            if at not in near.notes:
                self._until(lambda: at in near.notes or self._astray(at) is not None, lambda: [process], near=near)
            if at not in near.notes:
                near.hear(at)  # what was sent before the note that is astray
            if at not in near.notes:
                astray = self._astray(at)
                assert astray is not None
                raise self._elsewhere(process, astray, near.notes[process, astray].name)
        found = near.notes.pop(at)
        self.compare(process, number, found.name, len(found.vector), number, name, nbytes)
        return found

    def _astray(self, at: tuple[int, int]) -> int | None:
        """Return the number of a note of the same process that was written after more or fewer runs were left."""
        assert self._near is not None
        process, number = at
        for other, found in self._near.notes:
            if other == process and found // _LEFT != number // _LEFT:
                return found
        return None

    def release(self, process: int, note: SentNote) -> None:
        """Say that the vector of a note has been read. Raises the errors of `exchange`."""
        assert self._near is not None
        try:
            self._near.read(process, note)
        except TimeoutError as error:
            raise self._cut_off(error) from None

    def about(self, numbers: Mapping[int, int], called: str) -> None:
        """Note which exchange this process is in, by its numbers with each of the others."""
        self.in_exchange(max(numbers.values(), default=0), called)

    def in_exchange(self, number: int, called: str) -> None:
        """Note the number and the name of the exchange that this process is in."""
        self._number, self._words.now = number, called

    def compare(
        self, process: int, number: int, name: bytes, nbytes: int, own: int, expected: bytes, room: int
    ) -> None:
        """Raise RankError unless what came belongs to the exchange of a number, a name and so many bytes."""
        if number != own or name != expected:
            raise self._elsewhere(process, number, name)
        if nbytes != room:
            raise self._of_another_size(process, nbytes, room)

    def describe(self, process: int) -> str:
        """Return a description of a process."""
        return f"process {process} of {self.processes} on {self.hosts[process]}"

    # Waiting ----------------------------------------------------------------------------------------------------------

    def watch(self, done: Callable[[], bool], called: str) -> None:
        """See `Fabric.watch`."""
        self._words.now = called
        self._until(done, list)

    def watch_near(self, done: Callable[[], bool], missing: Callable[[], list[int]], called: str) -> None:
        """Return once `done()` is true of what processes of this host have said. Raises the errors of `exchange`."""
        self._words.now = called
        self._until(done, missing, near=self._near)

    def _wait(self, requests: Mapping[int, Any], statuses: Mapping[int, Any]) -> None:
        left = [*requests.items()]

        def tested(each: tuple[int, Any]) -> bool:
            return bool(each[1].Test(statuses.get(each[0])))

        def done() -> bool:
            while left and tested(left[-1]):
                left.pop()
            return not left

        def missing() -> list[int]:
            left[:] = [each for each in left if not tested(each)]
            return [process for process, _ in left if process >= 0]

        self._until(done, missing)

    def _until(self, done: Callable[[], bool], missing: Callable[[], list[int]], near: Near | None = None) -> None:
        """Wait until it is done, another process fails, or the `missing` processes time out.

        It polls, or sleeps until something comes from one that is `near`.
        """
        began = looked = now = time.perf_counter()
        while not done():
            if near is not None:
                near.rest(_LOOK, done)
                near.hear()
                if near.ended:
                    self._mourn(near, done, missing)
            elif now - began >= _BRIEF:
                time.sleep(_PAUSE)
            else:
                give_way()
            now = time.perf_counter()
            if now - looked > _LOOK or (near is not None and near.called):
                if near is not None:
                    near.called = False
                looked = now
                self.listen()
                late = missing()
                if now - began > self.timeout:
                    error = self._standstill(now - began, late)
                    if near is not None:
                        near.hear()
                    if not done():  # it may have come while the others were asked
                        raise error
                    break
        self.slept += now - began

    def _mourn(self, near: Near, done: Callable[[], bool], missing: Callable[[], list[int]]) -> None:
        """Raise RankError if what is waited for was to come from a process that has ended."""
        gone = near.ended.intersection(missing())
        if gone and not done():
            self._listen_for_why()
            raise self._died(sorted(gone))

    def listen(self) -> None:
        """Receive messages about other processes. Raises RankError if one has failed, or if MPI knows that one has
        died."""
        try:
            self._words.listen()
        except self._mpi.Exception as error:
            self._require_no_failure()
            raise self._lost(error) from None
        self._require_no_failure()

    def _listen_for_why(self) -> None:
        """Receive what others have said, one of which has died. Raises RankError if one has failed before."""
        with suppress(self._mpi.Exception):  # which says that it has died
            self._words.listen()
        self._require_no_failure()

    @property
    def has_failed(self) -> bool:
        """Whether it is known that a process has failed, so that no exchange can begin."""
        return self._words.heard is not None or self._refused is not None

    def leave_run(self, error: BaseException) -> None:
        """See `Fabric.leave_run`."""
        self.counts[: self.processes] += _LEFT
        if isinstance(error, RankError) and self._refused is None:
            self._refused = error

    def _require_no_failure(self) -> None:
        if self._refused is not None:
            raise RankError(self._refused.reason)
        if self._words.heard is not None:
            source, text = self._words.heard
            raise RankError(f"{self.describe(source)} has failed: {text}")

    # When another fails -----------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> bool:
        """See `Fabric.fail`."""
        if self._words.heard is not None or self._said:
            _note(1, "x")
            return self._said
        self._said = True
        _note(1, "x")
        reason = error.reason if isinstance(error, RankError) else str(error)
        text = reason if isinstance(error, RankError) else f"{type(error).__name__}: {reason}"
        call = nothing if self._near is None else self._near.call
        lowest = self._words.fail(text, set(self._dead()), call)
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
        if self._near is not None:
            self._near.timeout = seconds

    def _unhandled(self, kind: Any, error: BaseException, trace: Any) -> None:
        """Handle an uncaught exception: otherwise the others would wait for this process."""
        if self.fail(error):
            if not isinstance(error, OpstageError):
                print(f"{self.describe(self.process)}:", file=sys.stderr)
            self._hook(kind, error, trace)
        else:
            time.sleep(_PATIENCE)  # the process that failed terminates all, with its exit code
        self.abort(1)

    def _elsewhere(self, process: int, number: int, name: bytes) -> RankError:
        who, here = self.describe(process), self.describe(self.process)
        left, own = number // _LEFT, self._number // _LEFT
        why = "all ranks must run one program, on batches of one shape"
        if left != own:
            gone, stays = (who, here) if left > own else (here, who)
            why = f"{gone} goes on after an error by which a run has ended there, and not on {stays}"
        return RankError(
            f"{who} is in another collective: it is in number {number % _LEFT} {text_of(name)}, and {here} in number "
            f"{self._number % _LEFT} {self._words.now}; {why}"
        )

    def _standstill(self, seconds: float, missing: list[int]) -> RankError:
        try:
            answers = self._words.answers()
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
            f"collective {self._number % _LEFT}, {self._words.now}: {why}"
        )

    def _dead(self) -> list[int]:
        """Return the processes known to have died, if MPI runs with `--with-ft ulfm`."""
        try:
            group = self._world.Get_failed()
            return [int(p) for p in group.Translate_ranks(list(range(group.size)), self._world.Get_group())]
        except Exception:
            return []

    def _place(self) -> str:
        return f"in collective {self._number % _LEFT}, {self._words.now}"

    def _died(self, processes: Sequence[int]) -> RankError:
        who = " and ".join(map(self.describe, processes))
        return RankError(f"{who} has died {self._place()}; --resume goes on from the last checkpoint")

    def _cut_off(self, error: OSError) -> RankError:
        """Return the error of a note that cannot be sent."""
        process = error.args[0]
        if isinstance(error, TimeoutError):
            return self._standstill(self.timeout, [process])
        self._listen_for_why()
        return self._died([process])

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


def _note(code: int, mode: str) -> None:
    """Report to `opstage launch` how the run ended: after a process has died, Open MPI's mpiexec always returns 0."""
    path = os.environ.get(ENDED)
    if path:
        with suppress(OSError), open(path, mode) as file:
            file.write(str(code))
