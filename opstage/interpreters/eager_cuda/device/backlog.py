"""Work that is put off, so that what would take one launch for each tensor takes one for all: updates of parameters.

An op writes no memory but that of its results. So a job may wait until somebody reads one of them, which is when
`DeviceBuffer.handle` is asked for; then everything that waits is launched, jobs of one kernel and the same numbers
together. A result keeps its job, and the list of jobs does not: what nobody can read any more is not computed, so a
step that was cut short leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, final
from weakref import ref

from ....ops.errors import LocatedError
from ..buffer import DeviceBuffer

if TYPE_CHECKING:
    from .interface import Device

MOST = 1024
"""Jobs that wait at most; a launch of so many is long enough."""


@final
class Job:
    """What one op asked for: results from operands, by a kernel that gets `shared` besides."""

    __slots__ = ("kernel", "results", "operands", "shared", "op", "region", "__weakref__")

    def __init__(
        self,
        kernel: Callable[..., None],
        results: tuple[DeviceBuffer, ...],
        operands: tuple[DeviceBuffer, ...],
        shared: tuple[Any, ...],
        op: str,
        region: str,
    ):
        self.kernel = kernel
        self.results = results
        self.operands = operands
        self.shared = shared
        self.op = op
        self.region = region

    @property
    def waits(self) -> bool:
        return self.results[0].memory.job is self

    @property
    def kind(self) -> Hashable:
        """The same for jobs that one launch can do; numbers by their bits, since 0 is not -0."""
        shared = [a.memory if type(a) is DeviceBuffer else (type(a), a.tobytes()) for a in self.shared]
        return (self.kernel, self.results[0].dtype, *shared)

    def done(self) -> None:
        for result in self.results:
            result.memory.job = None


@final
class Backlog:
    """The jobs of a device that wait."""

    def __init__(self, device: Device):
        self._device = device
        self._jobs: list[ref[Job]] = []
        self._launching = False

    def add(self, job: Job) -> None:
        """Let it wait. What it reads itself must not wait."""
        for buffer in (*job.operands, *job.shared):
            if type(buffer) is DeviceBuffer:
                buffer.handle  # noqa: B018  # launches what it waits for
        if len(self._jobs) >= MOST:
            self.launch()
        self._jobs.append(ref(job))
        for result in job.results:
            result.memory.job = job

    def launch(self) -> None:
        """Launch all that waits. Where one fails, it and what comes after it wait on."""
        if self._launching or not self._jobs:
            return
        device = self._device
        place = device.op, device.region
        try:
            self._launching = True
            for jobs in self._alike():
                device.op, device.region = jobs[0].op, jobs[0].region
                device.each_tensor(jobs[0].kernel, [(*job.results, *job.operands) for job in jobs], *jobs[0].shared)
                for job in jobs:
                    job.done()
            self._jobs.clear()
        except LocatedError as error:
            error.place(device.op, device.region)
            raise
        finally:
            self._launching = False
            device.op, device.region = place

    def _alike(self) -> list[list[Job]]:
        """The jobs by the launches that do them, in the order in which they were asked for."""
        found: dict[Hashable, list[Job]] = {}
        for waiting in self._jobs:
            job = waiting()
            if job is not None and job.waits:
                found.setdefault(job.kind, []).append(job)
        return list(found.values())
