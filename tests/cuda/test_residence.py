"""Where tensors stand while a model is trained on a device: what goes up and down, what is kept, what is given back."""

from __future__ import annotations

import gc
import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage import (
    Aux,
    NotFiniteError,
    OpstageError,
    Options,
    OutOfMemoryError,
    ScalarModuleDef,
    ScalarTrainer,
    Session,
    init,
    optim,
)
from opstage.compiler.gpu.simulator import Simulator
from opstage.ops.errors import RangeError
from opstage.training.checkpoint import load, restore, save, take_snapshot
from opstage.training.finite import require_finite_values
from opstage.training.trainer import scalar_trainer
from tests.cuda.traffic import Traffic, advance_stopped_anywhere, advance_without_room, same

CUDA = Options(device="cuda")
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
Y = np.array([0, 1, 1])
ADAMW = optim.adamw(lr=0.05)


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    """A classifier whose last layer is frozen below, with a metric."""
    hidden = ops.tanh(ops.linear(params["w"], params["b"], x))
    error = ops.cross_entropy(ops.linear(params["frozen"], None, hidden), y)
    return error, Aux(metrics={"size": ops.reduce_mean(hidden, axis=(0, 1))})


def values() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"w": rng.standard_normal((5, 4)), "b": np.zeros(5), "frozen": rng.standard_normal((2, 5))}


TRAINED, FROZEN = 4 * (5 * 4 + 5), 4 * 2 * 5
"""Bytes."""


def made() -> ScalarTrainer:
    return scalar_trainer(
        loss, values(), options=CUDA, requires_grad={"w": True, "b": True, "frozen": False}, state=None
    )


# Up and down --------------------------------------------------------------------------------------------------------


def test_a_step_downloads_its_loss_and_metrics_alone(device: Simulator, traffic: Traffic) -> None:
    trainer = made()
    state = trainer.init_optim(ADAMW)
    trainer.advance(ADAMW, state, X, Y)
    traffic.clear()
    for _ in range(3):
        trainer.advance(ADAMW, state, X, Y)
    assert traffic.downloads == 2 * 3 * [((), "float32")]
    batch = [(X.shape, "float32"), (Y.shape, "int64")]
    assert {shape for shape in traffic.uploads if shape[0] != ()} == set(batch)
    assert [traffic.uploads.count(tensor) for tensor in batch] == [3, 3]


def test_moments_are_made_on_the_device(device: Simulator, traffic: Traffic) -> None:
    trainer = made()
    for optimizer in (ADAMW, optim.adagrad(lr=0.1, initial_accumulator_value=0.25)):
        state = trainer.init_optim(optimizer)
        assert traffic.uploads == []
    same(trainer.export_optim(optimizer, state).slots["w"][0], np.full((5, 4), 0.25, np.float32))


def test_the_host_reads_a_parameter_when_it_is_asked_for_and_once(device: Simulator, traffic: Traffic) -> None:
    trainer = made()
    trainer.step(0.1, X, Y)
    params = trainer.params
    assert params["w"].host_stale and params["b"].host_stale and not params["frozen"].host_stale
    traffic.clear()
    first = trainer.get_params()
    assert sorted(traffic.downloads) == [((5,), "float32"), ((5, 4), "float32")]
    assert not params["w"].host_stale
    same(trainer.get_params(), first)
    trainer.forward(X, Y)
    assert len(traffic.downloads) == 2 + 2, "the loss and the metric"
    assert not any(shape in [(5,), (5, 4), (2, 5)] for shape, _ in traffic.uploads)


def test_a_write_on_the_host_is_what_the_next_step_starts_from(device: Simulator, traffic: Traffic) -> None:
    trainer, peer = made(), scalar_trainer(loss, values(), options=Options())
    trainer.step(0.1, X, Y)
    traffic.clear()
    trainer.set_params(values())
    assert traffic.uploads == [] and not trainer.params["w"].host_stale
    assert float(trainer.forward(X, Y)) == pytest.approx(float(peer.forward(X, Y)), abs=1e-6)
    assert sorted(shape for shape, _ in traffic.uploads if len(shape) == 2) == [(2, 5), (3, 4), (5, 4)]


def test_a_checkpoint_reads_back_and_goes_on(device: Simulator, traffic: Traffic, tmp_path: Path) -> None:
    trainer, other = made(), made()
    state = trainer.init_optim(ADAMW)
    trainer.advance(ADAMW, state, X, Y)
    save(tmp_path, take_snapshot(trainer, ADAMW, state))
    resumed = restore(other, load(tmp_path), ADAMW)
    assert resumed is not None
    for each, its in ((trainer, state), (other, resumed)):
        each.advance(ADAMW, its, X, Y)
    same(trainer.get_params(), other.get_params())
    same(trainer.export_optim(ADAMW, state).slots["w"], other.export_optim(ADAMW, resumed).slots["w"])


# What is kept -------------------------------------------------------------------------------------------------------


def test_after_a_step_the_device_holds_parameters_and_moments(device: Simulator) -> None:
    trainer = made()
    state = trainer.init_optim(ADAMW)
    trainer.advance(ADAMW, state, X, Y)
    trainer.empty_cache()
    assert device.used == 3 * TRAINED + FROZEN + 4 * (device.context.watch.flag is not None)


def test_trained_values_of_before_are_given_back_and_frozen_ones_stay(device: Simulator) -> None:
    trainer = made()
    trainer.forward(X, Y)
    params, interpreter = trainer.params, trainer._interpreter
    before = {name: weakref.ref(param.mirror(interpreter).memory) for name, param in params.items()}
    trainer.step(0.1, X, Y)
    assert {name: ref() is not None for name, ref in before.items()} == {"w": False, "b": False, "frozen": True}
    assert params["frozen"].mirror(interpreter).memory is before["frozen"]()


def test_what_a_backward_pass_has_read_is_given_back_as_it_goes(device: Simulator) -> None:
    """A chain of layers keeps one activation of each, and gradients never pile up on top of them."""
    layers, rows, width = 8, 64, 4

    def deep(ops: Any, params: Any, x: Any) -> Any:
        for w in params:
            x = ops.tanh(ops.linear(w, None, x))
        return ops.sum(x)

    params = [np.eye(width) for _ in range(layers)]
    trainer = scalar_trainer(deep, params, options=CUDA)
    x = np.ones((rows, width), np.float32)
    trainer.step(0.1, x)
    device.peak = device.used
    before = device.used
    trainer.step(0.1, x)
    activation, weights = 4 * rows * width, 4 * layers * width * width
    assert (layers + 1) * activation < device.peak - before < (layers + 5) * activation + 2 * weights
    assert device.used == before


def test_constant_memory_and_a_session_that_is_reset(device: Simulator) -> None:
    session = Session(CUDA)
    params = {name: session.param(value, name=name) for name, value in values().items()}
    used = []
    for _ in range(6):
        out, _ = loss(session, {n: session.use(p) for n, p in params.items()}, session.input(X), session.nat_vec(Y))
        session.backward(out)
        session.adam_step_all(0.01)
        session.reset_tape()  # `out` lives on, and what led to it does not
        used.append(device.used)
    assert len(set(used[1:])) == 1, used


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_reset_returns_the_memory_of_refs_that_are_held(device: Simulator, backend: str) -> None:
    session = Session(CUDA.replace(backend=backend))
    w = session.param(np.ones((3, 4)))

    def step() -> list[Any]:
        x, numbers = session.input(X), session.nat_vec([0, 1])
        hidden = session.tanh(session.use(w) * x)
        rows = session.gather_rows(hidden, numbers)
        gradients = session.backward(session.sum(rows))
        assert session.get_value(rows).shape == (2, 4)
        session.sgd_step_all(0.1)
        return [x, numbers, hidden, rows, gradients, session.backward(session.sum(hidden))]

    def after(held: Any) -> int:
        session.reset_tape()
        session.empty_cache()
        gc.collect()
        return device.used

    held: Any = None
    for _ in range(2):  # the first run of a compiled program keeps what its later ones read
        held = step() and None
        dropped = after(held)
    held = step()
    assert after(held) == dropped
    assert held[2].shape == (3, 4)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_plan_fills_existing_parameters_on_the_device(traffic: Traffic, backend: str) -> None:
    module = ScalarModuleDef(values(), loss).instantiate(CUDA.replace(backend=backend))
    module.step(0.1, X, Y)
    traffic.clear()
    plan = init.Plan({"w": init.uniform(-1.0, 1.0), "b": init.zeros, "frozen": init.xavier_uniform()})
    module.set_params(plan)
    module.step(0.0, X, Y)
    assert [shape for shape, _ in traffic.uploads if shape in {(5, 4), (5,), (2, 5)}] == []  # created there
    expected = plan.materialise(values())
    for name, array in module.params().items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_training_reads_back_losses_and_whether_all_is_finite(traffic: Traffic, backend: str) -> None:
    module = ScalarModuleDef(values(), loss).instantiate(CUDA.replace(backend=backend))
    state = module.init_optim(ADAMW)
    traffic.clear()
    module.train_sgd(0.1, 2, [(X, Y)], log_every=0)
    state = module.train_with(ADAMW, state, 2, [(X, Y)], log_every=0)
    assert {math.prod(shape) for shape, _ in traffic.downloads} == {1}
    module.train_with(ADAMW, state, 1, [(X, Y)], log_every=0, require_finite=False)
    bad = {**module.params(), "w": np.full((5, 4), np.inf)}
    module.trainer.set_params(bad)
    with pytest.raises(NotFiniteError, match=r"parameter w is inf at index \(0, 0\)"):
        require_finite_values(module.trainer.unfetched())
    module.trainer.params["w"].mirror(module.trainer._interpreter)
    module.trainer.params["w"].release_mirror()
    with pytest.raises(NotFiniteError, match=r"parameter w is inf at index \(0, 0\)"):
        require_finite_values(module.trainer.unfetched())


def test_a_reset_keeps_every_mirror(device: Simulator, traffic: Traffic) -> None:
    session = Session(CUDA)
    trained, frozen = session.param(X), session.param(X, requires_grad=False)
    session.sum(session.use(trained) * session.use(frozen))
    traffic.clear()
    session.reset_tape()
    session.sum(session.use(trained) * session.use(frozen))
    assert traffic.uploads == [], "not even the number of the step, which no op reads"


def test_a_trim_forgets_what_can_be_uploaded_again(device: Simulator) -> None:
    interpreter = made()._interpreter
    before = device.used
    device.numbers(1, 2, 3)
    assert device.used == before + 12
    interpreter.empty_cache()
    assert device.used == before
    session = Session(CUDA)
    kept = session.input(X)
    device.numbers(4)
    session.empty_cache()
    assert device.used == before + X.nbytes
    same(session.get_value(kept), X)


# Steps that fail ----------------------------------------------------------------------------------------------------


def test_a_step_that_is_cut_short_anywhere_leaves_all_as_it_was(
    device: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance_stopped_anywhere(device, [made(), made()], ADAMW, (X, Y), 1, monkeypatch)


def test_a_device_without_room_says_what_was_asked_used_and_free(device: Simulator) -> None:
    refusing = advance_without_room(device, made(), ADAMW, (X, Y), range(40, 2000, 200))
    assert len(refusing - {None}) > 1, "several ops, each named"


def test_the_message_of_a_device_without_room() -> None:
    device = Simulator(limit=100)
    held = device.memory(64)
    with pytest.raises(
        OutOfMemoryError, match="40 bytes were requested on the simulated device, which has 36 free of 100; tensors"
    ):
        device.memory(40)
    assert device.used == 64
    held.free()
    assert device.memory(100).nbytes == 100


def test_room_is_made_before_it_is_refused() -> None:
    """What is kept for reuse, and what only a cycle of Python objects still holds, is given back first."""
    device = Simulator(limit=100)
    device.numbers(*range(10))
    cycle: list[Any] = [device.memory(50)]
    cycle.append(cycle)
    del cycle
    assert device.memory(100).nbytes == 100


def test_an_index_out_of_range_leaves_a_session_as_it_was(device: Simulator) -> None:
    session = Session(CUDA)
    table = session.param(np.ones((3, 2)))
    row = session.gather_rows(session.use(table), session.input(np.array([5])))
    session.backward(session.sum(row))
    with pytest.raises(RangeError, match="index 5"):
        session.sgd_step_all(0.1)
    assert table.version == 0
    same(table.value, np.ones((3, 2)))


def test_the_error_is_one_of_opstage_and_one_of_memory() -> None:
    assert issubclass(OutOfMemoryError, MemoryError) and issubclass(OutOfMemoryError, OpstageError)
