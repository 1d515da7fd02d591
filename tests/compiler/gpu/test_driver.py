"""The device of a real GPU, with stand-ins for cuda.core and the driver whose memory is the host's."""

from __future__ import annotations

import ctypes
import threading
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opstage.compiler.gpu import driver as driver_module
from opstage.compiler.gpu.compiler import CompiledKernel, Resources
from opstage.compiler.gpu.driver import Gpu
from opstage.compiler.gpu.launches import Call
from opstage.ops.errors import DeviceError, OutOfMemoryError, UnsupportedError
from opstage.ops.types import FLOAT32, TensorType
from tests.compiler.gpu.test_gemm import Library

TOTAL = 1 << 20


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_ECC_UNCORRECTABLE = 214
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class CUDAError(Exception):
    pass


class Buffer:
    """Memory of the GPU: bytes of the host."""

    def __init__(self, api: Api, nbytes: int):
        self.api, self.size = api, nbytes
        self.array = np.full(nbytes, 0xCB, np.uint8)
        self.handle = self.array.ctypes.data

    def fill(self, value: int, *, stream: Any) -> None:
        assert stream is self.api.stream
        self.array.fill(value)

    def close(self, stream: Any) -> None:
        assert stream is self.api.stream
        self.api.used -= self.size
        self.api.said.append(f"close {self.size}")


class Attributes:
    """Of the pool."""

    def __init__(self, api: Api):
        self._api = api

    @property
    def used_mem_current(self) -> int:
        return self._api.used


class Part:
    """Memory of another buffer."""

    def __init__(self, handle: int, size: int, owner: Any):
        self.handle, self.size, self.owner = handle, size, owner

    @classmethod
    def from_handle(cls, handle: int, size: int, *, owner: Any) -> Part:
        return cls(handle, size, owner)


class Builder:
    """A capture: what is started while it builds is kept, and done when the graph is."""

    def __init__(self, api: Api):
        self.api = api
        self.work: list[Any] = []

    def begin_building(self) -> None:
        assert self.api.building is None
        self.api.building = self.work
        self.api.said.append("begin")

    def end_building(self) -> None:
        self.api.building = None
        self.api.said.append("end")

    def complete(self) -> Any:
        self.api.said.append("complete")
        return SimpleNamespace(launch=self.launch)

    def close(self) -> None:
        self.api.said.append("closed")

    def launch(self, stream: Any) -> None:
        assert stream is self.api.stream
        self.api.said.append("graph")
        for each in self.work:
            each()


class Api:
    """cuda.core and cuda.bindings.driver, with a note of what they were asked for."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.used, self.total = 0, TOTAL
        self.host: list[Any] = []
        self.launches: list[Any] = []
        self.copy_status = Status.CUDA_SUCCESS
        event = SimpleNamespace(sync=lambda: self.said.append("event sync"))
        self.building: list[Any] | None = None
        self.stream = SimpleNamespace(
            handle=77,
            sync=lambda: self.said.append("sync"),
            record=lambda: event,
            create_graph_builder=lambda: Builder(self),
        )
        self.device = SimpleNamespace(
            device_id=0,
            name="NVIDIA H200",
            compute_capability=(9, 0),
            properties=SimpleNamespace(multiprocessor_count=2),
            set_current=lambda: self.said.append("set_current"),
            create_stream=lambda: self.stream,
        )
        self.resource = SimpleNamespace(handle="pool", allocate=self.allocate, attributes=Attributes(self))
        self.core = SimpleNamespace(
            Device=lambda ordinal: self.device,
            DeviceMemoryResourceOptions=lambda: "options",
            DeviceMemoryResource=lambda device_id, options: self.resource,
            LaunchConfig=self.configuration,
            ObjectCode=SimpleNamespace(from_cubin=lambda cubin: SimpleNamespace(get_kernel=lambda name: (cubin, name))),
            launch=lambda *given: self.at_once_or_later(lambda: self.launches.append(given)),
            Buffer=Part,
        )
        self.driver = SimpleNamespace(
            cuMemGetInfo=lambda: (Status.CUDA_SUCCESS, self.total - self.used, self.total),
            cuMemPoolTrimTo=self.empty_cache,
            cuMemAllocHost=self.pinned,
            cuMemcpyHtoDAsync=self.copy,
            cuMemcpyDtoHAsync=self.copy,
        )

    def at_once_or_later(self, work: Any) -> None:
        """As a stream does it: while it is captured nothing is done."""
        if self.building is None:
            work()
        else:
            self.building.append(work)

    def configuration(self, *, grid: int, block: int) -> Any:
        self.said.append(f"configuration {grid} x {block}")
        return grid, block

    def allocate(self, nbytes: int, *, stream: Any) -> Buffer:
        assert stream is self.stream
        if self.used + nbytes > self.total:
            raise CUDAError("CUDA_ERROR_OUT_OF_MEMORY: the API call failed")
        self.used += nbytes
        self.said.append(f"allocate {nbytes}")
        return Buffer(self, nbytes)

    def empty_cache(self, pool: Any, least: int) -> Any:
        self.said.append(f"trim {pool} to {least}")
        return (Status.CUDA_SUCCESS,)

    def pinned(self, nbytes: int) -> Any:
        self.host.append((ctypes.c_uint8 * nbytes)())
        return Status.CUDA_SUCCESS, ctypes.addressof(self.host[-1])

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> Any:
        assert stream == self.stream.handle
        self.at_once_or_later(lambda: ctypes.memmove(target, source, nbytes))
        return (self.copy_status,)

    def gpu(self, library: Any = None) -> Gpu:
        return Gpu(self.core, self.driver, library or Library)


@pytest.fixture
def api() -> Api:
    return Api()


def test_arrays_go_there_and_back(api: Api) -> None:
    gpu = api.gpu()
    for array in (np.arange(6, dtype=np.float32).reshape(2, 3), np.array([True, False]), np.array(5), np.empty((0, 2))):
        given = array.astype(np.float32) if array.dtype == np.float64 else array
        back = gpu.download(gpu.upload(given))
        assert (back.dtype, back.shape) == (given.dtype, given.shape)
        np.testing.assert_array_equal(back, given)
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.testing.assert_array_equal(gpu.download(gpu.upload(transposed)), transposed)


def test_a_copy_that_fails_is_an_error_with_the_drivers_name_for_it(api: Api) -> None:
    gpu = api.gpu()
    api.copy_status = Status.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        gpu.upload(np.ones(3, np.float32))
    assert isinstance(caught.value, DeviceError) and not caught.value.lost
    assert caught.value.reason == (
        "the NVIDIA H200 failed when an array was copied to it: the CUDA driver returned CUDA_ERROR_INVALID_VALUE; "
        "no step was applied in part, and the process can continue"
    )


def test_memory_is_used_again_and_returned_when_it_is_trimmed(api: Api) -> None:
    gpu = api.gpu()
    x = gpu.empty(TensorType((300,), FLOAT32))
    assert gpu.used == 1200
    del x
    y = gpu.empty(TensorType((3, 110), FLOAT32))
    assert (gpu.used, gpu.peak) == (1320, 1320)
    assert [said for said in api.said if said.startswith("allocate")] == ["allocate 1536"]
    assert gpu.empty_cache() == 0
    del y
    assert gpu.empty_cache() == 1536
    assert api.said[-3:] == ["close 1536", "sync", "trim pool to 0"]
    assert (gpu.used, api.used) == (0, 0)


def test_blocks_kept_for_other_sizes_make_room(api: Api) -> None:
    gpu = api.gpu()
    parts = [gpu.empty(TensorType((1 << 16,), FLOAT32)) for _ in range(4)]
    del parts
    assert api.used == TOTAL
    whole = gpu.empty(TensorType((1 << 18,), FLOAT32))
    assert gpu.used == api.used == TOTAL
    with pytest.raises(
        OutOfMemoryError,
        match="512 bytes were requested on the NVIDIA H200, which has 0 free of 1,048,576; tensors hold 1,048,576",
    ):
        gpu.empty(TensorType((1,), FLOAT32))
    del whole
    gpu.empty(TensorType((1,), FLOAT32))


def test_an_error_that_ends_the_use_of_the_gpu_says_so_and_how_to_find_the_kernel(api: Api) -> None:
    gpu = api.gpu()
    gpu.context = gpu.context._replace(op="relu", region="block 2")

    def fail(nbytes: int, *, stream: Any) -> Any:
        raise CUDAError(
            "CUDA_ERROR_ILLEGAL_ADDRESS: While executing a kernel, the device loaded from an invalid address. This "
            "leaves the process in an inconsistent state."
        )

    api.resource.allocate = fail
    with pytest.raises(DeviceError) as caught:
        gpu.empty(TensorType((1,), FLOAT32))
    assert caught.value.lost and isinstance(caught.value.__cause__, CUDAError)
    found = (
        "when memory was allocated: CUDA_ERROR_ILLEGAL_ADDRESS: While executing a kernel, the device loaded from an "
        "invalid address; the last op started was 'relu' in block 2"
    )
    assert caught.value.reason == (
        f"the NVIDIA H200 failed {found}. A kernel fails some time after it was started, so it may be one of an "
        "earlier op. To find it, run with CUDA_LAUNCH_BLOCKING=1, which waits for every kernel, or under "
        "compute-sanitizer. The GPU's memory is lost, and this process cannot use the GPU any more: start the "
        "process again, from the last checkpoint if there is one"
    )
    with pytest.raises(DeviceError) as again:
        gpu.empty(TensorType((1,), FLOAT32))
    assert again.value.lost
    assert again.value.reason == (
        f"this process lost the NVIDIA H200 to an earlier error, found {found}; start the process again, from the "
        "last checkpoint if there is one"
    )


def test_an_error_of_the_machine_is_not_blamed_on_a_kernel(api: Api) -> None:
    gpu = api.gpu()
    api.copy_status = Status.CUDA_ERROR_ECC_UNCORRECTABLE
    with pytest.raises(DeviceError, match="Programs do not cause this error: see nvidia-smi") as caught:
        gpu.upload(np.ones(3, np.float32))
    assert caught.value.lost and "CUDA_LAUNCH_BLOCKING" not in caught.value.reason


def test_what_is_no_error_of_the_driver_is_told_as_it_is(api: Api) -> None:
    gpu = api.gpu()

    def fail(nbytes: int, *, stream: Any) -> Any:
        raise TypeError("a mistake of our own")

    api.resource.allocate = fail
    with pytest.raises(TypeError, match="of our own"):
        gpu.empty(TensorType((1,), FLOAT32))


def test_a_gpu_that_cannot_be_opened_says_why(api: Api) -> None:
    def fail() -> None:
        raise CUDAError("CUDA_ERROR_DEVICE_UNAVAILABLE: the device is in exclusive mode")

    api.device.set_current = fail
    with pytest.raises(DeviceError, match="the GPU failed when it was opened: CUDA_ERROR_DEVICE_UNAVAILABLE"):
        api.gpu()


def test_a_product_that_fails_asks_the_driver_what_it_knows(api: Api) -> None:
    library = Library()
    api.total = 1 << 26
    gpu = api.gpu(lambda: library)
    gpu.context = gpu.context._replace(op="matmul")
    x, out = gpu.upload(np.ones((2, 2), np.float32)), gpu.empty(TensorType((2, 2), FLOAT32))
    library.fails["cublasLtMatmul"] = 15
    with pytest.raises(UnsupportedError, match=r"matmul.*: cublasLtMatmul failed .* not supported"):
        gpu.product(out, x, x)
    library.fails["cublasLtMatmul"] = 13
    with pytest.raises(
        DeviceError, match=r"a matrix product was started: cublasLtMatmul .* failed \(status 13\)"
    ) as caught:
        gpu.product(out, x, x)
    assert not caught.value.lost
    library.fails.clear()
    gpu.product(out, x, x)
    np.testing.assert_array_equal(gpu.download(out), np.full((2, 2), 2))

    def fail() -> None:
        raise CUDAError("CUDA_ERROR_LAUNCH_FAILED: an exception occurred on the device")

    library.fails["cublasLtMatmul"] = 14
    api.stream.sync = fail
    with pytest.raises(DeviceError, match="CUDA_ERROR_LAUNCH_FAILED") as caught:
        gpu.product(out, x, x)
    assert caught.value.lost


def test_launches_are_of_kernels_and_configurations_that_are_made_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def kernel(*_: Any) -> None:
        raise AssertionError("not run by Python")

    def compiled(kernel: Any, signature: Any, cc: Any) -> CompiledKernel:
        asked.append((signature, cc))
        return CompiledKernel("opstage_kernel", b"cubin of " + ", ".join(signature).encode(), Resources(1, 0, 0, 0, 0))

    monkeypatch.setattr(driver_module, "compile_kernel", compiled)
    gpu = api.gpu()
    x, mask = gpu.upload(np.ones(1000, np.float32)), gpu.upload(np.ones(1000, np.bool_))
    for _ in range(2):
        gpu.each(kernel, 1000, x, mask, np.float32(0.5))
    gpu.each(kernel, 1000, x, x, np.float32(0.5))
    assert asked == [
        (("int32", "float32*", "uint8*", "float32"), (9, 0)),
        (("int32", "float32*", "float32*", "float32"), (9, 0)),
    ]
    stream, configuration, loaded, *given = api.launches[0]
    assert (stream, configuration) == (api.stream, (4, 256))
    assert loaded == (b"cubin of int32, float32*, uint8*, float32", "opstage_kernel")
    assert given == [np.int32(1000), x.handle, mask.handle, np.float32(0.5)]
    assert [type(each).__name__ for each in given] == ["int32", "Buffer", "Buffer", "float32"]
    assert [said for said in api.said if said.startswith("conf")] == ["configuration 4 x 256"]
    gpu.each(kernel, 10**9, x, mask, np.float32(0.5))
    assert api.launches[-1][1] == (64, 256)  # the kernel steps on: 32 blocks for each of two multiprocessors


def test_a_tuple_of_buffers_is_a_table_of_their_addresses(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    tables: list[Any] = []

    def compiled(kernel: Any, signature: Any, cc: Any) -> CompiledKernel:
        asked.append(signature)
        return CompiledKernel("opstage_kernel", b"", Resources(1, 0, 0, 0, 0))

    monkeypatch.setattr(driver_module, "compile_kernel", compiled)
    api.core.launch = lambda stream, configuration, loaded, table, x: tables.append(np.array(table.array))
    gpu = api.gpu()
    buffers = tuple([gpu.upload(np.ones(n, np.float32)) for n in (1, 200, 3)])
    used = gpu.used
    for _ in range(2):
        gpu.launch(lambda table, x: None, 1, 1, buffers, buffers[0])
        assert gpu.used == used, "the table is held no longer than the launch takes"
    assert set(asked) == {("float32**", "float32*")}
    for table in tables:
        assert list(table.view(np.int64)[:3]) == [int(buffer.handle.handle) for buffer in buffers]


def test_a_kernel_that_does_not_compile_is_launched_by_nobody(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> CompiledKernel:
        raise UnsupportedError("the kernel exp(int32) did not compile")

    monkeypatch.setattr(driver_module, "compile_kernel", fails)
    gpu = api.gpu()
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="did not compile"):
            gpu.launch(lambda n: None, 1, 1, np.int32(1))
    assert api.launches == []


def test_products_are_the_librarys(api: Api) -> None:
    library = Library()
    api.total = 1 << 26
    gpu = api.gpu(lambda: library)
    rng = np.random.default_rng(0)
    for x, y in [((2, 3), (3, 4)), ((5, 2, 3), (5, 3, 1)), ((2, 2, 1, 6), (2, 2, 6, 2))]:
        a, b = rng.standard_normal(x).astype(np.float32), rng.standard_normal(y).astype(np.float32)
        out = gpu.empty(TensorType((*x[:-1], y[-1]), FLOAT32))
        gpu.product(out, gpu.upload(a), gpu.upload(b))
        np.testing.assert_allclose(gpu.download(out), a @ b, rtol=1e-5, atol=1e-6)
        turned = [gpu.upload(np.ascontiguousarray(m.swapaxes(-1, -2))) for m in (a, b)]
        gpu.product(out, *turned, x_transposed=True, y_transposed=True)
        np.testing.assert_allclose(gpu.download(out), a @ b, rtol=1e-5, atol=1e-6)
    bias, single = np.arange(4, dtype=np.float32), gpu.empty(TensorType((2, 4), FLOAT32))
    gpu.product(
        single,
        gpu.upload(np.ones((2, 3), np.float32)),
        gpu.upload(np.eye(3, 4, dtype=np.float32)),
        bias=(gpu.upload(bias)),
    )
    np.testing.assert_array_equal(gpu.download(single), np.tile(np.eye(3, 4).sum(axis=0) + bias, (2, 1)))
    assert library.calls.count("cublasLtCreate") == 1
    assert set(library.streams) == {77}
    gpu.context = gpu.context._replace(precision="bf16")
    gpu.product(out, gpu.upload(a), gpu.upload(b))
    assert [told["compute"] for told in library.things if "compute" in told][-1] == 75


def test_each_thread_says_which_device_it_means(api: Api) -> None:
    gpu = api.gpu()
    gpu.upload(np.ones(1, np.float32))
    assert api.said.count("set_current") == 1
    thread = threading.Thread(target=lambda: [gpu.upload(np.ones(1, np.float32)) for _ in range(2)])
    thread.start()
    thread.join()
    assert api.said.count("set_current") == 2


# Scripts -------------------------------------------------------------------------------------------------------------


def filled(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script of two launches and a product."""
    monkeypatch.setattr(
        driver_module, "compile_kernel", lambda *of: CompiledKernel("fill", b"", Resources(1, 0, 0, 0, 0, 0))
    )
    out = gpu.empty(TensorType((2, 2), FLOAT32))

    def fill(count: Any, out: Any, value: Any) -> None:
        raise AssertionError("a stand-in runs no kernels")

    calls = [
        Call("launch", (fill, 1, 32, np.int32(4), out, np.float32(i)), {}, "fill", "here", "fp32") for i in range(2)
    ]
    return gpu.script([*calls, Call("product", (out, out, out), {}, "matmul", "", "tf32")])


def test_a_script_is_asked_for_then_captured_then_replayed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.total = 1 << 28
    script = filled(api.gpu(), monkeypatch)
    script.run()
    assert "begin" not in api.said and len(api.launches) == 2
    api.said.clear()
    script.run()
    assert api.said == ["begin", "end", "complete", "closed", "graph"] and len(api.launches) == 4
    script.run()
    assert api.said[5:] == ["graph"] and len(api.launches) == 6
    first, *_ = api.launches
    assert all(again[3:] == first[3:] for again in api.launches[::2]), "the same memory and numbers"


def test_a_capture_that_fails_leaves_the_stream_to_others(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.total = 1 << 28
    script = filled(api.gpu(), monkeypatch)
    script.run()

    def fail(*given: Any) -> None:
        raise CUDAError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the operation is not permitted when capturing")

    launch, api.core.launch = api.core.launch, fail
    with pytest.raises(DeviceError, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        script.run()
    assert api.building is None and api.said[-2:] == ["end", "closed"]
    api.core.launch = launch
    script.run()
    assert api.said[-5:] == ["begin", "end", "complete", "closed", "graph"]


REFUSED = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the operation is not permitted when capturing. More"


def refusing(api: Api, where: str) -> None:
    """Let the driver refuse captures: as they begin, at a launch in them, as they end, or as they are completed."""

    def fail(*_: Any) -> Any:
        raise CUDAError(REFUSED)

    if where == "launch":
        launch = api.core.launch
        api.core.launch = lambda *given: launch(*given) if api.building is None else fail()
    else:
        make = api.stream.create_graph_builder

        def made() -> Any:
            builder = make()
            end = builder.end_building
            setattr(builder, where, fail if where != "end_building" else lambda: (end(), fail()))
            return builder

        api.stream.create_graph_builder = made


@pytest.mark.parametrize("where", ["begin_building", "launch", "end_building", "complete"])
def test_calls_that_cannot_be_captured_are_made_one_by_one_with_one_warning(
    api: Api, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    api.total = 1 << 28
    gpu = api.gpu()
    first, second = filled(gpu, monkeypatch), filled(gpu, monkeypatch)
    for script in (first, second):
        script.run()
    refusing(api, where)
    with pytest.warns(RuntimeWarning, match=r"one by one.*CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.*'always'") as warned:
        for _ in range(3):
            first.run()
            second.prepare()
            second.run()
    assert sum("graph" in str(each.message) for each in warned) == 1
    assert len(api.launches) == 2 * 2 * 4 and "graph" not in api.said
    assert api.said.count("closed") == 2, "it is tried once for each script"


def test_captures_are_required_or_not_tried_as_the_options_say(
    api: Api, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    api.total = 1 << 28
    gpu = api.gpu()
    never, always = (gpu.script(filled(gpu, monkeypatch).calls, graphs) for graphs in ("never", "always"))
    for _ in range(3):
        never.run()
    assert "begin" not in api.said and len(api.launches) == 6
    always.run()
    refusing(api, "complete")
    for _ in range(2):
        with pytest.raises(DeviceError, match="when a step was captured: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
            always.run()
    assert len(api.launches) == 8 and not any("graph" in str(each.message) for each in recwarn)


def test_a_gpu_that_is_lost_in_a_capture_is_lost(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.total = 1 << 28
    script = filled(api.gpu(), monkeypatch)
    script.run()
    api.core.launch = _lost
    with pytest.raises(DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        script.run()
    assert caught.value.lost


def _lost(*_: Any) -> None:
    raise CUDAError("CUDA_ERROR_ILLEGAL_ADDRESS: somewhere")


def test_a_mistake_in_a_capture_is_told_as_it_is(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.total = 1 << 28
    script = filled(api.gpu(), monkeypatch)
    script.run()

    def mistaken(*_: Any) -> None:
        raise TypeError("a mistake of our own")

    api.core.launch = mistaken
    with pytest.raises(TypeError, match="of our own"):
        script.run()


def test_a_part_keeps_the_memory_that_it_is_of(api: Api) -> None:
    gpu = api.gpu()
    whole = gpu.memory(1024)
    part = gpu.part(whole, 256, 128)
    assert (part.handle, part.size) == (whole.handle.handle + 256, 128) and part.owner is whole.handle
