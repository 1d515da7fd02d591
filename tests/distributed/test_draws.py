"""Draws for the rows of a batch: those of the whole batch on every mesh, or refused where ranks would draw the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from opstage import Options, Spec, ValidationError, check_step
from opstage.ops.derived import all_mean, dropout
from tests.distributed.compared import assert_close, trained

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


def steps(loss: Callable[..., Any], mesh: str = "", backend: str = "eager") -> list[Any]:
    return trained(loss, W, X, Y, mesh=mesh, backend=backend)


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
    alone = steps(loss)
    for mesh in ("data=2", "data=4"):
        assert_close(steps(loss, mesh, backend), alone, rtol=1e-12, atol=1e-14)


def noise(
    shape: Callable[[Any], Any], laid: Callable[[Any, Any, Any], Any], ops: Any, params: Any, x: Any, y: Any
) -> Any:
    """A loss of noise of this shape, laid out as x is."""
    drawn = ops.rand_normal(shape=shape(x), like=x)
    return ops.mse_loss(net(ops, params, x + laid(ops, drawn, x)), y)


def spread(ops: Any, drawn: Any, x: Any) -> Any:
    return ops.broadcast_to(drawn, shape=x.shape)


ROWS_FIRST = {
    "flat": partial(noise, lambda x: (6 * x.shape[0],), lambda ops, n, x: ops.reshape(n, shape=x.shape)),
    "merged": partial(noise, lambda x: (2 * x.shape[0], 3), lambda ops, n, x: ops.reshape(n, shape=x.shape)),
    "split": partial(noise, lambda x: (x.shape[0], 2, 3), lambda ops, n, x: ops.reshape(n, shape=x.shape)),
    "behind one": partial(noise, lambda x: (1, x.shape[0]), lambda ops, n, x: spread(ops, ops.transpose2d(n), x)),
    "of a column": partial(noise, lambda x: (x.shape[0], 1), spread),
}
ROWS_ELSEWHERE = {
    "transposed": partial(noise, lambda x: (6, x.shape[0]), lambda ops, n, x: ops.transpose2d(n)),
    "in the middle": partial(
        noise,
        lambda x: (2, x.shape[0], 3),
        lambda ops, n, x: ops.reshape(ops.permute(n, axes=(1, 0, 2)), shape=x.shape),
    ),
    "merged, transposed": partial(
        noise, lambda x: (6 * x.shape[0],), lambda ops, n, x: ops.transpose2d(ops.reshape(n, shape=(6, x.shape[0])))
    ),
    "one more": partial(
        noise, lambda x: (x.shape[0] + 1, 6), lambda ops, n, x: ops.slice(n, axis=0, start=1, length=x.shape[0])
    ),
    "twice": partial(
        noise,
        lambda x: (x.shape[0], x.shape[0]),
        lambda ops, n, x: spread(ops, ops.reduce_mean(n, axis=1, keepdims=True), x),
    ),
    "none": partial(noise, lambda x: (6,), spread),
    "one number": partial(noise, lambda x: (1, 1), spread),
}


def time_major(ops: Any, params: Any, x: Any, y: Any) -> Any:
    def step(ops: Any, h: Any, _: Any) -> Any:
        return h + ops.rand_normal(shape=h.shape, like=h), None

    h = ops.transpose2d(x @ params["w"])
    return ops.mse_loss(ops.transpose2d(ops.scan(step, h, ops.iota(shape=(3,)))[0]), y)


def like_a_weight(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(net(ops, params, x + ops.rand_normal(shape=x.shape, like=params["w"])), y)


def summed(loss: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ops, params, x, y: all_mean(ops, loss(ops, params, x, y), axis="data")


@pytest.mark.parametrize("loss", ROWS_FIRST.values(), ids=ROWS_FIRST)
def test_rows_that_come_first_are_those_of_one_rank(loss: Callable[..., Any]) -> None:
    alone = steps(loss)
    for mesh, backend in (("data=2", "eager"), ("data=4", "compiled")):
        assert_close(steps(loss, mesh, backend), alone, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "loss", [*ROWS_ELSEWHERE.values(), time_major, like_a_weight], ids=[*ROWS_ELSEWHERE, "in a loop", "of a weight"]
)
def test_rows_that_do_not_come_first_are_refused(loss: Callable[..., Any]) -> None:
    steps(loss)
    with pytest.raises(ValidationError, match=r"a draw at .*test_draws|cannot be sharded"):
        steps(loss, "data=2")
    if loss is not ROWS_ELSEWHERE["merged, transposed"]:  # of which a loss that is summed by hand needs no proof
        with pytest.raises(ValidationError, match=r"a draw at .*test_draws\.py:\d+ (has like= with|is for) the rows"):
            steps(summed(loss), "data=2")


def test_a_check_says_so_for_every_number_of_ranks() -> None:
    for loss, found in ((noisy_rows, True), (said, False)):
        report = check_step(loss, W, Spec("B 6"), Spec("B 6"), options=Options(mesh="data=N"))
        assert any("has no like=" in str(finding) for finding in report.findings) == found
