"""The predicted memory of a step on a device against what the simulated one gives out while a trainer makes steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage import Aux, Options, Spec, optim
from opstage.compiler.gpu.cublas import WORKSPACE
from opstage.compiler.gpu.memory import Tally, size_class
from opstage.compiler.gpu.simulator import SMALL, Simulator
from opstage.interpreters.eager_cuda.kernels import linalg as matmul
from opstage.optim import Optimizer
from opstage.training.memory import model_memory, step_memory
from opstage.training.trainer import ScalarTrainer, scalar_trainer
from tests.cuda.small_models import CONFIGS, SIZES, batch, small, trainer
from tests.cuda.traffic import stand_in

EAGER = Options(device="cuda")
COMPILED = EAGER.replace(backend="compiled")
SGD, ADAMW = optim.sgd(lr=0.1), optim.adamw(lr=0.1)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Simulator:
    """One of the test's own; what is predicted is for kernels that are started as it starts them."""
    device = Simulator()
    stand_in(monkeypatch, device)
    monkeypatch.setattr("opstage.training.memory.GRID", SMALL)
    return device


def steady_peak(device: Simulator, made: ScalarTrainer, optimizer: Optimizer, arrays: Any, steps: int = 6) -> int:
    """The most bytes in the last of some steps."""
    state = made.init_optim(optimizer)
    for _ in range(steps):
        device.peak = device.used
        made.advance(optimizer, state, *arrays)
    return device.peak


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=lambda o: o.name)
@pytest.mark.parametrize("options", [EAGER, COMPILED], ids=lambda o: o.backend)
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_step_takes_what_is_predicted(
    name: str, options: Options, optimizer: Optimizer, device: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels compute nothing here: what memory is asked for does not depend on numbers."""
    monkeypatch.setattr(Simulator, "launch", lambda *arguments: None)
    model, arrays = small(name), batch(name)
    memory = model_memory(model, optimizer, options)
    predicted = memory.at(**{dim: SIZES[dim] for dim in memory.names})
    assert predicted.peak == steady_peak(device, trainer(name, options), optimizer, arrays)


@pytest.mark.parametrize("options", [EAGER, COMPILED], ids=lambda o: o.backend)
def test_clipping_frozen_parameters_and_metrics_count(options: Options, device: Simulator) -> None:
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((5, 4)), "v": rng.standard_normal((6, 5)), "z": rng.standard_normal((2, 6))}
    arrays = rng.standard_normal((3, 4)).astype(np.float32), np.array([0, 1, 1])

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        hidden = ops.tanh(ops.linear(params["v"], None, ops.linear(params["w"], None, x)))
        error = ops.cross_entropy(ops.linear(params["z"], None, hidden), y)
        return error, Aux(metrics={"size": ops.reduce_mean(hidden, axis=(0, 1))})

    flags = {"w": True, "v": False, "z": True}
    given: Any = {"options": options, "requires_grad": flags, "clip": optim.clip.by_global_norm(1.0)}
    predicted = step_memory(loss, params, Spec("B 4"), Spec("B", "int64"), optimizer=ADAMW, **given).at(B=3)
    made = scalar_trainer(loss, params, **given)
    assert predicted.peak == steady_peak(device, made, ADAMW, arrays)
    assert (predicted.parameters, predicted.optimizer) == (4 * (20 + 30 + 12), 2 * 4 * (20 + 12))
    assert predicted.batch == 3 * 4 * 4 + 3 * 8 + 3 * 4, "x and y, and three scalars of the optimizer"


@pytest.mark.parametrize("options", [EAGER, COMPILED], ids=lambda o: o.backend)
def test_rows_that_a_product_writes_apart_are_counted(
    options: Options, device: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, least in (("NARROW", 2), ("SMALL", 4), ("OFTEN", 2)):
        monkeypatch.setattr(matmul, name, least)
    params = {"w": np.random.default_rng(0).standard_normal((5, 2))}
    arrays = np.ones((4, 2), np.float32), np.array([0, 1, 1, 4])

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.cross_entropy(ops.linear(params["w"], None, x), y)

    predicted = step_memory(loss, params, Spec("B 2"), Spec("B", "int64"), optimizer=ADAMW, options=options).at(B=4)
    made = scalar_trainer(loss, params, options=options)
    assert predicted.peak == steady_peak(device, made, ADAMW, arrays)


@pytest.mark.parametrize("options", [EAGER, COMPILED], ids=lambda o: o.backend)
def test_blocks_are_what_a_pool_gives_out(options: Options, device: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate, deallocate, now, most = Simulator.allocate, Simulator.deallocate, 0, 0

    def counted_allocate(each: Simulator, nbytes: int) -> Any:
        nonlocal now, most
        now += size_class(nbytes) if each is device else 0
        most = max(most, now)
        return allocate(each, nbytes)

    def counted_deallocate(each: Simulator, handle: Any, nbytes: int) -> None:
        nonlocal now
        now -= size_class(nbytes) if each is device else 0
        deallocate(each, handle, nbytes)

    monkeypatch.setattr(Simulator, "allocate", counted_allocate)
    monkeypatch.setattr(Simulator, "deallocate", counted_deallocate)
    predicted = model_memory(small("mlp"), ADAMW, options).at(B=2)
    made = trainer("mlp", options)
    state = made.init_optim(ADAMW)
    for _ in range(6):
        most = now
        made.advance(ADAMW, state, *batch("mlp"))
    assert predicted.blocks == most + WORKSPACE
    assert predicted.needed == predicted.blocks > predicted.peak


def test_a_tally_counts_kinds_and_blocks() -> None:
    now = ["a"]
    tally = Tally(lambda: now[0])
    first = tally.memory(1000)
    now[0] = "b"
    second = tally.memory(3000)
    assert (tally.used, tally.peak, tally.blocks) == (4000, 4000, 1024 + 3072)
    assert tally.at_peak == {"a": 1000, "b": 3000}
    tally.rename(first, "c")
    second.free()
    assert (tally.used, tally.peak, tally.at_peak["c"]) == (1000, 4000, 0)
    tally.begin()
    assert (tally.peak, tally.blocks, +tally.at_peak) == (1000, 1024, {"c": 1000})
    kept = tally.upload(np.zeros((2, 3), np.int32))
    np.testing.assert_array_equal(tally.download(kept), np.zeros((2, 3), np.int32))
    assert (tally.used, tally.empty_cache()) == (1024, 0)
