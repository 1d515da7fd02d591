"""A stand-in for a GPU whose kernels run: the device of a real one, with the simulator beneath stand-ins for cuda.core.

All of it is as on a GPU but cuda.core, cuBLASLt, machine code and time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from typing_extensions import override

from opstage.compiler.gpu import driver as driver_module
from opstage.compiler.gpu import probe
from opstage.compiler.gpu.compiler import CompiledKernel, Resources
from opstage.compiler.gpu.driver import Gpu
from opstage.compiler.gpu.scheduler import launch
from opstage.compiler.gpu.simulator import SMALL
from opstage.interpreters.eager_cuda.kernels import attention
from tests.compiler.gpu.test_driver import Api, Buffer, Part
from tests.compiler.gpu.test_gemm import Library


class RunningApi(Api):
    """Its launches run kernels; machine code is the number of a kernel and its signature."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 1 << 28
        self.compiled: list[Any] = []
        self.buffers: dict[int, Buffer] = {}
        self.core.launch = self.launch

    def compile(self, kernel: Any, signature: Any, cc: Any) -> CompiledKernel:
        self.compiled.append((kernel, signature))
        return CompiledKernel(str(len(self.compiled) - 1), b"", Resources(1, 0, 0, 0, 0, 0))

    def launch(self, stream: Any, configuration: Any, loaded: Any, *arguments: Any) -> None:
        assert stream is self.stream
        kernel, signature = self.compiled[int(loaded[1])]
        assert len(signature) == len(arguments)
        given = [
            self.as_pointer(a, name) if isinstance(a, (Buffer, Part)) else a for a, name in zip(arguments, signature)
        ]
        numbers = [a for a in arguments if not isinstance(a, (Buffer, Part))]
        assert [type(a).__name__ for a in numbers] == [name for name in signature if "*" not in name]
        self.at_once_or_later(lambda: launch(kernel, *configuration, *given))

    @override
    def allocate(self, nbytes: int, *, stream: Any) -> Buffer:
        buffer = super().allocate(nbytes, stream=stream)
        self.buffers[buffer.handle] = buffer
        return buffer

    def as_pointer(self, buffer: Any, name: str) -> Any:
        """An array of the buffer's elements; of one that holds addresses, the arrays at these."""
        if name.endswith("**"):
            return Addresses(self, buffer, name.removesuffix("*"))
        return elements(buffer.handle, buffer.size, name)


def elements(address: int, nbytes: int, name: str) -> Any:
    dtype = np.dtype(name.removesuffix("*"))
    whole = (ctypes.c_uint8 * (nbytes - nbytes % dtype.itemsize)).from_address(address)
    return np.ctypeslib.as_array(whole).view(dtype)


class Addresses:
    """A pointer to pointers."""

    def __init__(self, api: RunningApi, buffer: Any, name: str):
        self.api, self.name = api, name
        self.addresses = elements(buffer.handle, buffer.size, "int64*")

    def __getitem__(self, at: int) -> Any:
        address = int(self.addresses[at])
        (end,) = [b.handle + b.size for b in self.api.buffers.values() if b.handle <= address < b.handle + b.size]
        return elements(address, end - address, self.name)


class RunningLibrary(Library):
    """Products wait for the graph as well."""

    def __init__(self, api: RunningApi):
        super().__init__()
        self.api = api

    def cublasLtMatmul(self, *arguments: Any) -> None:  # noqa: N802
        self.api.at_once_or_later(lambda: Library.cublasLtMatmul(self, *arguments))


@contextmanager
def running_gpu() -> Iterator[Gpu]:
    """Such a GPU as what device 'cuda' is, whatever its number."""
    api = RunningApi()
    gpu = Gpu(api.core, api.driver, lambda: RunningLibrary(api))
    gpu.grid = SMALL
    with (
        mock.patch.object(driver_module, "compile_kernel", api.compile),
        mock.patch.object(probe, "_found", lambda number: gpu),
        mock.patch.object(attention, "SIDES", (4,)),  # of tiles that have no more than 32 threads
    ):
        yield gpu


def kept(gpu: Gpu) -> list[Any]:
    """What a device holds for itself."""
    return [*gpu._numbers.values(), *([flag] if (flag := gpu.context.watch.flag) is not None else [])]
