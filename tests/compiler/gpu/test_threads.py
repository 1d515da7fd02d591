"""A device and the threads that use it: one at a time calls the driver, and keeps it for all that belongs together.

The stand-ins of `test_cuda_driver` are told to notice it, and to give way to other threads inside each of their calls.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opstage.compiler.gpu import driver as driver_module
from opstage.compiler.gpu import machine as gpus
from opstage.compiler.gpu import probe
from opstage.compiler.gpu.compiler import CompiledKernel, Resources
from opstage.compiler.gpu.device import require_own_process
from opstage.compiler.gpu.driver import Gpu
from opstage.compiler.gpu.launches import Call
from opstage.interpreters.eager_cuda import CudaOps
from opstage.ops import matmul as linalg
from opstage.ops.errors import DeviceError, ProgramError, UsageError
from opstage.ops.types import FLOAT32, TensorType
from opstage.options import Options
from tests.compiler.gpu.test_driver import Api
from tests.compiler.gpu.test_gemm import Library


def kernel(*_: Any) -> None:
    raise AssertionError("a stand-in runs no kernels")


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made = CompiledKernel("kernel", b"", Resources(1, 0, 0, 0, 0, 0))
    monkeypatch.setattr(driver_module, "compile_kernel", lambda *of: made)


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads take turns as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(*work: Callable[[], None]) -> None:
    """All at once; the first error of any of them is raised."""
    start, errors = threading.Barrier(len(work)), []

    def run(each: Callable[[], None]) -> None:
        try:
            start.wait()
            each()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Watching:
    """Wraps every function of the stand-ins: `seen` is called with its name before each of its calls."""

    def __init__(self, api: Api, library: Library, seen: Callable[[str], None]):
        self.seen = seen
        for space in (api.core, api.driver, api.resource, api.stream, api.device):
            for name, value in vars(space).items():
                if callable(value) and not isinstance(value, type):
                    setattr(space, name, self.wrapped(name, value))
        api.core.ObjectCode.from_cubin = self.wrapped("from_cubin", api.core.ObjectCode.from_cubin)
        self.library = SimpleNamespace(cublasLtGetStatusString=library.cublasLtGetStatusString)
        for name in dir(library):
            if name.startswith("cublasLt"):
                setattr(self.library, name, self.wrapped(name, getattr(library, name)))

    def wrapped(self, name: str, call: Any) -> Any:
        def asked(*arguments: Any, **named: Any) -> Any:
            self.seen(name)
            return call(*arguments, **named)

        return asked


def watched(seen: Callable[[str], None], library: Library | None = None) -> tuple[Api, Gpu]:
    api = Api()
    api.total = 1 << 30
    watching = Watching(api, library or Library(), lambda name: None)
    gpu = Gpu(api.core, api.driver, lambda: watching.library)
    watching.seen = seen
    return api, gpu


# One at a time --------------------------------------------------------------------------------------------------------


def test_whoever_calls_the_driver_has_the_device_to_himself() -> None:
    calls: list[str] = []
    bare: list[str] = []

    def seen(name: str) -> None:
        calls.append(name)
        if not lock._is_owned():
            bare.append(name)

    _, gpu = watched(seen)
    lock: Any = gpu.lock
    x = gpu.upload(np.ones((2, 2), np.float32))
    out, bias = gpu.empty(TensorType((2, 2), FLOAT32)), gpu.upload(np.ones(2, np.float32))
    gpu.download(x)
    gpu.each(kernel, 4, out, np.float32(1))
    gpu.launch(kernel, 1, 32, (x, out))
    gpu.product(out, x, x, bias=bias)
    gpu.numbers(1, 2, 3)
    gpu.defer(kernel, (out,), (x,))
    gpu.flush()
    gpu.watched((2,), x)
    gpu.raise_flagged()
    calls_of_a_step = [
        Call("launch", (kernel, 1, 32, np.int32(4), out, (x, out)), {}, "fill", "", "fp32"),
        Call("product", (out, x, x), {}, "matmul", "", "tf32"),
    ]
    script = gpu.script(calls_of_a_step)
    for _ in range(3):
        script.prepare()
        script.run()
    gpu.synchronize()
    ops = CudaOps(Options(device="cuda"), gpu)
    ops.get(ops.matmul(ops.put(np.ones((2, 2))), ops.const(np.ones((2, 2)))))
    assert ops.get(ops.full(shape=(3,), value=1)).shape == (3,)
    ops.raise_pending()
    x.free()
    del out, bias, script, calls_of_a_step
    gpu.shrink()
    ops.empty_cache()
    assert not bare, "called while others might call as well"
    reached = {"launch", "cublasLtMatmul", "cublasLtMatmulDescSetAttribute", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"}
    assert reached | {"create_graph_builder", "allocate", "cuMemPoolTrimTo", "sync", "record"} <= set(calls)


def give_way(_: str) -> None:
    """Long enough for another thread to have its turn."""
    for _ in range(400):
        pass


@pytest.mark.usefixtures("impatient")
def test_arrays_of_several_threads_arrive_whole() -> None:
    _, gpu = watched(give_way)
    count = 150

    def travel(own: int) -> None:
        rng = np.random.default_rng(own)
        for _ in range(count):
            array = rng.integers(0, 1 << 30, int(rng.integers(1, 3000))).astype(np.int32)
            np.testing.assert_array_equal(gpu.download(gpu.upload(array)), array)

    in_threads(*[lambda own=own: travel(own) for own in range(4)])  # type: ignore[misc]
    assert gpu.used == 0


@pytest.mark.usefixtures("impatient")
def test_products_are_in_the_precision_and_with_the_bias_of_who_asked() -> None:
    library = Library()
    _, gpu = watched(give_way, library)
    asked: dict[int, set[int]] = {}
    descriptors = {told: compute for compute, told in ((68, "fp32"), (77, "tf32"), (75, "bf16"))}
    multiply: Any = Library.cublasLtMatmul

    def noted(self: Any, handle: Any, operation: Any, *more: Any) -> None:
        asked.setdefault(threading.get_ident(), set()).add(self.of(operation)["compute"])
        multiply(self, handle, operation, *more)

    api_library: Any = gpu._library()
    api_library.cublasLtMatmul = lambda *given: (noted(library, *given), 0)[1]
    meant: dict[int, int] = {}

    def multiplying(precision: Any, own: int) -> None:
        meant[threading.get_ident()] = descriptors[precision]
        ops = CudaOps(Options(device="cuda", matmul_precision=precision), gpu)
        x = np.eye(3, dtype=np.float32)
        for i in range(30):
            bias = np.arange(3, dtype=np.float32) + 10 * own + i
            out = ops.bind(linalg.LINEAR, (ops.put(x), ops.put(bias), ops.put(x)), {"has_bias": True})[0]
            np.testing.assert_array_equal(ops.get(out), x + bias)

    in_threads(*[lambda p=p, n=n: multiplying(p, n) for n, p in enumerate(("fp32", "tf32", "bf16"))])  # type: ignore[misc]
    assert {thread: {compute} for thread, compute in meant.items()} == asked


@pytest.mark.usefixtures("impatient")
def test_a_capture_takes_in_nobody_elses_work() -> None:
    others: list[str] = []
    capturing: list[int] = []

    def seen(name: str) -> None:
        if api.building is not None:
            capturing.append(threading.get_ident())
            if threading.get_ident() != captor:
                others.append(name)
        give_way(name)

    captor = threading.get_ident()
    api, gpu = watched(seen)
    out = gpu.empty(TensorType((2, 2), FLOAT32))
    fill = [Call("launch", (kernel, 1, 32, np.int32(i), out), {}, "fill", "", "fp32") for i in range(40)]
    done = threading.Event()

    def upload() -> None:
        while not done.is_set():
            gpu.upload(np.ones(3, np.float32))
            gpu.each(kernel, 3, out)

    def capture() -> None:
        nonlocal captor
        captor = threading.get_ident()
        try:
            for _ in range(3):
                script: Any = gpu.script(fill)
                script.run()
                script.run()
                del script
        finally:
            done.set()

    in_threads(upload, upload, capture)
    assert capturing and not others


def test_garbage_is_given_back_without_waiting_for_the_device() -> None:
    gpu = Api().gpu()
    x = gpu.empty(TensorType((4,), FLOAT32))
    has, gone = threading.Event(), threading.Event()

    def hold() -> None:
        with gpu.lock:
            has.set()
            gone.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    has.wait(60)
    del x  # in a thread that has not the lock, as the collector may do it anywhere
    gone.set()
    thread.join()
    assert gpu.used == 0


def test_memory_freed_by_two_threads_at_once_is_given_back_once() -> None:
    gpu = Api().gpu()
    for _ in range(50):
        x = gpu.empty(TensorType((4,), FLOAT32))
        in_threads(x.free, x.free)
        assert gpu.used == 0
    assert len(gpu._size_classes._blocks[512]) == 1


# Which device ---------------------------------------------------------------------------------------------------------


def test_gpus_are_opened_by_their_numbers_and_each_is_made_current_before_it_is_used() -> None:
    said: list[int] = []
    gpus = []
    for number in (0, 1):
        api = Api()
        api.core.Device = lambda asked, api=api, number=number: (_require(asked == number), api.device)[1]
        api.device.set_current = lambda number=number: said.append(number)
        gpus.append(Gpu(api.core, api.driver, Library, number=number))
    first, second = gpus
    assert [str(gpu) for gpu in gpus] == ["cuda:0", "cuda:1"]
    said.clear()
    for gpu in (first, first, second, second, first):
        gpu.upload(np.ones(1, np.float32))
    assert said == [0, 1, 0], "the last one opened was 1"


def _require(holds: bool) -> None:
    assert holds


def test_a_tensor_of_another_device_is_refused() -> None:
    first, second = (CudaOps(Options(device="cuda"), Api().gpu()) for _ in range(2))
    here, elsewhere = first.put(np.ones((2, 2))), second.put(np.ones((2, 2)))
    for use in (
        lambda: first.put(elsewhere),
        lambda: first.adopt(elsewhere),
        lambda: first.get(elsewhere),
        lambda: first.matmul(here, elsewhere),
        lambda: first.relu(elsewhere),
    ):
        with pytest.raises(
            ProgramError, match=r"a tensor of shape \(2, 2\) is on cuda:0, but this interpreter computes"
        ):
            use()


@pytest.mark.parametrize(
    ("said", "count", "seen"),
    [
        (None, 2, 2),
        ("0,1", 2, 2),
        ("1", 2, 1),
        (" 1 , 0 ", 2, 2),
        ("", 2, 0),
        ("-1", 2, 0),
        ("0,-1,1", 2, 1),
        ("0,5,1", 2, 1),
        ("0,0", 2, 1),
        ("none", 2, 0),
        ("0,1,2,3", 2, 2),
        ("GPU-8a1b", 2, 1),
        ("MIG-1,MIG-2,MIG-3", 2, 2),
    ],
)
def test_what_a_process_is_let_see(said: str | None, count: int, seen: int) -> None:
    assert probe.visible(said, count) == seen


def test_a_gpu_that_is_not_there_is_an_error_that_says_which_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from opstage.compiler.gpu.machine import GpuInfo as Seen
    from opstage.compiler.gpu.machine import Machine

    machine = Machine((13, 0), (Seen("NVIDIA H200", (9, 0), 1), Seen("NVIDIA T4", (7, 5), 1)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    probe.require_gpu(machine, 1)
    with pytest.raises(
        UsageError,
        match=r"device 'cuda:2' is not available: this process sees GPUs 0 to 1 \(0: NVIDIA H200, 1: NVIDIA T4\); "
        "CUDA_VISIBLE_DEVICES=3,5 selects",
    ):
        probe.require_gpu(machine, 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(UsageError, match=r"sees GPU 0 alone .*; CUDA_VISIBLE_DEVICES is not set"):
        probe.require_gpu(Machine((13, 0), machine.gpus[:1]), 1)
    old = Machine((13, 0), (machine.gpus[0], Seen("NVIDIA P100", (6, 0), 1)))
    probe.require_gpu(old, 0)
    with pytest.raises(UsageError, match=r"the NVIDIA P100 has 6\.0"):
        probe.require_gpu(old, 1)


def test_a_driver_that_the_parent_asked_is_of_no_use_to_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_initialised_by", os.getpid())
    require_own_process()
    monkeypatch.setattr(gpus, "_initialised_by", os.getppid())
    with pytest.raises(DeviceError, match="not supported in a process forked from one that uses it") as caught:
        probe.find_device()
    assert caught.value.lost
