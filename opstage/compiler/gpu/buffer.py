"""`DeviceBuffer`: a tensor in the memory of a device, contiguous and row-major; layouts and signatures of arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, final

import numpy as np

from ...ops.errors import ProgramError, ShapeError
from ...ops.types import DType, TensorType, show_shape

# Buffers --------------------------------------------------------------------------------------------------------------

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
        """Return the device's handle of this memory, after launching deferred work on it. Raises ProgramError if it was
        freed."""
        memory = self.memory
        if memory.job is not None:
            memory.device.flush()
        if memory.handle is None:
            raise ProgramError(f"{self!r} was freed; read the tensors of a run before the next run starts")
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


# Matrices in a stack --------------------------------------------------------------------------------------------------


class MatrixLayout(NamedTuple):
    """rows, columns    of one matrix as stored
    row, matrix      elements from one row to the next, and from one matrix to the next
    first            elements before the first matrix
    """

    rows: int
    columns: int
    row: int
    matrix: int
    first: int = 0


def layout_of(operand: DeviceBuffer, given: MatrixLayout | None) -> MatrixLayout:
    """Return the given layout, or that of contiguous matrices."""
    if given is not None:
        return given
    rows, columns = operand.shape[-2:]
    return MatrixLayout(rows, columns, columns, rows * columns)


# Signatures of launches -----------------------------------------------------------------------------------------------

# A buffer is a pointer, `float32*`, a tuple of buffers a pointer to pointers, `float32**`, a NumPy number its dtype,
# `int32`. A kernel is compiled once per signature.


class Pointers(NamedTuple):
    """The addresses of buffers of one dtype, on the device: the device form of a tuple of buffers."""

    table: DeviceBuffer
    dtype: DType


Kernel = Callable[..., None]
Signature = tuple[str, ...]

_POINTERS = {
    np.dtype(np.float32): "float32*",
    np.dtype(np.int32): "int32*",
    np.dtype(np.int64): "int64*",
    np.dtype(np.bool_): "uint8*",
}
_NUMBERS = {t: np.dtype(t).name for t in (np.float32, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.float64)}


def signature_of(arguments: tuple[Any, ...]) -> Signature:
    """Return the type of each argument of a launch: buffers, tuples of buffers, and NumPy numbers."""
    return tuple(
        [_POINTERS[a.dtype] if type(a) is DeviceBuffer else _NUMBERS.get(type(a)) or _table(a) for a in arguments]
    )


def _table(argument: Any) -> str:
    return f"{_POINTERS[(argument[0] if type(argument) is tuple else argument).dtype]}*"


def show(kernel: Kernel, signature: Signature) -> str:
    """Format a kernel with its signature: `max_pool_kernel(int32, float32*)`."""
    return f"{kernel.__name__}({', '.join(signature)})"


# Side streams ---------------------------------------------------------------------------------------------------------

Patience: TypeAlias = Callable[[Callable[[], bool]], None]
"""Waits until a function says that work is done, and raises an error where it will never be."""


class Aside(Protocol):
    """Work on a stream that sends `sent` bytes to other GPUs."""

    sent: int

    def __call__(self, stream: Any, places: Sequence[tuple[int, int]]) -> None:
        """Start the work, without waiting for it; `places` are the address and the bytes of each buffer."""
        ...


@final
class PatientEvent:
    """An event of a stream that may wait for another GPU for ever."""

    def __init__(self, event: Any, patience: Patience):
        self._event, self._patience = event, patience

    def sync(self) -> None:
        """Wait for it, as long as there is hope."""
        self._patience(lambda: bool(self._event.is_done))
