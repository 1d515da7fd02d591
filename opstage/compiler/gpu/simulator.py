"""A device whose kernels run in Python, thread by thread: for testing everything but speed without a GPU."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ...ops.errors import OutOfMemoryError
from ...ops.types import TensorType
from .buffer import Aside, DeviceBuffer, MatrixLayout, Memory, layout_of
from .device import WARP, Device, Grid, alone, nbytes_on_device, pointer_type, register_owner
from .language import cuda, quotient, remainder
from .scheduler import launch

# Matrix products ------------------------------------------------------------------------------------------------------

ZERO = np.float32(0)


@cache
def product_kernel(x_transposed: bool, y_transposed: bool, side: int) -> Callable[..., None]:
    """Return the kernel of out[b] = x[b]·y[b] + bias, in tiles of side² elements; operands may be stored transposed."""
    width = side + 1  # of a tile row in shared memory, so that columns spread over the 32 banks

    def product(
        rows: Any,
        columns: Any,
        extent: Any,
        out: Any,
        out_first: Any,
        out_row: Any,
        out_matrix: Any,
        x: Any,
        x_first: Any,
        x_row: Any,
        x_matrix: Any,
        y: Any,
        y_first: Any,
        y_row: Any,
        y_matrix: Any,
        bias: Any,
        biased: Any,
        tiles: Any,
    ) -> None:
        """Compute a tile: block (matrix, tile of rows, tile of columns), one element per thread.

        Both operands are read along their rows, coalesced, and transposed when written to shared memory.
        """
        left = cuda.shared.array((side, width), np.float32)
        right = cuda.shared.array((side, width), np.float32)
        j, i = cuda.threadIdx.x % side, cuda.threadIdx.x // side
        matrix, tile = quotient(cuda.blockIdx.x, tiles), remainder(cuda.blockIdx.x, tiles)
        x_at, y_at = x_first + matrix * x_matrix, y_first + matrix * y_matrix
        across = (columns + side - 1) // side
        row, column = quotient(tile, across) * side, remainder(tile, across) * side
        total = ZERO
        for first in range(0, extent, side):
            if x_transposed:
                inside_x = first + i < extent and row + j < rows
                left[j, i] = x[x_at + (first + i) * x_row + row + j] if inside_x else ZERO
            else:
                inside_x = row + i < rows and first + j < extent
                left[i, j] = x[x_at + (row + i) * x_row + first + j] if inside_x else ZERO
            if y_transposed:
                inside_y = column + i < columns and first + j < extent
                right[j, i] = y[y_at + (column + i) * y_row + first + j] if inside_y else ZERO
            else:
                inside_y = first + i < extent and column + j < columns
                right[i, j] = y[y_at + (first + i) * y_row + column + j] if inside_y else ZERO
            cuda.syncthreads()
            for k in range(side):
                total += left[i, k] * right[k, j]
            cuda.syncthreads()
        if row + i < rows and column + j < columns:
            if biased != 0:
                total += bias[column + j]
            out[out_first + matrix * out_matrix + (row + i) * out_row + column + j] = total

    return product


def launch_product(
    device: Device,
    out: DeviceBuffer,
    x: DeviceBuffer,
    y: DeviceBuffer,
    *,
    x_transposed: bool = False,
    y_transposed: bool = False,
    x_layout: MatrixLayout | None = None,
    y_layout: MatrixLayout | None = None,
    out_layout: MatrixLayout | None = None,
    matrices: int | None = None,
    bias: DeviceBuffer | None = None,
) -> None:
    """Compute out = x·y + bias, see `Device.product`."""
    to = layout_of(out, out_layout)
    rows, columns = to.rows, to.columns
    left, right = layout_of(x, x_layout), layout_of(y, y_layout)
    extent = left.rows if x_transposed else left.columns
    side = math.isqrt(device.block)
    tiles = -(-rows // side) * -(-columns // side)
    blocks = tiles * (matrices or math.prod(out.shape[:-2]))
    numbers = np.int32(rows), np.int32(columns), np.int32(extent)
    given = *_matrix_arguments(out, to), *_matrix_arguments(x, left), *_matrix_arguments(y, right)
    epilogue = x if bias is None else bias, np.int32(bias is not None)  # x is a pointer that is not read
    kernel = product_kernel(x_transposed, y_transposed, side)
    device.launch(kernel, blocks, side * side, *numbers, *given, *epilogue, np.int32(tiles))


def _matrix_arguments(operand: DeviceBuffer, layout: MatrixLayout) -> tuple[Any, ...]:
    return operand, np.int32(layout.first), np.int32(layout.row), np.int32(layout.matrix)


# The simulator --------------------------------------------------------------------------------------------------------

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
        register_owner(self)

    @override
    def allocate(self, nbytes: int) -> Any:
        if self.limit is not None and self.used + nbytes > self.limit:
            raise OutOfMemoryError(
                f"{nbytes:,} bytes were requested on the simulated device, which has {self.limit - self.used:,} free "
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
        self._aside.append((number, work, [(each.handle.ctypes.data, nbytes_on_device(each)) for each in buffers]))
        if not self.late:
            self._run_aside(number)

    @override
    @alone
    def join(self, number: int, *buffers: DeviceBuffer) -> None:
        if any(waiting == number for waiting, *_ in self._aside):
            self._run_aside(number)

    def _run_aside(self, number: int) -> None:
        """Do what was begun up to this number."""
        done = None
        while done != number:
            done, work, places = self._aside.popleft()
            work(None, places)

    @override
    def part(self, memory: Memory, offset: int, nbytes: int) -> Any:
        return memory.handle[offset : offset + nbytes]

    @override
    def empty_cache(self) -> int:
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
