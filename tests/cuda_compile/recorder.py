"""A device that computes nothing and notes every launch: which kernels a program needs, and in which types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from opstage.compiler.gpu.buffer import DeviceBuffer, Memory, Signature, signature_of
from opstage.compiler.gpu.device import Device, pointer_type
from opstage.compiler.gpu.simulator import launch_product
from opstage.ops.types import TensorType


@final
class Recorder(Device):
    """Every element that a kernel should have written is 0.

    launches   the ops that launched a kernel with a signature, by the two
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: dict[tuple[Callable[..., None], Signature], set[str]] = {}

    @override
    def allocate(self, nbytes: int) -> Any:
        return np.zeros(nbytes, np.uint8)

    @override
    def deallocate(self, handle: Any, nbytes: int) -> None:
        pass

    @override
    def upload(self, array: npt.NDArray[Any]) -> DeviceBuffer:
        buffer = self.empty(TensorType(array.shape, array.dtype))
        buffer.handle[:] = np.frombuffer(array.tobytes(), np.uint8)
        return buffer

    @override
    def download(self, buffer: DeviceBuffer) -> npt.NDArray[Any]:
        count = buffer.size * pointer_type(buffer.dtype).itemsize
        return np.frombuffer(buffer.handle[:count].tobytes(), buffer.dtype).reshape(buffer.shape)

    @override
    def launch(self, kernel: Callable[..., None], blocks: int, threads: int, *arguments: Any) -> None:
        assert 0 < blocks < 2**31 and 0 < threads <= 1024, (kernel.__name__, blocks, threads)
        self.launches.setdefault((kernel, signature_of(arguments)), set()).add(self.context.op)

    @override
    def product(self, out: DeviceBuffer, x: DeviceBuffer, y: DeviceBuffer, **more: Any) -> None:
        launch_product(self, out, x, y, **more)

    @override
    def part(self, memory: Memory, offset: int, nbytes: int) -> Any:
        return memory.handle[offset : offset + nbytes]

    @override
    def empty_cache(self) -> int:
        return 0

    @override
    def synchronize(self) -> None:
        pass
