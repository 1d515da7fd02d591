"""Whatever call of the driver fails: one kind of error, parameters as they were, a process that goes on if it can."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import DeviceError, Options
from opstage.interpreters.eager_cuda.device import driver as driver_module
from opstage.interpreters.eager_cuda.device import probe, scheduler
from opstage.interpreters.eager_cuda.device.driver import Gpu
from tests.unit.test_cuda_driver import CUDAError, Status
from tests.unit.test_cuda_gemm import Library

from .test_driver import RunningApi, kept

PASSING = "CUDA_ERROR_INVALID_VALUE"
ENDING = "CUDA_ERROR_ILLEGAL_ADDRESS"


class FailingApi(RunningApi):
    """Its calls are counted, and the `fails_at`-th fails with `error`; all later ones too, if that ends the process's
    use of the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.fails_at, self.error = 0, 0, PASSING
        self.library = Library()
        event = self.stream.record()
        event.sync = self.raising(event.sync)
        self.stream.sync = self.raising(self.stream.sync)
        self.stream.record = self.raising(lambda: event)
        self.device.set_current = self.raising(self.device.set_current)
        self.resource.allocate = self.raising(self.resource.allocate)
        self.core.launch = self.raising(self.core.launch)
        self.core.ObjectCode.from_cubin = self.raising(self.core.ObjectCode.from_cubin)
        for name, call in list(vars(self.driver).items()):
            setattr(self.driver, name, self.returning(call))

    def fails(self) -> bool:
        self.count += 1
        ends = self.error == ENDING and self.fails_at
        return self.count == self.fails_at or bool(ends and self.count > self.fails_at)

    def raising(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any, **named: Any) -> Any:
            if self.fails():
                raise CUDAError(f"{self.error}: what it means. What follows from it.")
            return call(*arguments, **named)

        return asked

    def returning(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any) -> Any:
            return (Status[self.error],) if self.fails() else call(*arguments)

        return asked


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingApi]:
    scheduler.install()
    api = FailingApi()
    gpu = Gpu(api.core, api.driver, lambda: api.library)
    monkeypatch.setattr(driver_module, "compile_kernel", api.compile)
    monkeypatch.setattr(probe, "_found", lambda: gpu)
    yield api


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.cross_entropy(ops.linear(params["w"], params["b"], x), y)


X, Y = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32), np.array([0, 1, 1])
PARAMS = {"w": np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32), "b": np.zeros(2, np.float32)}


def new_trainer() -> Any:
    return opstage.scalar_trainer(loss, PARAMS, options=Options(device="cuda"))


def expected_after(steps: int) -> Any:
    trainer = opstage.scalar_trainer(loss, PARAMS)
    for _ in range(steps):
        trainer.step(0.5, X, Y)
    return trainer.get_params()


def assert_params(trainer: Any, expected: Any) -> None:
    found = trainer.get_params()
    for name in PARAMS:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", [True, False], ids=["the first step", "a later step"])
def test_a_step_that_fails_changes_nothing_and_the_next_one_goes_on(api: FailingApi, first: bool) -> None:
    """Whichever of its calls it is: in a first step also those that load kernels and make the first memory."""
    trainer = new_trainer()
    if not first:
        trainer.step(0.5, X, Y)
    before = api.count
    trainer.step(0.5, X, Y)
    calls = api.count - before
    assert calls > 10
    unchanged, after = expected_after(0 if first else 1), expected_after(1 if first else 2)
    for at in range(calls):
        trainer = new_trainer()
        if not first:
            trainer.step(0.5, X, Y)
        api.fails_at = api.count + 1 + at
        try:
            trainer.step(0.5, X, Y)
        except DeviceError as error:
            assert not error.lost
            assert "the NVIDIA H200 failed when" in error.reason and PASSING in error.reason
            assert_params(trainer, unchanged)
            trainer.step(0.5, X, Y)
        api.fails_at = 0
        assert_params(trainer, after)
    probe_gpu: Any = probe.find_device()
    del trainer
    gc.collect()
    assert probe_gpu.used == sum(buffer.memory.nbytes for buffer in kept(probe_gpu))


def test_after_an_error_that_ends_the_use_of_the_gpu_every_call_says_so(api: FailingApi) -> None:
    device: Any = probe.find_device()
    trainer = new_trainer()
    trainer.step(0.5, X, Y)
    before = api.count
    trainer.step(0.5, X, Y)
    for at in range(api.count - before):
        trainer = new_trainer()
        trainer.step(0.5, X, Y)
        api.error, api.fails_at = ENDING, api.count + 1 + at
        with pytest.raises(DeviceError, match=f"failed when .*{ENDING}.*the op asked for last") as first:
            trainer.step(0.5, X, Y)
        assert first.value.lost
        for again in (lambda: trainer.step(0.5, X, Y), trainer.get_params, trainer.trim):
            with pytest.raises(
                DeviceError, match="this process lost the NVIDIA H200 to an earlier error, found"
            ) as later:
                again()
            assert later.value.lost
        api.error, api.fails_at, device._failures.lost = PASSING, 0, ""  # a new process


def test_a_kernel_that_cannot_be_loaded_names_its_op(api: FailingApi) -> None:
    def fail(*_: Any) -> Any:
        raise CUDAError("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available. More.")

    api.core.ObjectCode.from_cubin = fail
    with pytest.raises(
        DeviceError, match=r"relu at .*: the NVIDIA H200 failed when the kernel \w+ was started"
    ) as found:
        opstage.run(lambda ops, x: ops.relu(x), X, options=Options(device="cuda"))
    assert found.value.op == "relu"
