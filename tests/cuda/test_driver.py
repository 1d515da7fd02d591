"""The device of a real GPU, its kernels run by the simulator: all of it but cuda.core, cuBLASLt and machine code."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.compiler.gpu.driver import Gpu
from opstage.interpreters.registry import make_interpreter
from opstage.ops.errors import DeviceError
from opstage.options import Options
from tests.compiler.gpu.test_driver import CUDAError
from tests.samples.sample import Sample

from . import test_conformance as conformance
from .running import kept, running_gpu


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with running_gpu() as gpu:
        yield gpu


@pytest.mark.parametrize("sample", conformance.samples(0)[::7], ids=lambda s: s.id)
def test_samples(gpu: Gpu, sample: Sample) -> None:
    conformance.test_values(sample, "eager")
    gc.collect()
    assert gpu.used == sum(buffer.memory.nbytes for buffer in kept(gpu))


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


def test_training_goes_on_where_a_step_cannot_be_captured(gpu: Gpu) -> None:
    api: Any = gpu._resource.allocate.__self__
    x, y = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32), np.array([0, 1, 1])

    def loss(ops: Any, w: Any, x: Any, y: Any) -> Any:
        return ops.cross_entropy(ops.linear(w, None, x), y)

    def trained(options: Options) -> Any:
        trainer, optimizer = opstage.scalar_trainer(loss, np.ones((2, 4)), options=options), opstage.optim.adam(lr=0.1)
        state = trainer.init_optim(optimizer)
        return [float(trainer.advance(optimizer, state, x, y).loss) for _ in range(4)], trainer.get_params()

    compiled = conformance.CUDA.replace(backend="compiled")
    losses, params = trained(compiled)
    api.stream.create_graph_builder = refused
    with pytest.warns(RuntimeWarning, match="could not be captured as a CUDA graph") as warned:
        again = trained(compiled)
    assert len(warned) == 1 and again[0] == losses
    np.testing.assert_array_equal(again[1], params)
    with pytest.raises(DeviceError, match="STREAM_CAPTURE"):
        trained(compiled.replace(cuda_graphs="always"))
    assert trained(compiled.replace(cuda_graphs="never"))[0] == losses


def refused() -> Any:
    raise CUDAError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the operation is not permitted when capturing")


WIDE: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "a vocabulary": (lambda ops, x, w: ops.matmul(x, w), ((1, 3), (3, 5001))),
    "turned": (lambda ops, x, w: ops.linear(w, None, x), ((2, 3, 4), (1025, 4))),
    "with a bias": (lambda ops, x, w, b: ops.linear(w, b, x), ((65, 4), (66, 4), (66,))),
    "stacked": (lambda ops, x, w: ops.bmm(x, w), ((3, 22, 2), (3, 2, 67))),
    "a multiple of four": (lambda ops, x, w: ops.matmul(x, w), ((4, 2), (2, 5000))),
    "narrow": (lambda ops, x, w: ops.matmul(x, w), ((500, 2), (2, 10))),
    "a row of sums": (lambda ops, x, w: ops.matmul(x, w) + ops.sum(ops.matmul(x, w)), ((7, 2), (2, 1025))),
}


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("name", WIDE)
def test_rows_of_any_width_are_written_a_multiple_of_four_apart(
    gpu: Gpu, name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opstage.api, "shared_interpreter", make_interpreter)
    program, shapes = WIDE[name]
    arrays = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)]
    found = opstage.run(program, *arrays, options=conformance.CUDA.replace(backend=backend))
    np.testing.assert_allclose(found, opstage.run(program, *arrays), rtol=1e-4, atol=1e-4)
    assert gpu._gemm is not None
    leading = gpu._gemm._library.leading
    assert leading and all(each % 4 == 0 for each in leading) == (name != "narrow")
    again = opstage.run(program, *arrays, options=conformance.CUDA.replace(backend=backend))
    np.testing.assert_array_equal(found, again)
