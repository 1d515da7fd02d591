"""The predicted memory of a training step against what an allocator counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage import Options, Spec, optim, scalar_trainer
from opstage.models import MODELS, model
from opstage.optim import Optimizer
from opstage.training.memory import model_memory, step_memory
from tests.graph.counting_allocator import Counted
from tests.memory.measured import forget_workspace, measured_peak
from tests.searches import some

ADAMW, SGD = optim.adamw(lr=1e-3), optim.sgd(lr=1e-3)
FEW = [(name, ADAMW) for name in sorted(MODELS)] + [("mlp", SGD), ("cnn", SGD)]
ALL = [(name, optimizer) for name in sorted(MODELS) for optimizer in (ADAMW, SGD)]
WAYS = (Options(), Options(dtype="float64"), Options(fast_kernels=False))
EVERY_WAY = [(name, optimizer, options) for name, optimizer in ALL for options in WAYS]


def label(value: object) -> str:
    """A name for a case."""
    if isinstance(value, Optimizer):
        return value.name
    if isinstance(value, Options):
        return f"{value.dtype}{'' if value.fast_kernels else ', plain'}"
    return str(value)


@pytest.mark.parametrize(("name", "optimizer"), FEW, ids=label)
def test_a_step_takes_what_is_predicted(name: str, optimizer: Optimizer) -> None:
    made, sizes = model(name), {"B": 4, "T": 24} if name == "gpt" else {"B": 20}
    predicted = model_memory(made, optimizer).at(**sizes).peak
    assert predicted == pytest.approx(measured_peak(made, sizes, optimizer, Options()), rel=0.01)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("name", "optimizer", "options"), some(EVERY_WAY), ids=label)
def test_a_large_step_takes_what_is_predicted(name: str, optimizer: Optimizer, options: Options) -> None:
    made, sizes = model(name), {"B": 48, "T": 128} if name == "gpt" else {"B": 256}
    predicted = model_memory(made, optimizer, options).at(**sizes).peak
    assert predicted == pytest.approx(measured_peak(made, sizes, optimizer, options), rel=0.02)


def predicted_and_counted(loss: Any, **given: Any) -> tuple[Any, int]:
    """The memory that is predicted, and the peak in a loop of one's own."""
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    x = rng.standard_normal((64, 300)).astype(np.float32)
    trainer = scalar_trainer(loss, params, **given)
    trainer.step_with(ADAMW, trainer.init_optim(ADAMW), x)  # machine code is made
    del trainer
    forget_workspace()
    with Counted() as count:
        trainer, batch = scalar_trainer(loss, params, **given), np.array(x)
        state = trainer.init_optim(ADAMW)
        for _ in range(3):
            state = trainer.step_with(ADAMW, state, batch)
        peak = count.peak
    return step_memory(loss, params, Spec("B 300"), optimizer=ADAMW, **given).at(B=64), peak


def test_clipping_and_frozen_parameters_count() -> None:
    flags = {"a": True, "b": False, "c": True}
    given: Any = {"options": Options(validate=False), "requires_grad": flags, "clip": optim.clip.by_global_norm(1.0)}
    said, peak = predicted_and_counted(deep, **given)
    assert said.peak == pytest.approx(peak, rel=0.01)
    assert said.optimizer == pytest.approx(2 * 4 * (400 * 300 + 10 * 500), abs=64)


def _activated(ops: Any, params: Any, x: Any) -> Any:
    """Activations with a rule of several ops, and with none of their own."""
    names: list[tuple[str, dict[str, Any]]] = [("hardswish", {}), ("elu", {"alpha": 1.0}), ("mish", {})]
    for weight, (name, static) in zip(SHAPES, names):
        x = getattr(ops, name)(ops.linear(params[weight], None, x), **static)
    return ops.reduce_mean(ops.abs(x))


def _looped(ops: Any, params: Any, x: Any) -> Any:
    """A loop whose ops between two products are one."""

    def body(ops: Any, h: Any, at: Any) -> Any:
        h = ops.tanh(ops.add(ops.linear(params["a"], None, at), ops.scale(h, c=0.5)))
        return ops.mul(h, ops.sigmoid(h)), h

    rows = ops.broadcast_to(ops.unsqueeze(x, axis=0), shape=(20, *x.shape))
    h, ys = ops.scan(body, ops.full(shape=(x.shape[0], 400), value=0.0), rows)
    y = ops.linear(params["c"], None, ops.linear(params["b"], None, h))
    return ops.add(ops.reduce_mean(ops.mul(y, y)), ops.reduce_mean(ys))


@pytest.mark.parametrize("loss", [_activated, _looped])
def test_ops_that_are_computed_as_one_count_as_one(loss: Any) -> None:
    said, peak = predicted_and_counted(loss, options=Options(validate=False))
    assert said.peak == pytest.approx(peak, rel=0.01)


SHAPES = {"a": (400, 300), "b": (500, 400), "c": (10, 500)}


def deep(ops: Any, params: Any, x: Any) -> Any:
    for name in SHAPES:
        x = ops.tanh(ops.linear(params[name], None, x))
    return ops.reduce_mean(ops.mul(x, x))


# Compiled steps -------------------------------------------------------------------------------------------------------


COMPILED = Options(backend="compiled")


@pytest.mark.parametrize(("name", "optimizer"), [("mlp", ADAMW), ("pinn", SGD), ("lstm", ADAMW)], ids=label)
def test_a_compiled_step_takes_what_is_planned(name: str, optimizer: Optimizer) -> None:
    made, sizes = model(name), {"B": 20}
    predicted = model_memory(made, optimizer, COMPILED).at(**sizes).peak
    assert predicted == pytest.approx(measured_peak(made, sizes, optimizer, COMPILED), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "optimizer"), ALL, ids=label)
def test_a_large_compiled_step_takes_what_is_planned(name: str, optimizer: Optimizer) -> None:
    made, sizes = model(name), {"B": 48, "T": 128} if name == "gpt" else {"B": 256}
    predicted = model_memory(made, optimizer, COMPILED).at(**sizes).peak
    assert predicted == pytest.approx(measured_peak(made, sizes, optimizer, COMPILED), rel=0.01)


def test_every_model_is_measured() -> None:
    assert {name for name, _ in ALL} == set(MODELS)
