"""What goes between the host and the simulated device, and what is launched there, counted."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from opstage.compiler.gpu.device import Device
from opstage.compiler.gpu.simulator import Simulator
from opstage.interpreters.eager_cuda import DeviceBuffer
from opstage.ops.errors import OutOfMemoryError
from opstage.ops.trees import flatten
from opstage.optim import Optimizer
from opstage.training.trainer import ScalarTrainer

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


def same(left: Any, right: Any) -> None:
    for a, b in zip(flatten(left)[0], flatten(right)[0], strict=True):
        np.testing.assert_array_equal(a, b)


def close(left: Any, right: Any) -> None:
    for a, b in zip(flatten(left)[0], flatten(right)[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def advance_stopped_anywhere(
    device: Simulator | None,
    trainers: list[ScalarTrainer],
    optimizer: Optimizer,
    batch: tuple[Any, ...],
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two equal trainers stop a step of the first before each of its launches: all stays as it was, memory on
    `device` too, and the step that is not stopped is that of the second."""
    trainer, peer = trainers
    state, its = trainer.init_optim(optimizer), peer.init_optim(optimizer)
    for _ in range(steps):
        trainer.advance(optimizer, state, *batch)
        peer.advance(optimizer, its, *batch)
    gc.collect()
    used = device.used if device is not None else 0
    params, moments = trainer.get_params(), trainer.export_optim(optimizer, state)
    stopped = 0
    for _ in stopping_launches(monkeypatch):
        try:
            trainer.advance(optimizer, state, *batch)
        except Stopped:
            stopped += 1
        else:
            break
        assert trainer.steps_taken == state.t == steps
        same(trainer.get_params(), params)
        same(trainer.export_optim(optimizer, state).slots["w"], moments.slots["w"])
        gc.collect()
        assert device is None or device.used == used
    assert stopped > 3
    peer.advance(optimizer, its, *batch)
    same(trainer.get_params(), peer.get_params())


def advance_without_room(
    device: Simulator, trainer: ScalarTrainer, optimizer: Optimizer, batch: tuple[Any, ...], rooms: range
) -> set[str | None]:
    """Give a step more room each time until it is taken: refused ones change nothing. Returns the ops that asked."""
    state = trainer.init_optim(optimizer)
    trainer.advance(optimizer, state, *batch)
    params = trainer.get_params()
    trainer.empty_cache()
    used, refused = device.used, set()
    for room in rooms:
        gc.collect()
        device.limit = used + room
        try:
            trainer.advance(optimizer, state, *batch)
            break
        except OutOfMemoryError as error:
            refused.add(error.op)
            assert "bytes were requested on the simulated device" in error.reason
            same(trainer.get_params(), params)
            assert trainer.steps_taken == state.t == 1
    assert refused and trainer.steps_taken == 2
    return refused
