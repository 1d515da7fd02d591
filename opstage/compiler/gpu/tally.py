"""A device that computes nothing and counts allocated memory, to predict a program's memory without a GPU.

The functions in the kernel tables allocate memory by shapes and static arguments only. So this device receives the same
calls as a GPU, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ...ops.types import TensorType
from .buffer import DeviceBuffer, Memory
from .cublas import WORKSPACE
from .device import GRID, Device, Grid
from .memory import rounded


@final
class _TallyHandle:
    """A memory handle without memory."""

    __slots__ = ("kind",)

    def __init__(self, kind: Hashable):
        self.kind = kind


@final
class Tally(Device):
    """All elements are 0. In addition to `used` and `peak` it has

    kind      returns the purpose of memory that is allocated now
    at_peak   the bytes of each kind at the peak of the total
    blocks    the maximum of bytes in blocks that a GPU would allocate, including its library's workspace
    """

    computes = False

    def __init__(self, kind: Callable[[], Hashable] = lambda: None, grid: Grid = GRID):
        super().__init__(grid)
        self.kind = kind
        self.at_peak: Counter[Hashable] = Counter()
        self.blocks = 0
        self._now: Counter[Hashable] = Counter()
        self._blocks_now = 0
        self._multiplies = False

    def begin(self) -> None:
        """Start recording the peak now."""
        self.peak, self.at_peak, self.blocks = self.used, Counter(self._now), self._blocks_now

    def taken(self, type: TensorType, kind: Hashable) -> DeviceBuffer:
        """Return a tensor in memory of this kind."""
        usual, self.kind = self.kind, lambda: kind
        try:
            return self.empty(type)
        finally:
            self.kind = usual

    def rename(self, memory: Memory, kind: Hashable) -> None:
        """Count this memory under another kind from now on."""
        block: _TallyHandle = memory.handle
        self._now[block.kind] -= memory.nbytes
        self._now[kind] += memory.nbytes
        block.kind = kind

    # Memory ---------------------------------------------------------------------------------------------------------

    @override
    def allocate(self, nbytes: int) -> Any:
        self._occupy(rounded(nbytes))
        kind = self.kind()
        self._now[kind] += nbytes
        if self.used + nbytes > self.peak:
            self.at_peak = Counter(self._now)
        return _TallyHandle(kind)

    @override
    def deallocate(self, handle: Any, nbytes: int) -> None:
        self._now[handle.kind] -= nbytes
        self._blocks_now -= rounded(nbytes)

    def _occupy(self, nbytes: int) -> None:
        self._blocks_now += nbytes
        self.blocks = max(self.blocks, self._blocks_now)

    @override
    def part(self, memory: Memory, offset: int, nbytes: int) -> Any:
        return memory.handle

    @override
    def trim(self) -> int:
        return 0

    # Everything else -------------------------------------------------------------------------------------------------

    @override
    def upload(self, array: npt.NDArray[Any]) -> DeviceBuffer:
        return self.empty(TensorType(array.shape, array.dtype))

    @override
    def download(self, buffer: DeviceBuffer) -> npt.NDArray[Any]:
        return np.zeros(buffer.shape, buffer.dtype)

    @override
    def launch(self, kernel: Callable[..., None], blocks: int, threads: int, *arguments: Any) -> None:
        """Do nothing."""

    @override
    def product(self, out: DeviceBuffer, x: DeviceBuffer, y: DeviceBuffer, **more: Any) -> None:
        if not self._multiplies:
            self._multiplies = True
            self._occupy(WORKSPACE)

    @override
    def synchronize(self) -> None:
        """Do nothing."""
