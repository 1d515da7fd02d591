"""`Processes`: statistics of each process of a run: its ranks, its time, its waiting, the bytes it sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from ..distributed.fabric import Fabric
from ..interpreters.formula import show_size
from ..ops.mesh import Mesh
from ..training.fit import EpochResult
from .together import gathered, hostname


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
        """The label: `ranks 0-1`."""
        first, last = self.ranks
        return f"rank {first}" if first == last else f"ranks {first}-{last}"


@final
class Processes:
    """An observer in every process of a run that shares the statistics after each epoch.

    table   the shares of all, in the order of the processes; empty for one process, and before the first epoch
    """

    def __init__(self, fabric: Fabric, mesh: Mesh):
        self._fabric = fabric
        count = mesh.ranks // fabric.processes
        self._ranks = (fabric.process * count, (fabric.process + 1) * count - 1)
        self._seconds = 0.0
        self._before = fabric.waited, fabric.sent
        self.table: Sequence[ProcessShare] = ()

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """Do nothing: statistics are only shared after epochs."""

    def epoch(self, result: EpochResult) -> None:
        """Gather the statistics; called by all processes for the same epoch."""
        self._seconds += result.seconds
        waited, sent = self._fabric.waited - self._before[0], self._fabric.sent - self._before[1]
        mine = [hostname(), *self._ranks, self._seconds, waited, sent]
        self.table = tuple(
            [
                ProcessShare(number, host, (first, last), seconds, waited, sent)
                for number, (host, first, last, seconds, waited, sent) in enumerate(gathered(self._fabric, mine))
            ]
        )

    def lines(self) -> list[str]:
        """A line for each process."""
        return [
            f"  process {share.process} on {share.host}, {share.name}: {share.seconds:.1f} s, of which it waited "
            f"{share.waited:.1f} s; sent {show_size(share.sent)}"
            for share in self.table
        ]

    def data(self) -> list[dict[str, Any]]:
        """Return the table as plain data."""
        return [{**asdict(share), "ranks": list(share.ranks)} for share in self.table]
