"""Launches: the op that they are for, indices out of range, deferred launches, and sequences of calls that a device
replays, one by one or as a CUDA graph, captured once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final
from weakref import ref

from typing_extensions import override

from ...ops.errors import DeviceError, RangeError, SourceLine
from ...options import CudaGraphs, MatmulPrecision
from .buffer import DeviceBuffer

if TYPE_CHECKING:
    from .device import Device

# Indices out of range -------------------------------------------------------------------------------------------------

# A kernel that finds such an index sets a flag to the number of its op, unless an earlier op did. Checking the flag
# copies four bytes; only if it is set is more work done, to raise the same error as other interpreters. Each
# interpreter has its own watch, so an error of another one, perhaps in another thread, is raised there.

Require = Callable[[str, tuple[int, ...], Any], None]
"""A function `(op, shape of a tensor, indices into it)` that raises RangeError if an index is out of range."""


class Watched(NamedTuple):
    """An op that reads or writes at indices: its name, place and operands, and its requirement on them."""

    op: str
    region: str
    source: SourceLine | None
    shape: tuple[int, ...]
    idx: DeviceBuffer
    require: Require


@final
class Watch:
    """The index checks of one interpreter on a device, active while that interpreter holds its lock.

    flag      0, or the number of the first op in `watched` with an index out of range; None before the first use
    watched   the ops since the last check of the flag that may have had one
    """

    __slots__ = ("flag", "watched")

    def __init__(self) -> None:
        self.flag: DeviceBuffer | None = None
        self.watched: list[Watched] = []


def range_error(watched: Watched, download: Callable[[DeviceBuffer], Any]) -> RangeError:
    """Return the error of an op whose index was out of range."""
    try:
        watched.require(watched.op, watched.shape, download(watched.idx))
    except RangeError as error:
        error.source, error.region = watched.source, watched.region
        return error
    raise AssertionError(f"the flag of {watched.op} was set, but its indices are all in range")


# The current op -------------------------------------------------------------------------------------------------------


class OpContext(NamedTuple):
    """An op and its settings, passed to a device with the work that launches its kernels.

    op, region      its name and region, for errors, which may be detected later
    precision       the precision of float32 products, see Options.matmul_precision
    watch           the index checks of the calling interpreter
    """

    op: str
    region: str
    precision: MatmulPrecision
    watch: Watch


# Deferred launches ----------------------------------------------------------------------------------------------------

# An op only writes its own results. So a launch can wait until a result is read, through `DeviceBuffer.handle`; then
# all deferred launches run, grouped by kernel and scalar arguments. A result keeps its deferred launch alive, but the
# list does not: unreachable results are never computed, so an interrupted step leaves nothing behind.

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
        """Return a key, equal for launches that can be combined; numbers by their bits, since 0 is not -0."""
        shared = [a.memory if type(a) is DeviceBuffer else (type(a), a.tobytes()) for a in self.shared]
        return (self.kernel, self.results[0].dtype, self.context.watch, *shared)

    def release(self) -> None:
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
                job.release()
        self._jobs.clear()

    def _alike(self) -> list[list[DeferredLaunch]]:
        """Group the deferred launches into multi-tensor launches, in order."""
        found: dict[Hashable, list[DeferredLaunch]] = {}
        for waiting in self._jobs:
            job = waiting()
            if job is not None and job.waits:
                found.setdefault(job.kind, []).append(job)
        return list(found.values())


# Sequences of launches ------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One call: the method's name and arguments, its op, and the precision of products."""

    method: str
    arguments: tuple[Any, ...]
    more: Mapping[str, Any]
    op: str
    region: str
    precision: MatmulPrecision

    def context(self, device: Device) -> OpContext:
        """Return the op context of the call."""
        return OpContext(self.op, self.region, self.precision, device.context.watch)

    def ask(self, device: Device) -> None:
        device.serve(self.context(device), getattr(device, self.method), *self.arguments, **self.more)


class Script:
    """Calls that are repeated in order on memory that the caller keeps."""

    def __init__(self, device: Device, calls: Sequence[Call]):
        self.device = device
        self.calls = tuple(calls)

    def prepare(self) -> None:
        """Do everything in the next run that may fail."""

    def run(self) -> None:
        """Make all calls; returns before the work is done."""
        with self.device.lock:
            for call in self.calls:
                call.ask(self.device)


# CUDA graphs ----------------------------------------------------------------------------------------------------------


class Captures(Protocol):
    """A device that can capture calls."""

    def load(self, call: Call) -> None:
        """Compile the kernel of a launch, if it is one, and load it on the device."""
        ...

    def captured(self, work: Callable[[], None]) -> Any:
        """Capture the launches of `work` as a graph, without running them."""
        ...

    def replay(self, graph: Any) -> None:
        """Launch a captured graph; returns before it is done."""
        ...

    def capture_failed(self, error: DeviceError) -> None:
        """Report that a capture failed with this error and its calls were made one by one."""
        ...


@final
class Captured(Script):
    """The first run makes the calls one by one, so that kernels are loaded and matmul algorithms chosen, which is not
    allowed within a capture. The second run is captured. From then on a run is one launch.

    A capture that the driver rejects has run nothing, so the calls are made one by one instead; with `graphs` "always"
    that is an error. Capturing is not retried once the calls have succeeded.
    """

    def __init__(self, device: Device, captures: Captures, calls: Sequence[Call], graphs: CudaGraphs = "auto"):
        super().__init__(device, calls)
        self._captures = captures
        self._graphs = graphs
        self._ran = False
        self._graph: Any = None
        self._refused: DeviceError | None = None

    @override
    def prepare(self) -> None:
        with self.device.lock:
            self._prepare()

    def _prepare(self) -> None:
        if not self._ran:
            for call in self.calls:
                self._captures.load(call)
        elif self.calls and self._graph is None and self._refused is None and self._graphs != "never":
            try:
                self._graph = self._captures.captured(super().run)
            except DeviceError as error:
                if error.lost or self._graphs == "always":
                    raise
                self._refused = error

    @override
    def run(self) -> None:
        with self.device.lock:
            self._prepare()
            if self._graph is not None:
                self._captures.replay(self._graph)
                return
            refused = self._refused
            if self._ran:
                self._refused = None  # if the calls fail as well, the capture was not the cause
            super().run()
            self._ran, self._refused = True, refused
            if refused is not None:
                self._captures.capture_failed(refused)
