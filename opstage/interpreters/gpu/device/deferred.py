"""Deferred launches: parameter updates are collected and run by one multi-tensor launch.

An op only writes its own results. So a launch can wait until a result is read, through `DeviceBuffer.handle`; then all
deferred launches run, grouped by kernel and scalar arguments. A result keeps its deferred launch alive, but the list
does not: unreachable results are never computed, so an interrupted step leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, final
from weakref import ref

from ..buffer import DeviceBuffer

if TYPE_CHECKING:
    from .context import OpContext
    from .interface import Device

MOST = 1024
"""The limit of deferred launches; at this number they run, since one launch is then large enough."""


@final
class DeferredLaunch:
    """The deferred launch of one op: results from operands, by a kernel with additional `shared` arguments."""

    __slots__ = ("kernel", "results", "operands", "shared", "context", "__weakref__")

    def __init__(
        self,
        kernel: Callable[..., None],
        results: tuple[DeviceBuffer, ...],
        operands: tuple[DeviceBuffer, ...],
        shared: tuple[Any, ...],
        context: OpContext,
    ):
        self.kernel = kernel
        self.results = results
        self.operands = operands
        self.shared = shared
        self.context = context

    @property
    def waits(self) -> bool:
        return self.results[0].memory.job is self

    @property
    def kind(self) -> Hashable:
        """A key, equal for launches that can be combined; numbers by their bits, since 0 is not -0."""
        shared = [a.memory if type(a) is DeviceBuffer else (type(a), a.tobytes()) for a in self.shared]
        return (self.kernel, self.results[0].dtype, self.context.watch, *shared)

    def done(self) -> None:
        for result in self.results:
            result.memory.job = None


@final
class DeferredLaunches:
    """The deferred launches of a device. The caller must hold the device's lock."""

    def __init__(self, device: Device):
        self._device = device
        self._jobs: list[ref[DeferredLaunch]] = []
        self._launching = False

    def add(self, job: DeferredLaunch) -> None:
        """Defer a launch, after launching deferred work on its operands."""
        for buffer in (*job.operands, *job.shared):
            if type(buffer) is DeviceBuffer:
                buffer.handle  # noqa: B018  # launches the work that produces it
        if len(self._jobs) >= MOST:
            self.launch()
        self._jobs.append(ref(job))
        for result in job.results:
            result.memory.job = job

    def launch(self) -> None:
        """Launch all deferred work. If a launch fails, it and those after it stay deferred."""
        if self._launching or not self._jobs:  # a launch itself accesses the handles of the results
            return
        device = self._device
        asking = device.context
        try:
            self._launching = True
            self._launch_all()
        finally:
            self._launching = False
            device.context = asking

    def _launch_all(self) -> None:
        device = self._device
        for jobs in self._alike():
            first, tensors = jobs[0], [(*job.results, *job.operands) for job in jobs]
            device.serve(first.context, device.each_tensor, first.kernel, tensors, *first.shared)
            for job in jobs:
                job.done()
        self._jobs.clear()

    def _alike(self) -> list[list[DeferredLaunch]]:
        """Group the deferred launches into multi-tensor launches, in order."""
        found: dict[Hashable, list[DeferredLaunch]] = {}
        for waiting in self._jobs:
            job = waiting()
            if job is not None and job.waits:
                found.setdefault(job.kind, []).append(job)
        return list(found.values())
