"""The device of a real GPU, its kernels run by the simulator: all of it but cuda.core, cuBLASLt and machine code."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

import opstage
from opstage.interpreters.eager_cuda.device import driver as driver_module
from opstage.interpreters.eager_cuda.device import probe, scheduler
from opstage.interpreters.eager_cuda.device.compile import Compiled, Resources
from opstage.interpreters.eager_cuda.device.driver import Gpu
from opstage.interpreters.eager_cuda.kernels import attention
from opstage.interpreters.eager_cuda.language import cuda
from opstage.options import Options
from tests.samples.sample import Sample
from tests.unit.test_cuda_driver import Api, Buffer, Part
from tests.unit.test_cuda_gemm import Library

from . import test_conformance as conformance


class RunningApi(Api):
    """Its launches run kernels; machine code is the number of a kernel and its signature."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 1 << 28
        self.compiled: list[Any] = []
        self.buffers: dict[int, Buffer] = {}
        self.core.launch = self.launch

    def compile(self, kernel: Any, signature: Any, cc: Any) -> Compiled:
        self.compiled.append((cuda.jit(kernel), signature))
        return Compiled(str(len(self.compiled) - 1), b"", Resources(1, 0, 0, 0, 0, 0))

    def launch(self, stream: Any, configuration: Any, loaded: Any, *arguments: Any) -> None:
        assert stream is self.stream
        kernel, signature = self.compiled[int(loaded[1])]
        assert len(signature) == len(arguments)
        given = [
            self.as_pointer(a, name) if isinstance(a, (Buffer, Part)) else a for a, name in zip(arguments, signature)
        ]
        numbers = [a for a in arguments if not isinstance(a, (Buffer, Part))]
        assert [type(a).__name__ for a in numbers] == [name for name in signature if "*" not in name]
        blocks = min(configuration[0], 2) if configuration[1] == 256 else configuration[0]
        self.at_once_or_later(lambda: run(kernel[blocks, min(configuration[1], 32)], given))

    @override
    def allocate(self, nbytes: int, *, stream: Any) -> Buffer:
        buffer = super().allocate(nbytes, stream=stream)
        self.buffers[buffer.handle] = buffer
        return buffer

    def as_pointer(self, buffer: Any, name: str) -> Any:
        """An array of the buffer's elements; of one that holds addresses, the arrays at these."""
        if name.endswith("**"):
            return Addresses(self, buffer, name.removesuffix("*"))
        return scheduler.pointer(elements(buffer.handle, buffer.size, name))


def elements(address: int, nbytes: int, name: str) -> Any:
    dtype = np.dtype(name.removesuffix("*"))
    whole = (ctypes.c_uint8 * (nbytes - nbytes % dtype.itemsize)).from_address(address)
    return np.ctypeslib.as_array(whole).view(dtype)


def run(kernel: Any, given: list[Any]) -> None:
    with np.errstate(all="ignore"):
        kernel(*given)


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


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    scheduler.install()
    api = RunningApi()
    gpu = Gpu(api.core, api.driver, lambda: RunningLibrary(api))
    monkeypatch.setattr(driver_module, "compile_kernel", api.compile)
    monkeypatch.setattr(probe, "_found", lambda: gpu)
    monkeypatch.setattr(attention, "SIDES", (4,))  # of tiles that have no more than 32 threads
    yield gpu


@pytest.mark.parametrize("sample", conformance.samples(0)[::7], ids=lambda s: s.id)
def test_samples(gpu: Gpu, sample: Sample) -> None:
    conformance.test_values(sample, "eager")
    gc.collect()
    assert gpu.used == sum(buffer.memory.nbytes for buffer in kept(gpu))


def kept(gpu: Gpu) -> list[Any]:
    """What a device holds for itself."""
    return [*gpu._numbers.values(), *([gpu._flag] if gpu._flag is not None else [])]


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_training_takes_all_its_memory_in_the_first_steps(gpu: Gpu, backend: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3, 4)).astype(np.float32), np.array([0, 1, 1])

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.cross_entropy(ops.linear(params["w"], params["b"], x), y)

    params = {"w": rng.standard_normal((2, 4)).astype(np.float32), "b": np.zeros(2, np.float32)}
    options = conformance.CUDA.replace(backend=backend), Options()
    trainers = [opstage.scalar_trainer(loss, params, options=each) for each in options]
    optimizer = opstage.optim.adamw(lr=0.1)
    states = [trainer.init_optim(optimizer) for trainer in trainers]
    api: Any = gpu._resource.allocate.__self__
    used: list[int] = []
    graphs: list[int] = []
    for _ in range(5):
        states = [trainer.step_with(optimizer, state, x, y) for trainer, state in zip(trainers, states)]
        gc.collect()
        used.append(api.used)
        graphs.append(api.said.count("graph"))
    assert used[2] == used[-1]
    assert graphs[-1] - graphs[-2] == (2 if backend == "compiled" else 0), "the two parts of a step"
    for name in params:
        np.testing.assert_allclose(*[trainer.get_params()[name] for trainer in trainers], rtol=1e-4, atol=1e-5)
