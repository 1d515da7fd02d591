"""Draws for the rows of a batch: those of the whole batch on every mesh, or refused where ranks would draw the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, ValidationError, check_step
from opstage.ops.derived import all_mean, dropout

X, Y = np.random.default_rng(0).normal(size=(8, 6)), np.random.default_rng(1).normal(size=(8, 6))
W = {"w": np.random.default_rng(2).normal(size=(6, 6))}


def net(ops: Any, params: Any, x: Any) -> Any:
    return ops.tanh(x @ params["w"])


def noisy_rows(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(net(ops, params, x + 0.1 * ops.rand_normal(shape=x.shape)), y)


def noisy_images(ops: Any, params: Any, x: Any, y: Any) -> Any:
    noise = ops.reshape(ops.rand_uniform(shape=(2 * x.shape[0], 3)), shape=x.shape)
    return ops.mse_loss(net(ops, params, x), y + noise)


def noisy_steps(ops: Any, params: Any, x: Any, y: Any) -> Any:
    def step(ops: Any, h: Any, _: Any) -> Any:
        return net(ops, params, h) + ops.rand_normal(shape=h.shape), None

    return ops.mse_loss(ops.scan(step, x, ops.iota(shape=(3,)))[0], y)


def masked(ops: Any, params: Any, x: Any, y: Any) -> Any:
    keep = ops.bernoulli_mask(ops.full(shape=(), value=0.5), shape=(x.shape[0],))
    return ops.reduce_mean(keep * ops.reduce_mean((net(ops, params, x) - y) ** 2, axis=1))


def summed_by_hand(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return all_mean(ops, noisy_rows(ops, params, x, y), axis="data")


def said(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(net(ops, params, x + 0.1 * ops.rand_normal(shape=x.shape, like=x)), y)


def said_of_another(ops: Any, params: Any, x: Any, y: Any) -> Any:
    h = net(ops, params, x)

    def step(ops: Any, h: Any, _: Any) -> Any:
        return h + 0.1 * ops.rand_normal(shape=h.shape, like=y), None

    return ops.mse_loss(ops.scan(step, h, ops.iota(shape=(3,)))[0], y)


def of_columns(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(net(ops, params, x + 0.1 * ops.rand_normal(shape=(6,))), y)


def of_weights(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(net(ops, {"w": dropout(ops, params["w"], 0.25, True)}, x), y)


def said_and_summed(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return all_mean(ops, said(ops, params, x, y), axis="data")


def of_a_known_size(ops: Any, params: Any, x: Any, y: Any) -> Any:
    if x.shape[0] not in (2, 4, 8):
        raise ValueError(x.shape)
    return said_and_summed(ops, params, x, y)


def steps(loss: Callable[..., Any], mesh: str, backend: str) -> list[Any]:
    trainer = opstage.scalar_trainer(loss, W, options=Options(mesh=mesh, backend=backend, dtype="float64"))
    return [*[trainer.step(0.1, X, Y) for _ in range(2)], trainer.get_params()["w"]]


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("loss", [noisy_rows, noisy_images, noisy_steps, masked, summed_by_hand])
def test_what_all_ranks_would_draw_alike_is_refused(loss: Callable[..., Any], backend: str) -> None:
    steps(loss, "", backend)
    with pytest.raises(
        ValidationError, match=r"a draw at .*test_draws\.py:\d+ is for the rows of a batch but has no like="
    ):
        steps(loss, "data=2", backend)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("loss", [said, said_of_another, of_columns, of_weights, said_and_summed, of_a_known_size])
def test_others_are_those_of_one_rank(loss: Callable[..., Any], backend: str) -> None:
    alone = steps(loss, "", "eager")
    for mesh in ("data=2", "data=4"):
        for own, one in zip(steps(loss, mesh, backend), alone, strict=True):
            np.testing.assert_allclose(own, one, rtol=1e-12, atol=1e-14)


def test_a_check_says_so_for_every_number_of_ranks() -> None:
    for loss, found in ((noisy_rows, True), (said, False)):
        report = check_step(loss, W, Spec("B 6"), Spec("B 6"), options=Options(mesh="data=N"))
        assert any("has no like=" in str(finding) for finding in report.findings) == found
