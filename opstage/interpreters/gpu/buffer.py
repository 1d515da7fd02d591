"""`DeviceBuffer`: a tensor in the memory of a device, contiguous and row-major."""

from __future__ import annotations

import math
from typing import Any, final

from ...ops.errors import ProgramError, ShapeError
from ...ops.types import TensorType, show_shape

LARGEST = 2**31 - 1
"""Kernels count elements in 32 bits."""


@final
class Memory:
    """Bytes of a device, freed by garbage collection or by `free`, whichever comes first.

    job   the deferred launch that will write them, or None
    """

    __slots__ = ("device", "handle", "nbytes", "job", "__weakref__")

    def __init__(self, device: Any, handle: Any, nbytes: int):
        self.device = device
        self.handle = handle
        self.nbytes = nbytes
        self.job: Any = None

    def free(self) -> None:
        """Free the bytes; a second call does nothing."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self.device.release(handle, self.nbytes)

    def __del__(self) -> None:
        if self.handle is not None:
            self.device.release(self.handle, self.nbytes)


@final
class DeviceBuffer:
    """Elements of one dtype in a shape. Several buffers may share memory, as reshaped tensors do."""

    __slots__ = ("type", "shape", "dtype", "size", "memory")

    shape: tuple[int, ...]

    def __init__(self, type: TensorType, memory: Memory):
        """`type` has no symbolic dims. Raises ShapeError for more elements than kernels count, and for more or
        fewer than the memory has."""
        self.type = type
        shape: Any = type.shape
        self.shape = shape
        self.dtype = dtype = type.dtype
        size: int = math.prod(shape)
        self.size = size
        self.memory = memory
        if size > LARGEST:
            raise ShapeError(
                f"a tensor of shape {show_shape(shape)} has {size:,} elements; kernels count them in 32 bits, so "
                f"a tensor on a device has at most {LARGEST:,}"
            )
        if size * dtype.itemsize != memory.nbytes:
            raise ShapeError(
                f"shape {show_shape(shape)} of {dtype} takes {size * dtype.itemsize:,} bytes, but the memory has "
                f"{memory.nbytes:,}"
            )

    def __repr__(self) -> str:
        return f"DeviceBuffer({show_shape(self.shape)}, {self.dtype})"

    @property
    def handle(self) -> Any:
        """The device's handle of this memory, after launching deferred work on it. Raises ProgramError if it was
        freed."""
        memory = self.memory
        if memory.job is not None:
            memory.device.flush()
        if memory.handle is None:
            raise ProgramError(f"{self!r} was freed; a tensor of a finished run is read before the next one begins")
        return memory.handle

    def reshaped(self, shape: tuple[int, ...]) -> DeviceBuffer:
        """Return the same elements in another shape of the same size, sharing the memory."""
        return DeviceBuffer(TensorType(shape, self.dtype), self.memory)

    def free(self) -> None:
        """Free the memory now, for all buffers that share it; a second call does nothing."""
        device = self.memory.device
        with device.lock:
            device.flush()  # deferred work may read it
            self.memory.free()
