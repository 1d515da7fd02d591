"""The processes of a run: how they were started, meet, and end together, and which ranks of a mesh each hosts."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import IO, Any, NamedTuple, final

from ..ops.errors import UsageError
from ..ops.mesh import Mesh, parse_mesh
from ..options import Options
from .transport import ONE_PROCESS, Transport

_COUNTS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("SLURM_STEP_NUM_TASKS", "PMIX_RANK"),
)
"""The variables in which launchers pass the number of processes, and this process's number."""

ENDED = "_OPSTAGE_ENDED"
"""The variable with the file from which a launcher reads the exit code of a run."""

TERMINAL = "_OPSTAGE_TERMINAL"
"""The variable with which a launcher says whether its output is a terminal: 1 or 0."""

PATIENCE = 60.0
"""Seconds in which all processes must start, unless the variable of the option timeout overrides it."""

_LOCAL = threading.local()
_WORLD: list[Transport] = []


_JOINING = "srun --mpi=pmix (Open MPI) or srun --mpi=pmi2 (MPICH)"


class NotJoinedError(UsageError):
    """Processes that a launcher has started together, but that MPI does not join.

    All of them raise it, and cannot tell each other; `speaks` says of one that it reports the error for all.
    """

    def __init__(self, message: str, *, speaks: bool):
        super().__init__(message)
        self.speaks = speaks


def launched(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return (this process's number, number of processes) as started by `mpiexec` or `srun`; (0, 1) for a single
    process."""
    environ = os.environ if environ is None else environ
    for size, rank in _COUNTS:
        found = environ.get(size, ""), environ.get(rank, "")
        if all(text.isascii() and text.isdigit() for text in found):
            return int(found[1]), max(1, int(found[0]))
    return 0, 1


def is_terminal(stream: IO[Any] | None) -> bool:
    """Return whether a person reads the stream on a terminal that moves its cursor.

    mpiexec gives its processes a pseudo-terminal wherever their output goes, so `opstage launch` tells what its own is.
    """
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    return os.environ.get(TERMINAL, "1" if launched()[1] == 1 else "0") == "1"


def require_mpi_tasks(mesh: Mesh, environ: Mapping[str, str] | None = None) -> None:
    """Raise NotJoinedError if `srun` started several tasks without MPI, so that each would host the whole mesh."""
    environ = os.environ if environ is None else environ
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if launched(environ)[1] == 1 and tasks.isdecimal() and int(tasks) > 1 and mesh.ranks > 1:
        raise NotJoinedError(
            f"srun has started {tasks} tasks, but MPI joins none of them, so each would host all of mesh "
            f"{str(mesh)!r}; start them by {_JOINING}",
            speaks=environ.get("SLURM_PROCID", "0") == "0",
        )


def world() -> Transport:
    """Return the transport between the processes of this run, created on first use. Raises UsageError without
    mpi4py, and NotJoinedError if MPI knows of another number of processes than their launcher."""
    here: Transport | None = getattr(_LOCAL, "transport", None)
    if here is not None:
        return here
    if not _WORLD:
        if launched()[1] == 1:
            return ONE_PROCESS
        from .mpi import MpiTransport

        said = os.environ.get("OPSTAGE_TIMEOUT")
        patience = PATIENCE if said is None else float(Options.from_env({"OPSTAGE_TIMEOUT": said}).timeout)
        transport, (process, processes) = MpiTransport(patience), launched()
        if transport.processes != processes:
            raise NotJoinedError(
                f"this is process {process} of {processes} by the variables of its launcher, but MPI knows of "
                f"{transport.processes}: they cannot meet; start them by the mpiexec of the same MPI, by opstage "
                f"launch, or by {_JOINING}",
                speaks=process == 0,
            )
        _WORLD.append(transport)
    return _WORLD[0]


@contextmanager
def using(transport: Transport) -> Iterator[None]:
    """Make this thread act as one of the processes that `transport` connects: for tests."""
    before = getattr(_LOCAL, "transport", None)
    _LOCAL.transport = transport
    try:
        yield
    finally:
        _LOCAL.transport = before


def own_number(options: Options, seen: Callable[[], int]) -> int:
    """Return the number of the GPU that these options select for this process, among those it can see.

    On a mesh of several processes each has its own GPU: by default, the one at its position among the processes of its
    host, or the only visible one, since launchers may show each process another GPU. Raises UsageError for more
    processes than GPUs on a host.
    """
    if options.device != "cuda" or parse_mesh(options.mesh).ranks == 1:
        return options.device_number
    transport = world()
    host, count = transport.hosts[transport.process], 1 if transport.processes == 1 else seen()
    if count <= 1:
        return 0
    here = list(transport.hosts).count(host)
    if here > count:
        raise UsageError(
            f"{here} of {transport.processes} processes are on {host}, where they see {count} GPUs, and on device "
            f"'cuda' each process of a mesh needs its own GPU; start at most {count} there, each of which hosts "
            "more ranks"
        )
    return list(transport.hosts[: transport.process]).count(host)


def require_hosted(mesh: Mesh, processes: int) -> int:
    """Return the number of ranks per process. Raises UsageError if the ranks do not divide evenly."""
    if mesh.ranks % processes == 0:
        return mesh.ranks // processes
    said = f"mesh {str(mesh)!r} has {mesh.ranks} ranks" if mesh.axes else "there is no mesh, so there is one rank"
    if processes > mesh.ranks:
        raise UsageError(
            f"{said}, but {processes} processes were started; each hosts at least one: start fewer, or give a larger "
            f"mesh, such as data={processes}"
        )
    raise UsageError(
        f"{said}, which {processes} processes cannot host in equal numbers; start a number that divides {mesh.ranks}"
    )


# How a process meets others, and ends with them -----------------------------------------------------------------------


def wait_until_all_processes_have_started(seconds: float) -> Any:
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


def end_at_last(seconds: float) -> None:
    """Let this process exit even if another one has died and will not take part in MPI's finalisation."""
    faulthandler.dump_traceback_later(seconds, exit=True)


def pause_to_the_microsecond() -> None:
    """Reduce the kernel's timer slack for this thread."""
    if sys.platform == "linux":
        timer_slack, nanoseconds = 29, 1000
        ctypes.CDLL(None).prctl(timer_slack, nanoseconds)


def end_with_launcher() -> None:
    """Have the kernel kill this process when its parent, the launcher, ends."""
    if sys.platform == "linux":
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)
        if os.getppid() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


# The ranks that a process hosts ---------------------------------------------------------------------------------------


class RankGroup(NamedTuple):
    """The ranks of a collective, as seen by this process.

    ranks   how many they are; `own` maps the index of each hosted one to its number
    others  the first index of each other process's ranks, and the one after its last
    """

    ranks: int
    own: Mapping[int, int]
    others: Mapping[int, tuple[int, int]]


class Hosting(NamedTuple):
    """A mesh, and the processes that host its ranks."""

    mesh: Mesh
    transport: Transport

    @property
    def ranks(self) -> range:
        """Return the ranks hosted by this process."""
        count = require_hosted(self.mesh, self.transport.processes)
        return range(self.transport.process * count, (self.transport.process + 1) * count)

    def along(self, axis: str) -> tuple[int, ...]:
        """Return the coordinates of hosted ranks along an axis."""
        return tuple([self.mesh.coordinate(rank, axis) for rank in self.ranks])

    def crosses(self, axis: str) -> bool:
        """Return whether any group along an axis spans several processes; equal on all processes."""
        return _crosses(self.mesh, len(self.ranks), axis)

    def groups(self, axis: str) -> tuple[int, ...]:
        """Return the first rank of each hosted rank's group along an axis: a group's ranks differ only in that
        coordinate."""
        return tuple([self.mesh.group(rank, axis)[0] for rank in self.ranks])

    def spread(self, axis: str) -> list[RankGroup]:
        """Return the groups along an axis that have hosted ranks, in one order on all processes."""
        made, here = [], self.ranks
        for group in sorted({self.mesh.group(rank, axis) for rank in here}):
            spread: dict[int, list[int]] = {}
            for index, rank in enumerate(group):
                spread.setdefault(rank // len(here), []).append(index)
            own = {index: group[index] - here[0] for index in spread.pop(self.transport.process)}
            made.append(RankGroup(len(group), own, {p: (indices[0], indices[-1] + 1) for p, indices in spread.items()}))
        return made


@lru_cache(256)
def _crosses(mesh: Mesh, hosted: int, axis: str) -> bool:
    groups = {mesh.group(rank, axis) for rank in range(mesh.ranks)}
    return any(group[0] // hosted != group[-1] // hosted for group in groups)


# What processes tell each other about failures, beside the exchanges --------------------------------------------------

FAILED, ASK, ANSWER = 1, 2, 3
_ANSWERS = 1.5
"""Seconds in which a waiting process must answer."""
_TOGETHER = 0.5
"""Seconds in which a process that has noticed a failure hears of a lower one that has."""
_DELIVERY = 0.02
"""Seconds in which MPI delivers the messages of a failure."""


@final
class ControlMessages:
    """The messages between all processes about failures, on their own communicator.

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
        its own error, else if it is the lowest of those that notice one at the same time.

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
