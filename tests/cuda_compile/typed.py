"""A device whose kernels numba compiles for the CPU: Python's types are gone, those of compiled code are there.

The simulator computes with Python's and NumPy's numbers, of which 3 + uint8(1) is another number than in compiled code.
Here one thread steps through all elements, and each row has one lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cache
from types import CellType, FunctionType, ModuleType
from typing import Any, final

import numba
import numpy as np
import numpy.typing as npt
from typing_extensions import override

from opstage.compiler.gpu import language
from opstage.compiler.gpu.buffer import DeviceBuffer, MatrixLayout, Memory, layout_of
from opstage.compiler.gpu.device import Device, Grid, pointer_type
from opstage.compiler.gpu.language import cos_pi, cuda, steps, unrolled_steps
from opstage.compiler.gpu.simulator import elements_of, pointers_of
from opstage.ops.types import TensorType

_numba: Any = numba


def _one_thread() -> ModuleType:
    """What `cuda` is to a kernel of one thread."""
    module: Any = ModuleType("one_thread")
    for name, number in (("threadIdx", 0), ("blockDim", 1)):
        setattr(module, name, ModuleType(name))
        getattr(module, name).x = np.int32(number)
    module.shared = ModuleType("shared")
    module.shared.array = _numba.njit(lambda shape, dtype, alignment=None: np.empty(shape, dtype))
    module.local = ModuleType("local")
    module.local.array = _numba.njit(lambda shape, dtype: np.empty(shape, dtype))
    module.grid = _numba.njit(lambda axes: np.int32(0))
    module.gridsize = _numba.njit(lambda axes: np.int32(1))
    module.syncthreads = _numba.njit(lambda: None)
    module.shfl_xor_sync = _numba.njit(lambda mask, value, distance: value)
    return module


_ONE_THREAD = _one_thread()
# For functions of libdevice, and one of C that numba knows on a GPU alone.
_FUNCTIONS = {
    cos_pi: _numba.njit(lambda x: np.cos(np.float32(np.pi) * x)),
    language.times: _numba.njit(lambda x, y: x * y),
    language.exp2: _numba.njit(lambda x: np.exp2(x)),
    language.floor: _numba.njit(lambda x: np.floor(x)),
    language.rint: _numba.njit(lambda x: np.rint(x)),
    language.fmod: _numba.njit(lambda x, y: np.fmod(x, y), error_model="numpy"),
}
_STEPS = _numba.njit(lambda start, stop, step: range(np.int64(start), np.int64(stop), np.int64(step)))


@cache
def for_one_thread(kernel: Callable[..., None]) -> Any:
    """The kernel, compiled for the CPU when it is first called with arguments of some types."""
    return _numba.njit(_moved(kernel), error_model="numpy")


def _moved(function: Any) -> FunctionType:
    """The function, with the CPU's forms of all that it calls."""
    read = {name: _value(value) for name, value in function.__globals__.items() if name in function.__code__.co_names}
    names = {**function.__globals__, **read}
    cells = tuple(CellType(_value(cell.cell_contents)) for cell in function.__closure__ or ())
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)


def _value(value: Any) -> Any:
    if value is cuda:
        return _ONE_THREAD
    if callable(value) and isinstance(value, Hashable) and value in _FUNCTIONS:
        return _FUNCTIONS[value]
    if value is steps or value is unrolled_steps:
        return _STEPS
    inner = getattr(value, "py_func", None)
    return value if inner is None else _device_function(inner)


@cache
def _device_function(function: Any) -> Any:
    return _numba.njit(_moved(function), error_model="numpy")


@final
class Typed(Device):
    """Memory is bytes of the host; products of matrices are NumPy's."""

    def __init__(self) -> None:
        super().__init__(Grid(block=1, shortest=2**31))

    @override
    def allocate(self, nbytes: int) -> Any:
        return np.full(nbytes, 0xCB, np.uint8)

    @override
    def deallocate(self, handle: Any, nbytes: int) -> None:
        pass

    @override
    def upload(self, array: npt.NDArray[Any]) -> DeviceBuffer:
        buffer = self.empty(TensorType(array.shape, array.dtype))
        elements_of(buffer)[:] = array.reshape(-1).view(pointer_type(array.dtype))
        return buffer

    @override
    def download(self, buffer: DeviceBuffer) -> npt.NDArray[Any]:
        return np.array(elements_of(buffer)).view(buffer.dtype).reshape(buffer.shape)

    @override
    def launch(self, kernel: Callable[..., None], blocks: int, threads: int, *arguments: Any) -> None:
        assert blocks == 1 or kernel.__code__.co_varnames[0] in ("count", "rows"), "each block has work of its own"
        for_one_thread(kernel)(*map(pointers_of, arguments))

    @override
    def product(self, out: DeviceBuffer, x: DeviceBuffer, y: DeviceBuffer, **more: Any) -> None:
        count = more.get("matrices") or math.prod(out.shape[:-2])
        a, b = (_matrices(each, count, more.get(f"{name}_layout")) for each, name in ((x, "x"), (y, "y")))
        left = a.swapaxes(-1, -2) if more.get("x_transposed") else a
        product = left @ (b.swapaxes(-1, -2) if more.get("y_transposed") else b)
        bias = more.get("bias")
        _matrices(out, count, more.get("out_layout"))[...] = product if bias is None else product + elements_of(bias)

    @override
    def part(self, memory: Memory, offset: int, nbytes: int) -> Any:
        return memory.handle[offset : offset + nbytes]

    @override
    def empty_cache(self) -> int:
        return 0

    @override
    def synchronize(self) -> None:
        pass


def _matrices(operand: DeviceBuffer, count: int, layout: MatrixLayout | None) -> npt.NDArray[Any]:
    """The matrices of an operand of products, as they lie."""
    rows, columns, row, matrix, first = layout_of(operand, layout)
    dtype = pointer_type(operand.dtype)
    elements = operand.handle.view(dtype)[first:]
    strides = tuple(n * dtype.itemsize for n in (matrix, row, 1))
    return np.lib.stride_tricks.as_strided(elements, (count, rows, columns), strides)
