"""Failures of a GPU: errors of the driver, and runs that are killed."""

from __future__ import annotations

import gc
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import DeviceError, Options
from opstage.compiler.gpu import driver as driver_module
from opstage.compiler.gpu import probe
from opstage.compiler.gpu.driver import Gpu
from opstage.compiler.gpu.simulator import SMALL
from opstage.training import checkpoint
from tests.cli.test_killed_run import kill_after, metrics, start
from tests.compiler.gpu.test_driver import Builder, CUDAError, Status
from tests.cuda.running import RunningApi, RunningLibrary, kept
from tests.training.same import run_bits

PASSING = "CUDA_ERROR_INVALID_VALUE"
ENDING = "CUDA_ERROR_ILLEGAL_ADDRESS"


class FailingApi(RunningApi):
    """Its calls are counted, and the `fails_at`-th fails with `error`; all later ones too, if that ends the process's
    use of the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.fails_at, self.error = 0, 0, PASSING
        self.library = RunningLibrary(self)
        event = self.stream.record()
        event.sync = self.raising(event.sync)
        self.stream.sync = self.raising(self.stream.sync)
        self.stream.record = self.raising(lambda: event)
        self.stream.create_graph_builder = self.raising(self.capture)
        self.device.set_current = self.raising(self.device.set_current)
        self.resource.allocate = self.raising(self.resource.allocate)
        self.core.launch = self.raising(self.core.launch)
        self.core.ObjectCode.from_cubin = self.raising(self.core.ObjectCode.from_cubin)
        for name, call in list(vars(self.driver).items()):
            setattr(self.driver, name, self.returning(call))

    def capture(self) -> Any:
        builder = Builder(self)
        complete = builder.complete

        def completed() -> Any:
            graph = complete()
            graph.launch = self.raising(graph.launch)
            return graph

        builder.complete = self.raising(completed)  # type: ignore[method-assign]
        builder.begin_building = self.raising(builder.begin_building)  # type: ignore[method-assign]
        return builder

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
    api = FailingApi()
    gpu = Gpu(api.core, api.driver, lambda: api.library)
    gpu.grid = SMALL
    monkeypatch.setattr(driver_module, "compile_kernel", api.compile)
    monkeypatch.setattr(probe, "_found", lambda number: gpu)
    yield api


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.cross_entropy(ops.linear(params["w"], params["b"], x), y)


X, Y = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32), np.array([0, 1, 1])
PARAMS = {"w": np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32), "b": np.zeros(2, np.float32)}


def new_trainer(steps: int = 0, backend: str = "eager") -> Any:
    trainer = opstage.scalar_trainer(loss, PARAMS, options=Options(device="cuda", backend=backend))
    for _ in range(steps):
        trainer.step(0.5, X, Y)
    return trainer


def assert_params(trainer: Any, expected: Any) -> None:
    found = trainer.get_params()
    for name in PARAMS:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("backend", "done"), [("eager", 0), ("eager", 1), *[("compiled", n) for n in range(3)]])
def test_a_step_that_fails_is_not_half_done_and_the_next_one_goes_on(api: FailingApi, backend: str, done: int) -> None:
    """Whichever of its calls it is: in a first step also those that load kernels and make the first memory, in the
    second compiled one those of the capture, in later ones those of the replay. Where the step was done and only the
    reading of its loss failed, it stays done, with its moments: another step is then the one after it."""
    optimizer = opstage.optim.adam(lr=0.5)
    expected = opstage.scalar_trainer(loss, PARAMS)
    state = expected.init_optim(optimizer)
    after = []
    for _ in range(done + 3):
        after.append(expected.get_params())
        expected.advance(optimizer, state, X, Y)

    def begun() -> tuple[Any, Any]:
        trainer = opstage.scalar_trainer(loss, PARAMS, options=Options(device="cuda", backend=backend))
        moments = trainer.init_optim(optimizer)
        for _ in range(done):
            trainer.advance(optimizer, moments, X, Y)
        return trainer, moments

    trainer, moments = begun()
    before = api.count
    trainer.advance(optimizer, moments, X, Y)
    calls = api.count - before
    assert calls > 6
    told = 0
    for at in range(calls):
        trainer, moments = begun()
        api.fails_at = api.count + 1 + at
        try:
            trainer.advance(optimizer, moments, X, Y)
        except DeviceError as error:
            told += 1
            assert not error.lost
            assert "the NVIDIA H200 failed when" in error.reason and PASSING in error.reason
        api.fails_at = 0
        taken = moments.t
        assert taken == done + 1 or (taken == done and told)
        assert_params(trainer, after[taken])
        trainer.advance(optimizer, moments, X, Y)
        assert_params(trainer, after[taken + 1])
    assert told > calls // 2
    device: Any = probe.find_device()
    if backend == "eager":  # a compiled program keeps its arena
        del trainer, moments
        gc.collect()
        assert device.used == sum(buffer.memory.nbytes for buffer in kept(device))


def test_after_an_error_that_ends_the_use_of_the_gpu_every_call_says_so(api: FailingApi) -> None:
    """Each call of a step in turn. A step's number of calls is not the same each time: it waits for pinned memory or
    takes new memory by what copies and garbage came before it."""
    device: Any = probe.find_device()
    for at in itertools.count():
        trainer = new_trainer()
        trainer.step(0.5, X, Y)
        api.error, api.fails_at = ENDING, api.count + 1 + at
        try:
            trainer.step(0.5, X, Y)
        except DeviceError as error:
            assert re.search(f"failed when .*{ENDING}.*the last op started", str(error))
            assert error.lost
        else:
            assert api.count < api.fails_at, "a call failed and nobody was told"
            break
        for again in (lambda: trainer.step(0.5, X, Y), trainer.get_params, trainer.empty_cache):
            with pytest.raises(
                DeviceError, match="this process lost the NVIDIA H200 to an earlier error, found"
            ) as later:
                again()
            assert later.value.lost
        api.error, api.fails_at, device._failures.lost = PASSING, 0, ""  # a new process
    assert at > 20


def test_a_kernel_that_cannot_be_loaded_names_its_op(api: FailingApi) -> None:
    def fail(*_: Any) -> Any:
        raise CUDAError("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available. More.")

    api.core.ObjectCode.from_cubin = fail
    with pytest.raises(
        DeviceError, match=r"relu at .*: the NVIDIA H200 failed when the kernel \w+ was started"
    ) as found:
        opstage.run(lambda ops, x: ops.relu(x), X, options=Options(device="cuda"))
    assert found.value.op == "relu"


EPOCHS = 4
SIZES = ("--model.inputs", "[1, 2, 3]", "--model.hidden", "[4]", "--model.classes", "2")
SAVING = ("--run.checkpoint_every", "1", "--run.log_every", "1", "--run.plot", "false")


def test_a_killed_run_ends_as_a_whole_one(tmp_path: Path) -> None:
    """The moments of the optimizer and the draws of dropout, which are on the device, go on too."""
    data = tmp_path / "few.npz"
    np.savez(data, x=np.random.default_rng(0).standard_normal((20, 1, 2, 3)), y=np.arange(20) % 2)
    words = ("mlp", *SIZES, *SAVING, "--device", "cuda", "--data", str(data), "--batch-size", "8")
    whole, run = ([*words, "--epochs", str(EPOCHS), "--out", str(tmp_path / name)] for name in ("whole", "run"))
    uninterrupted = start(*whole)
    kill_after(start(*run), 2)
    assert checkpoint.exists(tmp_path / "run" / "checkpoint")
    resumed = start("--resume", str(tmp_path / "run"))
    for process in (uninterrupted, resumed):
        said, _ = process.communicate()
        assert process.returncode == 0, said
    found, expected = (checkpoint.load(tmp_path / name / "checkpoint") for name in ("run", "whole"))
    assert run_bits(found) == run_bits(expected)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert len(found.position.results) == EPOCHS
