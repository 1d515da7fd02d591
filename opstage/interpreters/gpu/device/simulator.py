"""A device whose kernels run in Python, thread by thread: for testing everything but speed without a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ....ops.errors import OutOfMemoryError
from ....ops.types import TensorType
from ..buffer import DeviceBuffer, Memory
from ..scheduler import launch
from .alone import alone, opened
from .grid import WARP, Grid
from .interface import Device, bytes_of, pointer_type
from .product import launch_product
from .side import Aside

SMALL = Grid(threads=WARP, block=2 * WARP, longest=127, most_blocks=2)
"""Two blocks of one warp, or two warps for a long row, suffice to expose errors, and are fast."""


@final
class Simulator(Device):
    """Memory is bytes of the host, filled with a pattern when it is given out, so that what was not written is seen.

    limit   how many bytes it gives out at most; None: as many as the host has
    late    whether work aside is done no sooner than somebody waits for it, or else as soon as it is begun: a program
            must be right either way
    """

    late = True

    def __init__(self, limit: int | None = None, number: int = 0) -> None:
        super().__init__(SMALL, number)
        self.limit = limit
        self._aside: deque[tuple[int, Aside, list[tuple[int, int]]]] = deque()
        opened(self)

    @override
    def allocate(self, nbytes: int) -> Any:
        if self.limit is not None and self.used + nbytes > self.limit:
            raise OutOfMemoryError(
                f"{nbytes:,} bytes were asked for on the simulated device, which has {self.limit - self.used:,} free "
                f"of {self.limit:,}; tensors hold {self.used:,} bytes, {self.peak:,} at most so far. Parameters are as "
                "they were; make the batch smaller"
            )
        return np.full(nbytes, 0xCB, np.uint8)

    @override
    def deallocate(self, handle: Any, nbytes: int) -> None:
        handle.fill(0xDB)

    @override
    @alone
    def upload(self, array: npt.NDArray[Any]) -> DeviceBuffer:
        buffer = self.empty(TensorType(array.shape, array.dtype))
        elements_of(buffer)[:] = array.reshape(-1).view(pointer_type(array.dtype))
        return buffer

    @override
    @alone
    def download(self, buffer: DeviceBuffer) -> npt.NDArray[Any]:
        return np.array(elements_of(buffer)).view(buffer.dtype).reshape(buffer.shape)

    @override
    @alone
    def launch(self, kernel: Callable[..., None], blocks: int, threads: int, *arguments: Any) -> None:
        launch(kernel, blocks, threads, *map(pointers_of, arguments))

    @override
    @alone
    def product(self, out: DeviceBuffer, x: DeviceBuffer, y: DeviceBuffer, **more: Any) -> None:
        launch_product(self, out, x, y, **more)

    @override
    @alone
    def aside(self, number: int, work: Aside, *buffers: DeviceBuffer) -> None:
        self._aside.append((number, work, [(each.handle.ctypes.data, bytes_of(each)) for each in buffers]))
        if not self.late:
            self._catch_up(number)

    @override
    @alone
    def joined(self, number: int, *buffers: DeviceBuffer) -> None:
        if any(waiting == number for waiting, *_ in self._aside):
            self._catch_up(number)

    def _catch_up(self, number: int) -> None:
        """Do what was begun up to this number."""
        done = None
        while done != number:
            done, work, places = self._aside.popleft()
            work(None, places)

    @override
    def part(self, memory: Memory, offset: int, nbytes: int) -> Any:
        return memory.handle[offset : offset + nbytes]

    @override
    def trim(self) -> int:
        return 0

    @override
    def synchronize(self) -> None:
        pass


def pointers_of(argument: Any) -> Any:
    """Return the kernel argument for an argument of a launch, with host memory."""
    if isinstance(argument, DeviceBuffer):
        return elements_of(argument)
    return tuple(map(elements_of, argument)) if type(argument) is tuple else argument


def elements_of(buffer: DeviceBuffer) -> npt.NDArray[Any]:
    """Return host memory as the pointer that a kernel receives."""
    dtype = pointer_type(buffer.dtype)
    elements: npt.NDArray[Any] = buffer.handle[: buffer.size * dtype.itemsize].view(dtype)
    return elements
