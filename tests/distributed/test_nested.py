"""Derivatives that a program takes itself: on every mesh they have the numbers that one rank with all rows has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opstage import Options, Spec, ValidationError, check_step, transform
from opstage.models import parallel
from opstage.ops.derived import all_mean
from tests.distributed.compared import assert_close, trained

X, Y = np.random.default_rng(0).normal(size=(8, 6)), np.random.default_rng(1).normal(size=(8, 6))
PARAMS = {
    "w": 0.5 * np.random.default_rng(2).normal(size=(8, 6)),
    "v": 0.5 * np.random.default_rng(3).normal(size=(6, 8)),
    "g": np.ones(6),
}


def net(ops: Any, p: Any, x: Any) -> Any:
    return ops.linear(p["v"], None, ops.tanh(ops.linear(p["w"], None, x)))


def error(ops: Any, p: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(net(ops, p, x), y)


def of_all(ops: Any, p: Any, x: Any, y: Any) -> Any:
    return all_mean(ops, error(ops, p, x, y), axis="data")


def gradients(ops: Any, f: Callable[..., Any], p: Any) -> Any:
    return dict(zip(p, transform.grad(ops, lambda ops, *leaves: f(ops, dict(zip(p, leaves))), *p.values())))


def squares(ops: Any, tree: Any) -> Any:
    return sum((ops.sum(g * g) for g in tree.values()), start=ops.full(shape=(), value=0.0))


def gradient_penalty(ops: Any, p: Any, x: Any, y: Any) -> Any:
    """Of Gulrajani et al. 2017: rows are apart, so each rank takes the gradients of its own."""
    g = transform.grad(ops, lambda ops, x: ops.sum(net(ops, p, x)), x)
    return error(ops, p, x, y) + ops.reduce_mean((ops.reduce_sum(g * g, axis=1) - 1.0) ** 2)


def gradient_norm(ops: Any, p: Any, x: Any, y: Any) -> Any:
    return of_all(ops, p, x, y) + 0.1 * squares(ops, gradients(ops, lambda ops, p: of_all(ops, p, x, y), p))


def with_decay(ops: Any, p: Any, x: Any, y: Any) -> Any:
    """An inner loss of a mean over all rows and of what all ranks have alike."""

    def inner(ops: Any, p: Any) -> Any:
        return of_all(ops, p, x, y) + 0.1 * squares(ops, p)

    return of_all(ops, p, x, y) + squares(ops, gradients(ops, inner, p))


def of_decay(ops: Any, p: Any, x: Any, y: Any) -> Any:
    return of_all(ops, p, x, y) + squares(ops, gradients(ops, squares, p))


def adapted(ops: Any, p: Any, x: Any, y: Any) -> Any:
    """Model-agnostic meta-learning (Finn et al. 2017): the loss after a step."""
    step = gradients(ops, lambda ops, p: of_all(ops, p, x, y), p)
    return of_all(ops, {name: p[name] - 0.1 * step[name] for name in p}, x, y)


def normalized(ops: Any, p: Any, x: Any, y: Any) -> Any:
    """The statistics of the batch of all ranks are differentiated too."""

    def inner(ops: Any, x: Any) -> Any:
        out, _, _ = ops.batch_norm(net(ops, p, x), p["g"], p["g"], eps=1e-5, channel_axis=1)
        return ops.all_reduce(ops.sum(ops.tanh(out)), axis="data")

    return of_all(ops, p, x + 0.01 * transform.grad(ops, inner, x), y)


def product(ops: Any, p: Any, x: Any, y: Any) -> Any:
    """A Hessian-vector product, forward over reverse."""

    def gradient(ops: Any, w: Any) -> Any:
        return transform.grad(ops, lambda ops, w: of_all(ops, {**p, "w": w}, x, y), w)

    _, moved = transform.jvp(ops, gradient, (p["w"],), (p["w"],))
    return of_all(ops, p, x, y) + ops.sum(moved * moved)


def directional(ops: Any, p: Any, x: Any, y: Any) -> Any:
    _, moved = transform.jvp(ops, lambda ops, x: net(ops, p, x), (x,), (y,))
    return error(ops, p, x, moved)


def twice(ops: Any, p: Any, x: Any, y: Any) -> Any:
    """A gradient of a gradient within a loss."""

    def inner(ops: Any, p: Any) -> Any:
        return of_all(ops, p, x, y) + 0.1 * squares(ops, gradients(ops, lambda ops, p: of_all(ops, p, x, y), p))

    return of_all(ops, p, x, y) + squares(ops, gradients(ops, inner, p))


def split(ops: Any, p: Any, x: Any, y: Any) -> Any:
    """Through layers whose weights the ranks share out."""

    def inner(ops: Any, x: Any) -> Any:
        h = ops.tanh(parallel.column_linear(ops, p["w"], None, x))
        return ops.sum(parallel.row_linear(ops, p["v"], p["g"], h) ** 2)

    g = transform.grad(ops, inner, x)
    return ops.mse_loss(net(ops, p, x), y) + ops.reduce_mean(g * g)


pytestmark = pytest.mark.filterwarnings("ignore:.*never reaches the loss")

LOSSES = (
    gradient_penalty, gradient_norm, with_decay, of_decay, adapted, normalized, product, directional, twice
)  # fmt: skip
MESHES = [(loss, mesh) for loss in LOSSES for mesh in ("data=2", "data=4")] + [
    (split, mesh) for mesh in ("model=2", "data=2,model=2")
]


def steps(loss: Callable[..., Any], params: Any = PARAMS, **options: Any) -> list[Any]:
    return trained(loss, params, X, Y, rate=0.01, **options)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize(("loss", "mesh"), MESHES, ids=lambda each: getattr(each, "__name__", each))
def test_it_has_the_numbers_of_one_rank(loss: Callable[..., Any], mesh: str, backend: str) -> None:
    assert_close(steps(loss, mesh=mesh, backend=backend), steps(loss), rtol=1e-11, atol=1e-13)


SHARDED = {
    "w": 0.1 * np.random.default_rng(2).normal(size=(200, 6)),
    "v": 0.1 * np.random.default_rng(3).normal(size=(6, 200)),
    "g": np.ones(6),  # most losses do not read it: an inner gradient of zeros, which may be summed like any
}


@pytest.mark.parametrize(("backend", "zero"), [("eager", 2), ("eager", 3), ("compiled", 2), ("compiled", 3)])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_sharded_it_has_the_numbers_of_one_rank(loss: Callable[..., Any], zero: int, backend: str) -> None:
    own = steps(loss, SHARDED, mesh="data=2", zero=zero, backend=backend)
    assert_close(own, steps(loss, SHARDED), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("loss", [gradient_penalty, directional], ids=lambda loss: loss.__name__)
def test_in_parts(loss: Callable[..., Any]) -> None:
    """With parameters that vary already, whose gradients are summed once for all parts of a batch."""
    alone = steps(loss, accumulate=2)
    assert_close(steps(loss, mesh="data=2", accumulate=2), alone, rtol=1e-11, atol=1e-13)


def of_own_rows(ops: Any, p: Any, x: Any, y: Any) -> Any:
    return of_all(ops, p, x, y) + squares(ops, gradients(ops, lambda ops, p: error(ops, p, x, y), p))


def in_a_loop(ops: Any, p: Any, x: Any, y: Any) -> Any:
    def step(ops: Any, q: Any, _: Any) -> Any:
        g = gradients(ops, lambda ops, q: of_all(ops, q, x, y), q)
        return {name: q[name] - 0.1 * g[name] for name in q}, None

    return of_all(ops, ops.scan(step, p, ops.iota(shape=(2,)))[0], x, y)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (of_own_rows, "the scalar differs between the ranks of mesh axis 'data', and its derivative"),
        (in_a_loop, "its body takes a derivative of what ranks compute together"),
    ],
    ids=["own rows", "loop"],
)
def test_what_is_no_derivative_of_one_rank_is_refused(loss: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        steps(loss, mesh="data=2")


def test_a_check_proves_it_for_every_number_of_ranks() -> None:
    for loss in LOSSES:
        for zero in (0, 2):
            report = check_step(loss, SHARDED, Spec("B 6"), Spec("B 6"), options=Options(mesh="data=N", zero=zero))
            assert report.ok, report
