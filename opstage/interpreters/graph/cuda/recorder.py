"""A device that records launches and products on numbered blocks of memory, and runs nothing.

eager_cuda's kernels allocate and launch through a device. On this one, a whole program becomes a list of calls, which
another device replays on memory that is laid out once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, final

import numpy.typing as npt
from typing_extensions import override

from ....ops.types import TensorType
from ...gpu.buffer import DeviceBuffer, Memory
from ...gpu.device import Device
from ...gpu.device.script import Call
from ...gpu.device.side import Aside


class Spot(NamedTuple):
    """A symbolic memory handle: the number of a block, and an offset in bytes."""

    block: int
    offset: int


@final
class LaunchRecorder(Device):
    """A device that records launches on numbered blocks, in place of `device`.

    calls       in order
    blocks      the size of each block in bytes
    """

    notes = True

    def __init__(self, device: Device):
        super().__init__(device.grid)
        self.device = device
        self.calls: list[Call] = []
        self.blocks: list[int] = []

    @override
    def holds(self, buffer: DeviceBuffer) -> bool:
        return buffer.memory.device in (self, self.device)

    @override
    def allocate(self, nbytes: int) -> Any:
        self.blocks.append(nbytes)
        return Spot(len(self.blocks) - 1, 0)

    @override
    def deallocate(self, handle: Any, nbytes: int) -> None:
        """Do nothing: blocks live from the first to the last call that uses them."""

    def shifted(self, buffer: DeviceBuffer, shape: tuple[int, ...], offset: int) -> DeviceBuffer:
        """Return a tensor of this shape at an offset in bytes into another's memory."""
        nbytes = math.prod(shape) * buffer.dtype.itemsize
        if nbytes == buffer.memory.nbytes:
            return buffer.reshaped(shape)
        assert offset + nbytes <= buffer.memory.nbytes, (buffer, shape, offset)
        spot = buffer.handle
        memory = Memory(self, Spot(spot.block, spot.offset + offset), nbytes)
        self._used += nbytes
        return DeviceBuffer(TensorType(shape, buffer.dtype), memory)

    @override
    def upload(self, array: npt.NDArray[Any]) -> DeviceBuffer:
        """Upload to the real device: constants that calls read."""
        return self.device.upload(array)

    @override
    def download(self, buffer: DeviceBuffer) -> npt.NDArray[Any]:
        raise AssertionError("a kernel's entry decides by shapes and static arguments, never by values")

    @override
    def launch(self, kernel: Callable[..., None], blocks: int, threads: int, *arguments: Any) -> None:
        self._note("launch", (kernel, blocks, threads, *arguments), {})

    @override
    def product(self, out: DeviceBuffer, x: DeviceBuffer, y: DeviceBuffer, **more: Any) -> None:
        self._note("product", (out, x, y), more)

    @override
    def aside(self, number: int, work: Aside, *buffers: DeviceBuffer) -> None:
        self._note("aside", (number, work, *buffers), {})

    @override
    def joined(self, number: int, *buffers: DeviceBuffer) -> None:
        self._note("joined", (number, *buffers), {})

    def _note(self, method: str, arguments: tuple[Any, ...], more: Mapping[str, Any]) -> None:
        tuple(spots((arguments, more)))  # reading a buffer's handle first records the deferred work that it waits for
        self.calls.append(Call(method, arguments, more, *self.context[:3]))

    @override
    def part(self, memory: Memory, offset: int, nbytes: int) -> Any:
        spot = memory.handle
        return Spot(spot.block, spot.offset + offset)

    @override
    def trim(self) -> int:
        return 0

    @override
    def synchronize(self) -> None:
        """Do nothing: no work is pending."""


def spots(value: Any) -> Iterator[Spot]:
    """Yield the spots in an argument of a call, or in a call."""
    if type(value) is DeviceBuffer:
        if type(value.handle) is Spot:
            yield value.handle
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from spots(each)
    elif isinstance(value, dict):
        yield from spots(tuple(value.values()))


def placed(value: Any, find: Callable[[Spot, int], Any]) -> Any:
    """Return an argument with its spots replaced by the memory that `find(spot, bytes)` returns."""
    if type(value) is DeviceBuffer:
        if type(value.handle) is not Spot:
            return value
        nbytes = value.size * value.dtype.itemsize
        return DeviceBuffer(value.type, find(value.handle, nbytes))
    if isinstance(value, Call):
        return value._replace(arguments=placed(value.arguments, find), more=placed(value.more, find))
    if type(value) in (tuple, list):
        return type(value)(placed(each, find) for each in value)
    if isinstance(value, Mapping):
        return {name: placed(each, find) for name, each in value.items()}
    return value
