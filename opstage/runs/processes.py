"""A run on several processes: checks that they agree, and that all end at the same step."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, final

import numpy as np

from ..compiler.native.thread_pool import workers
from ..distributed.processes import require_hosted
from ..distributed.transport import Transport
from ..ops.errors import UsageError
from ..ops.mesh import Mesh, parse_mesh
from ..ops.readable_amounts import show_size
from ..training.fit import EpochResult, Position, Saver
from ..training.state import OptimizerState
from .directory import THREADS, versions_here
from .run_setup import Task
from .settings import Configuration

_OWN = frozenset({"run.out", "data.file", "options.timeout"})
"""Settings that may differ between processes; data are compared by content."""


@final
class DisagreementError(UsageError):
    """The processes of a run disagree; all processes raise this and end."""


def agree(transport: Transport, document: Mapping[str, Any], error: str = "") -> None:
    """Compare the work that the processes are about to start. All call this once, with an error instead if they have
    one.

    Raises DisagreementError, the same one on all.
    """
    outcomes = gather_documents(transport, {"error": error, "has": dict(document)})
    transport.agreed = True
    failed = [(number, outcome["error"]) for number, outcome in enumerate(outcomes) if outcome["error"]]
    if failed:
        number, text = failed[0]
        alike = len(failed) == len(outcomes) and len({text for _, text in failed}) == 1
        raise DisagreementError(text if alike else f"process {number} of {len(outcomes)}: {text}")
    first = outcomes[0]["has"]
    for number, outcome in enumerate(outcomes[1:], 1):
        for name in sorted({*first, *outcome["has"]}):
            one, other = first.get(name), outcome["has"].get(name)
            if one != other:
                raise DisagreementError(
                    f"the processes of this run differ: {name} is {one} on process 0, and {other} on process {number}; "
                    "all must have the same settings, data, model files and packages"
                )


def fingerprint(task: Task, configuration: Configuration) -> dict[str, Any]:
    """Return everything that must be equal on all processes of a run, by name."""
    has: dict[str, Any] = {**versions_here(), "CPU": platform.machine()}
    has.update({path: text for path, text in configuration.literals().items() if path not in _OWN})
    has["threads"] = workers()
    has.update({name: os.environ.get(name, "") for name in THREADS})
    for part, digest in task.data.items():
        has[f"the digest of the {part.replace('_', '-')} data"] = _digest(json.dumps(digest, sort_keys=True).encode())
    for path, text in task.settings.defined.texts.items():
        has[f"the digest of {getattr(path, 'name', path)}"] = _digest(text)
    return has


def require_processes(task: Task, transport: Transport) -> None:
    """Raise UsageError if these processes cannot host the mesh of a run."""
    if transport.processes > 1:
        require_hosted(parse_mesh(task.settings.options.mesh), transport.processes)


def connect(task: Task) -> None:
    """Join the GPUs of all processes, if they have some. Raises DisagreementError, the same one on all."""
    try:
        task.trainer.connect()
    except UsageError as error:  # the processes have compared what each has
        raise DisagreementError(str(error)) from error


def broadcast_number(transport: Transport, value: int) -> int:
    """Broadcast a number of process 0 to all processes; all wait for it."""
    return int(gather_documents(transport, value)[0])


@contextmanager
def raise_together(transport: Transport) -> Iterator[None]:
    """Raise an error that process 0 had in a block, in which it writes, on all processes."""
    error: UsageError | None = None
    try:
        yield
    except UsageError as failed:
        if transport.processes == 1:
            raise
        error = failed
    if transport.processes > 1:
        texts = [text for text in gather_documents(transport, "" if error is None else str(error)) if text]
        if texts:
            raise DisagreementError(texts[0]) from error


@final
class Voting:
    """A Saver that stops all processes after the same step once one of them was asked to; then `saver` saves."""

    def __init__(self, saver: Saver | None, transport: Transport):
        self._saver, self._transport = saver, transport
        self.asked = self._agreed = False

    def boundary(self, state: OptimizerState, position: Position) -> None:
        """Stop everywhere if any process was asked to."""
        if self._saver is not None:
            self._saver.boundary(state, position)
        others = [process for process in range(self._transport.processes) if process != self._transport.process]
        mine = np.array([self.asked], np.int8)
        votes = {process: np.zeros(1, np.int8) for process in others}
        self._transport.exchange(dict.fromkeys(others, mine), votes, "the vote whether to stop")
        if mine[0] or any(vote[0] for vote in votes.values()):
            self._agreed = True
            raise KeyboardInterrupt

    def interrupted(self, state: OptimizerState, position: Position) -> None:
        """Save if the stop was agreed; saving is collective, so an interrupt of one process alone saves nothing."""
        if self._saver is not None and self._agreed:
            self._saver.interrupted(state, position)

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Treat SIGINT, SIGTERM and SIGUSR1 in a block as a request to stop; a second signal stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._hear) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number != _SIGNALS[-1]:
            raise KeyboardInterrupt
        self.asked = True


_SIGNALS = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM))


def gather_documents(transport: Transport, document: Any) -> list[Any]:
    """Return the documents of all processes, in their order."""
    others = [process for process in range(transport.processes) if process != transport.process]
    text = np.frombuffer(json.dumps(document).encode(), np.uint8)
    sizes = {process: np.zeros(1, np.int64) for process in others}
    transport.exchange(
        dict.fromkeys(others, np.array([text.size], np.int64)), sizes, "what each process is about to do"
    )
    room = {process: np.zeros(int(size[0]), np.uint8) for process, size in sizes.items()}
    transport.exchange(dict.fromkeys(others, text), room, "what each process is about to do, in words")
    room[transport.process] = text
    return [json.loads(room[process].tobytes()) for process in range(transport.processes)]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


# Statistics of each process of a run ----------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class ProcessShare:
    """The work of a process since the start of the run, or of this part of it.

    ranks     the first and the last rank that it hosts
    seconds   of training, including waiting
    waited    seconds of waiting for others, in training and elsewhere
    sent      bytes, for sums and for messages between processes
    """

    process: int
    host: str
    ranks: tuple[int, int]
    seconds: float
    waited: float
    sent: int

    @property
    def name(self) -> str:
        """Return the label: `ranks 0-1`."""
        first, last = self.ranks
        return f"rank {first}" if first == last else f"ranks {first}-{last}"


@final
class Processes:
    """An observer in every process of a run that shares the statistics after each epoch.

    table   the shares of all, in the order of the processes; empty for one process, and before the first epoch
    """

    def __init__(self, transport: Transport, mesh: Mesh):
        self._transport = transport
        count = mesh.ranks // transport.processes
        self._ranks = (transport.process * count, (transport.process + 1) * count - 1)
        self._seconds = 0.0
        self._before = transport.waited, transport.sent
        self.table: Sequence[ProcessShare] = ()

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """Do nothing: statistics are only shared after epochs."""

    def epoch(self, result: EpochResult) -> None:
        """Gather the statistics; called by all processes for the same epoch."""
        self._seconds += result.seconds
        waited, sent = self._transport.waited - self._before[0], self._transport.sent - self._before[1]
        mine = [socket.gethostname(), *self._ranks, self._seconds, waited, sent]
        self.table = tuple(
            [
                ProcessShare(number, host, (first, last), seconds, waited, sent)
                for number, (host, first, last, seconds, waited, sent) in enumerate(
                    gather_documents(self._transport, mine)
                )
            ]
        )

    def lines(self) -> list[str]:
        """Return a line for each process."""
        return [
            f"  process {share.process} on {share.host}, {share.name}: {share.seconds:.1f} s, of which it waited "
            f"{share.waited:.1f} s; sent {show_size(share.sent)}"
            for share in self.table
        ]

    def data(self) -> list[dict[str, Any]]:
        """Return the table as plain data."""
        return [{**asdict(share), "ranks": list(share.ranks)} for share in self.table]
