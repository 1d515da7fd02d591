"""What goes between the host and the simulated device, and what is launched there, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from opstage.compiler.gpu.device import Device
from opstage.compiler.gpu.simulator import Simulator
from opstage.interpreters.eager_cuda import DeviceBuffer

Tensor = tuple[tuple[int, ...], str]
"""Shape and dtype."""


@dataclass
class Traffic:
    """Tensors in the order in which they went up or came down; not the flag of indices out of range.

    launches   kernels by name
    """

    uploads: list[Tensor] = field(default_factory=list)
    downloads: list[Tensor] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)

    def clear(self) -> None:
        self.uploads.clear()
        self.downloads.clear()
        self.launches.clear()


def watch(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    """Count from now on."""
    traffic = Traffic()
    upload, download, launch = Simulator.upload, Simulator.download, Simulator.launch

    def counted_upload(device: Simulator, array: np.ndarray[Any, Any]) -> DeviceBuffer:
        traffic.uploads.append((array.shape, array.dtype.name))
        return upload(device, array)

    def counted_download(device: Simulator, buffer: DeviceBuffer) -> np.ndarray[Any, Any]:
        if buffer is not device.context.watch.flag:
            traffic.downloads.append((buffer.shape, buffer.dtype.name))
        return download(device, buffer)

    def counted_launch(device: Simulator, kernel: Callable[..., None], *arguments: Any) -> None:
        traffic.launches.append(kernel.__name__)
        launch(device, kernel, *arguments)

    monkeypatch.setattr(Simulator, "launch", counted_launch)
    monkeypatch.setattr(Simulator, "upload", counted_upload)
    monkeypatch.setattr(Simulator, "download", counted_download)
    return traffic


class Stopped(Exception):
    """What a launch raises that is not made."""


def stopping_launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the n-th launch from now on raise, n = 0, 3, 6, …"""
    launch, n = Simulator.launch, 0
    while True:
        left = n

        def stopping(self: Simulator, *arguments: Any) -> None:
            nonlocal left
            if not left:
                raise Stopped
            left -= 1
            launch(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Simulator, "launch", stopping)
            yield
        n += 3


def stand_in(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    """Let interpreters that are made from now on use this device."""
    monkeypatch.setattr("opstage.interpreters.eager_cuda.interpreter.find_device", lambda number: device)
