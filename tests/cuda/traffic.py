"""What goes between the host and the simulated device, counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from opstage.interpreters.eager_cuda import DeviceBuffer
from opstage.interpreters.eager_cuda.device.interface import Device
from opstage.interpreters.eager_cuda.device.simulator import Simulator

Tensor = tuple[tuple[int, ...], str]
"""Shape and dtype."""


@dataclass
class Traffic:
    """Tensors in the order in which they went up or came down; not the flag of indices out of range."""

    uploads: list[Tensor] = field(default_factory=list)
    downloads: list[Tensor] = field(default_factory=list)

    def clear(self) -> None:
        self.uploads.clear()
        self.downloads.clear()


def watch(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    """Count from now on."""
    traffic = Traffic()
    upload, download = Simulator.upload, Simulator.download

    def counted_upload(device: Simulator, array: np.ndarray[Any, Any]) -> DeviceBuffer:
        traffic.uploads.append((array.shape, array.dtype.name))
        return upload(device, array)

    def counted_download(device: Simulator, buffer: DeviceBuffer) -> np.ndarray[Any, Any]:
        if buffer is not device._flag:
            traffic.downloads.append((buffer.shape, buffer.dtype.name))
        return download(device, buffer)

    monkeypatch.setattr(Simulator, "upload", counted_upload)
    monkeypatch.setattr(Simulator, "download", counted_download)
    return traffic


def stand_in(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    """Let interpreters that are made from now on use this device."""
    monkeypatch.setattr("opstage.interpreters.eager_cuda.interpreter.find_device", lambda: device)
