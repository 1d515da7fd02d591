"""A device that computes nothing and counts the memory that it is asked for: what a program takes, without a GPU.

The entries of the kernel tables ask for memory by shapes and static arguments alone. So this device
receives the calls that a GPU receives, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ....ops.types import TensorType
from ..buffer import DeviceBuffer, Memory
from .buckets import rounded
from .gemm import WORKSPACE
from .grid import GRID, Grid
from .interface import Device


@final
class _TallyHandle:
    """A handle of memory that is nowhere."""

    __slots__ = ("kind",)

    def __init__(self, kind: Hashable):
        self.kind = kind


@final
class Tally(Device):
    """Every element is 0. Beside `used` and `peak` it has

    kind      says what memory is for that is asked for now
    at_peak   the bytes of each kind when they were most in all
    blocks    the bytes, at most, of the blocks in which a GPU has all this, and of its library's workspace
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
        """Look for the peak from now on."""
        self.peak, self.at_peak, self.blocks = self.used, Counter(self._now), self._blocks_now

    def taken(self, type: TensorType, kind: Hashable) -> DeviceBuffer:
        """A tensor in memory of this kind."""
        usual, self.kind = self.kind, lambda: kind
        try:
            return self.empty(type)
        finally:
            self.kind = usual

    def rename(self, memory: Memory, kind: Hashable) -> None:
        """Count this memory as of another kind from now on."""
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

    # All else -------------------------------------------------------------------------------------------------------

    @override
    def upload(self, array: npt.NDArray[Any]) -> DeviceBuffer:
        return self.empty(TensorType(array.shape, array.dtype))

    @override
    def download(self, buffer: DeviceBuffer) -> npt.NDArray[Any]:
        return np.zeros(buffer.shape, buffer.dtype)

    @override
    def launch(self, kernel: Callable[..., None], blocks: int, threads: int, *arguments: Any) -> None:
        """Nothing is computed."""

    @override
    def product(self, out: DeviceBuffer, x: DeviceBuffer, y: DeviceBuffer, **more: Any) -> None:
        if not self._multiplies:
            self._multiplies = True
            self._occupy(WORKSPACE)

    @override
    def synchronize(self) -> None:
        """Nothing is under way."""
