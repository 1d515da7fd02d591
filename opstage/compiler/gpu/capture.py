"""Capture calls as a CUDA graph once, then launch the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

from typing_extensions import override

from ...ops.errors import DeviceError
from ...options import CudaGraphs
from .device import Device
from .launches import Call, Script


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

    def gave_up(self, error: DeviceError) -> None:
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
                self._captures.gave_up(refused)
