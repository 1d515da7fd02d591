"""Memory of a GPU: freed blocks by size class, kept for reuse, copies between hosts and GPUs by pinned memory, and a
device that computes nothing and counts allocated memory.

The functions in the kernel tables allocate memory by shapes and static arguments only. So the counting device receives
the same calls as a GPU, in the same order, and predicts a program's memory without one."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ...ops.types import TensorType
from .buffer import DeviceBuffer, Memory
from .cublas import WORKSPACE
from .device import GRID, Device, Grid

# Freed memory ---------------------------------------------------------------------------------------------------------

# Sizes are rounded up to one of eight between consecutive powers of two, so at most an eighth is wasted. A training
# step has tensors of the same sizes as the previous step, and reuses all blocks.

Block = TypeVar("Block")

SMALLEST = 512
"""Bytes: the minimal alignment of the driver's allocations."""


@lru_cache(maxsize=4096)
def size_class(nbytes: int) -> int:
    """Return the size class of `nbytes`."""
    if nbytes <= SMALLEST:
        return SMALLEST
    below = 1 << ((nbytes - 1).bit_length() - 1)
    step = max(SMALLEST, below // 8)
    return -(-nbytes // step) * step


@final
class SizeClasses(Generic[Block]):
    """Unused blocks by their rounded size.

    allocate, free   allocate a block of a size, and free a block
    kept             total bytes of unused blocks
    """

    def __init__(self, allocate: Callable[[int], Block], free: Callable[[Block], None]):
        self._allocate = allocate
        self._free = free
        self._blocks: dict[int, list[Block]] = {}
        self.kept = 0

    def take(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes`."""
        size = size_class(nbytes)
        blocks = self._blocks.get(size)
        if blocks:
            self.kept -= size
            return blocks.pop()
        return self._allocate(size)

    def give(self, block: Block, nbytes: int) -> None:
        """Keep a block that was allocated for `nbytes`."""
        size = size_class(nbytes)
        self.kept += size
        self._blocks.setdefault(size, []).append(block)

    def empty_cache(self) -> int:
        """Free all unused blocks; return their total size."""
        blocks, self._blocks = self._blocks, {}
        kept, self.kept = self.kept, 0
        for each in blocks.values():
            for block in each:
                self._free(block)
        return kept


# Pinned memory --------------------------------------------------------------------------------------------------------

# The pinned memory has two halves, each with the event after which it may be reused: while the GPU copies from one,
# the host fills the other, and a caller's array is free as soon as its bytes are copied there.

HALF = 4 << 20
"""Bytes: copying them takes 80 µs by PCIe 5, enough to hide the launch overhead."""


class Copies(Protocol):
    """The driver's copies, ordered on one stream."""

    def pinned(self, nbytes: int) -> int:
        """Allocate pinned host memory and return its address."""

    def copy_to_device(self, target: int, host: int, nbytes: int) -> None:
        """Copy from the host to the GPU; returns before it is done."""

    def copy_to_host(self, host: int, source: int, nbytes: int) -> None:
        """Copy from the GPU to the host; returns before it is done."""

    def event(self) -> Any:
        """Record an event that completes when all work launched so far is done; its `sync()` waits for it."""

    def synchronize(self) -> None:
        """Wait until all work is done."""


@final
class Everything:
    """An event that synchronises everything, for when no event can be recorded, or its wait was interrupted."""

    def __init__(self, copies: Copies):
        self._copies = copies

    def sync(self) -> None:
        self._copies.synchronize()


@final
class Staging:
    """Pinned memory, allocated for the first copy."""

    def __init__(self, copies: Copies, half: int = HALF):
        self._copies = copies
        self._half = half
        self._address = 0
        self._memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._free_at: list[Any] = [None, None]
        self._everything = Everything(copies)
        self._next = 0

    def write(self, target: int, array: npt.NDArray[Any]) -> None:
        """Copy a contiguous array to the GPU. The array may be changed after this returns."""
        source = array.reshape(-1).view(np.uint8)
        for at in range(0, source.size, self._half):
            piece = source[at : at + self._half]
            half, start = self._take()
            self._memory[start : start + piece.size] = piece
            self._free_at[half] = self._everything  # in case no event can be recorded for this copy
            self._copies.copy_to_device(target + at, self._address + start, piece.size)
            self._free_at[half] = self._copies.event()

    def read(self, source: int, array: npt.NDArray[Any]) -> None:
        """Copy from the GPU to a contiguous array, after all earlier work is done."""
        target = array.reshape(-1).view(np.uint8)
        for at in range(0, target.size, self._half):
            piece = target[at : at + self._half]
            half, start = self._take()
            self._free_at[half] = self._everything
            self._copies.copy_to_host(self._address + start, source + at, piece.size)
            self._copies.event().sync()
            self._free_at[half] = None
            piece[:] = self._memory[start : start + piece.size]

    def _take(self) -> tuple[int, int]:
        """Return a half that the GPU has finished with, and its offset."""
        if not self._address:
            size = 2 * self._half
            self._address = self._copies.pinned(size)
            self._memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self._address))
        half, self._next = self._next, 1 - self._next
        event = self._free_at[half]
        if event is not None:
            event.sync()
        return half, half * self._half


# A device that counts -------------------------------------------------------------------------------------------------


@final
class _TallyHandle:
    """A memory handle without memory."""

    __slots__ = ("kind",)

    def __init__(self, kind: Hashable):
        self.kind = kind


@final
class Tally(Device):
    """A device that only counts memory; all elements are 0.

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

    def empty_of(self, type: TensorType, kind: Hashable) -> DeviceBuffer:
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
        self._occupy(size_class(nbytes))
        kind = self.kind()
        self._now[kind] += nbytes
        if self.used + nbytes > self.peak:
            self.at_peak = Counter(self._now)
        return _TallyHandle(kind)

    @override
    def deallocate(self, handle: Any, nbytes: int) -> None:
        self._now[handle.kind] -= nbytes
        self._blocks_now -= size_class(nbytes)

    def _occupy(self, nbytes: int) -> None:
        self._blocks_now += nbytes
        self.blocks = max(self.blocks, self._blocks_now)

    @override
    def part(self, memory: Memory, offset: int, nbytes: int) -> Any:
        return memory.handle

    @override
    def empty_cache(self) -> int:
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
