"""Calls as a CUDA graph: captured once, then launched as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

from typing_extensions import override

from .interface import Device
from .script import Call, Script


class Captures(Protocol):
    """A device that can capture what it is asked for."""

    def load(self, call: Call) -> None:
        """Compile the kernel of a launch, if it is one, and bring it to the device."""
        ...

    def captured(self, work: Callable[[], None]) -> Any:
        """What `work` asks for, none of it done, as a graph."""
        ...

    def replay(self, graph: Any) -> None:
        """Do what was captured; returns before it is done."""
        ...


@final
class Captured(Script):
    """The first run makes the calls one by one, so that kernels are loaded and algorithms of products chosen: neither
    may happen within a capture. The second one is captured. From then on a run is one launch.
    """

    def __init__(self, device: Device, captures: Captures, calls: Sequence[Call]):
        super().__init__(device, calls)
        self._captures = captures
        self._ran = False
        self._graph: Any = None

    @override
    def prepare(self) -> None:
        if not self._ran:
            for call in self.calls:
                self._captures.load(call)
        elif self.calls and self._graph is None:
            self._graph = self._captures.captured(super().run)

    @override
    def run(self) -> None:
        self.prepare()
        if self._graph is not None:
            self._captures.replay(self._graph)
        else:
            super().run()
            self._ran = True
