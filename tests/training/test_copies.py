"""Copied and pickled trainers go on to the same bits, and share nothing but what a shallow copy shares."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Aux, Options, Param, ScalarTrainer, ShapeError, Spec
from opstage.ops.derived import all_mean, dropout
from opstage.optim import clip

X, Y = np.random.default_rng(1).normal(size=(8, 6)), np.random.default_rng(2).normal(size=(8, 6))
COPIES: dict[str, Callable[[Any], Any]] = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}
OPTIONS = {
    "eager": Options(),
    "compiled": Options(backend="compiled"),
    "parts": Options(mesh="data=2", zero=2),
    "gathered": Options(backend="compiled", mesh="data=2", zero=3),
}


def loss(ops: Any, params: Any, state: Any, x: Any, y: Any, *, train: bool = True) -> Any:
    h = dropout(ops, ops.relu(x @ params["w"] + params["b"]), 0.25, train)
    out = h @ ops.transpose2d(params["tied"]) * params["fixed"]
    mean = all_mean(ops, ops.reduce_mean(out), axis="data")
    return ops.mse_loss(out, y), Aux(state={"mean": 0.9 * state["mean"] + 0.1 * ops.detach(mean)})


def trainer(options: Options) -> ScalarTrainer:
    rng = np.random.default_rng(0)
    w = Param(rng.normal(size=(6, 6)), dtype="float32")
    params = {"w": w, "tied": w, "b": np.zeros(6), "fixed": Param(np.full(6, 2.0, np.float32), requires_grad=False)}
    state = {"mean": np.float32(0)}
    return opstage.scalar_trainer(
        loss,
        params,
        Spec("B 6"),
        Spec("B 6"),
        options=options,
        state=state,
        clip=clip.by_global_norm(1.0),
        gradient_norm=True,
    )


def steps(t: ScalarTrainer, count: int = 3) -> list[Any]:
    losses = [t.adam_step(0.01, 0.9, 0.999, 1e-8, X, Y) for _ in range(count)]
    return [*losses, *t.get_params().values(), t.state["mean"], t.steps_taken]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_goes_on_to_the_same_bits_and_shares_nothing(how: str, name: str) -> None:
    t = trainer(OPTIONS[name])
    steps(t)
    other = COPIES[how](t)
    before = steps(other, 0)
    own = steps(t)
    assert all(map(np.array_equal, before, steps(other, 0)))  # the original's steps did not move it
    assert all(map(np.array_equal, own, steps(other)))
    assert all(map(np.array_equal, own[3:], steps(t, 0)))
    assert other.params["w"] is other.params["tied"] and not other.params["fixed"].requires_grad


def test_a_copy_keeps_the_contract_of_its_batches() -> None:
    with pytest.raises(ShapeError, match="wants 6"):
        copy.deepcopy(trainer(Options())).adam_step(0.01, 0.9, 0.999, 1e-8, X[:, :5], Y)


@pytest.mark.parametrize("how", COPIES)
def test_trainers_of_the_same_parameters_are_copied_as_such(how: str) -> None:
    param = Param(np.ones(6, np.float32))
    a, b = (opstage.scalar_trainer(_squares, {"w": param}) for _ in range(2))
    one, other = COPIES[how]((a, b))
    one.step(0.1, X)
    assert one.params["w"] is other.params["w"] is not param
    assert np.array_equal(one.get_params()["w"], other.get_params()["w"])
    assert np.array_equal(param.value, np.ones(6))


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_shallow_copy_trains_the_same_parameters_with_moments_of_its_own(backend: str) -> None:
    t = trainer(OPTIONS[backend])
    steps(t)
    other, params = copy.copy(t), t.get_params()
    expected = copy.deepcopy(other)
    steps(t)  # in the memory of its moments
    assert t.params["w"] is other.params["w"]
    assert not np.array_equal(other.get_params()["w"], params["w"])
    other.set_params(params)
    assert all(map(np.array_equal, steps(other), steps(expected)))


def _squares(ops: Any, params: Any, x: Any) -> Any:
    return ops.reduce_mean((x * params["w"]) ** 2)
