"""Derivative rules of users: on a mesh and in parts they give the numbers of one rank, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import OpstageError, Options, Spec, check_step
from opstage.training.accumulate import Accumulate

RNG = np.random.default_rng(0)
W, X, Y = {"w": RNG.standard_normal((3, 2))}, RNG.standard_normal((8, 3)), RNG.standard_normal((8, 2))

Rule = Callable[[Any, Any, Any], Any]


def same(ops: Any, x: Any) -> Any:
    return ops.scale(x, c=1.0)


def linear(ops: Any, w: Any, x: Any) -> Any:
    return ops.matmul(x, w)


def error(ops: Any, x: Any, y: Any) -> Any:
    return ops.reduce_mean((x - y) * (x - y))


def total(ops: Any, x: Any, y: Any) -> Any:
    return ops.sum((x - y) * (x - y))


def spread(ops: Any, x: Any, like: Any) -> Any:
    return ops.broadcast_to(x, shape=like.shape)


def norm(ops: Any, g: Any, **how: Any) -> Any:
    return ops.sqrt(ops.reduce_sum(g * g, **how) + 1e-12)


def shortened(ops: Any, g: Any, length: Any) -> Any:
    factor = ops.minimum(ops.full(shape=length.shape, value=1.0), 0.01 * ops.inv(length))
    return g * spread(ops, factor, g)


def of_weights(ops: Any, inputs: Any, g: Any) -> Any:
    return ops.matmul(ops.transpose2d(inputs[1]), g)


def of_rows(ops: Any, inputs: Any, g: Any) -> Any:
    return ops.matmul(g, ops.transpose2d(inputs[0]))


def halves(ops: Any, g: Any) -> Any:
    half = g.shape[0] // 2
    parts = [ops.slice(g, axis=0, start=start, length=half) for start in (half, 0)]
    return ops.concat(parts, axis=0)


BY_ROW: dict[str, tuple[Callable[..., Any], Rule]] = {
    "reversed": (same, lambda ops, inputs, g: -g),
    "by a function of the row": (same, lambda ops, inputs, g: g * ops.tanh(inputs[0])),
    "centred in a row": (same, lambda ops, inputs, g: g - spread(ops, ops.reduce_mean(g, axis=1, keepdims=True), g)),
    "of a product": (linear, lambda ops, inputs, g: (of_weights(ops, inputs, g), of_rows(ops, inputs, g))),
    "of a product, twice": (linear, lambda ops, inputs, g: (2.0 * of_weights(ops, inputs, g), of_rows(ops, inputs, g))),
    "of weights that stay": (linear, lambda ops, inputs, g: (None, of_rows(ops, inputs, g))),
}
NONLINEAR: dict[str, tuple[Callable[..., Any], Rule]] = {
    "clipped by element": (same, lambda ops, inputs, g: ops.clamp(g, lo=-0.01, hi=0.01)),
    "clipped by row": (same, lambda ops, inputs, g: shortened(ops, g, norm(ops, g, axis=1, keepdims=True))),
    "signs": (same, lambda ops, inputs, g: ops.tanh(100.0 * g)),
}
MIXING: dict[str, tuple[Callable[..., Any], Rule]] = {
    "centred": (same, lambda ops, inputs, g: g - spread(ops, ops.reduce_mean(g, axis=0), g)),
    "centred by the operand": (same, lambda ops, inputs, g: g - spread(ops, ops.reduce_mean(inputs[0], axis=0), g)),
    "normalized": (same, lambda ops, inputs, g: g / spread(ops, norm(ops, g, axis=(0, 1)), g)),
    "clipped by the norm of the batch": (same, lambda ops, inputs, g: shortened(ops, g, norm(ops, g, axis=(0, 1)))),
    "times the number of rows": (same, lambda ops, inputs, g: ops.scale(g, c=g.shape[0])),
    "divided by the number of rows": (same, lambda ops, inputs, g: ops.scale(g, c=1 / g.shape[0])),
    "a Python number of rows": (same, lambda ops, inputs, g: ops.scale(g, c=float(g.shape[0]))),
    "of other rows": (same, lambda ops, inputs, g: halves(ops, g)),
    "a cumulative sum": (same, lambda ops, inputs, g: ops.cumsum(g, axis=0)),
    "normalized weights": (
        linear,
        lambda ops, inputs, g: (
            of_weights(ops, inputs, g) / spread(ops, norm(ops, of_weights(ops, inputs, g), axis=(0, 1)), inputs[0]),
            of_rows(ops, inputs, g),
        ),
    ),
    "a mean for weights": (
        linear,
        lambda ops, inputs, g: (ops.scale(of_weights(ops, inputs, g), c=1 / g.shape[0]), of_rows(ops, inputs, g)),
    ),
    "a constant for weights": (
        linear,
        lambda ops, inputs, g: (ops.full(shape=inputs[0].shape, value=1.0), of_rows(ops, inputs, g)),
    ),
}


def loss_of(f: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
    op = opstage.custom_vjp(f)
    op.defvjp(lambda ops, inputs, outputs, cotangents: rule(ops, inputs, cotangents[0]))

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        out = op(ops, ops.matmul(x, params["w"])) if f is same else op(ops, params["w"], x)
        return error(ops, out, y)

    return loss


def trained(loss: Callable[..., Any], **how: Any) -> Any:
    trainer = opstage.scalar_trainer(loss, W, options=Options(dtype="float64", **how))
    for _ in range(2):
        trainer.step(0.1, X, Y)
    return trainer.get_params()["w"]


def checked(loss: Callable[..., Any]) -> Any:
    return check_step(loss, W, Spec("B 3", where=("B % 4 == 0",)), Spec("B 2"), options=Options(mesh="data=N"))


@pytest.mark.parametrize("name", [*BY_ROW, *NONLINEAR])
def test_a_rule_by_row_has_the_numbers_of_one_rank(name: str) -> None:
    loss = loss_of(*{**BY_ROW, **NONLINEAR}[name])
    one = trained(loss)
    for how in ({"mesh": "data=2"}, {"mesh": "data=4", "zero": 2}, {"mesh": "data=2", "backend": "compiled"}):
        np.testing.assert_allclose(trained(loss, **how), one, rtol=1e-12, atol=1e-14)
    assert checked(loss).ok
    if name in NONLINEAR:
        with pytest.raises(OpstageError, match="accumulate: the derivative rule of same is not linear"):
            trained(loss, accumulate=2)
    else:
        np.testing.assert_allclose(trained(loss, accumulate=2), one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", MIXING)
def test_a_rule_that_mixes_rows_is_refused(name: str) -> None:
    loss = loss_of(*MIXING[name])
    trained(loss)
    with pytest.raises(OpstageError, match=r"ops\.(same|linear) at .*, whose derivative rule is not proved to take"):
        trained(loss, mesh="data=2")
    for how in ({"accumulate": 2}, {"mesh": "data=2", "accumulate": 2}):
        with pytest.raises(OpstageError, match=r"(accumulate: the|, whose) derivative rule"):
            trained(loss, **how)
    assert not checked(loss).ok


@pytest.mark.parametrize("loop", [False, True])
def test_a_rule_in_a_loop_is_seen(loop: bool) -> None:
    for rule, right in ((lambda ops, inputs, g: -g, True), (MIXING["centred"][1], False)):
        op = opstage.custom_vjp(same)
        op.defvjp(lambda ops, inputs, outputs, cotangents, rule=rule: rule(ops, inputs, cotangents[0]))

        def step(ops: Any, h: Any, _: Any, op: Any = op) -> Any:
            return op(ops, ops.tanh(h)), None

        def loss(ops: Any, params: Any, x: Any, y: Any, step: Any = step) -> Any:
            h = ops.matmul(x, params["w"])
            h = ops.scan(step, h, None, length=2)[0] if loop else step(ops, h, None)[0]
            return error(ops, h, y)

        if right:
            np.testing.assert_allclose(trained(loss, mesh="data=2"), trained(loss), rtol=1e-12)
        else:
            with pytest.raises(OpstageError, match=r"derivative rule is not proved|ops\.scan at"):
                trained(loss, mesh="data=2")


def test_sums_may_be_scaled_by_a_rule_and_means_of_one_are_refused() -> None:
    tripled = opstage.custom_vjp(same)
    tripled.defvjp(lambda ops, inputs, outputs, cotangents: ops.scale(cotangents[0], c=3.0))

    def scaled(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return tripled(ops, error(ops, ops.matmul(x, params["w"]), y))

    np.testing.assert_allclose(trained(scaled, mesh="data=2"), trained(scaled), rtol=1e-12)
    bent = opstage.custom_vjp(same)
    bent.defvjp(lambda ops, inputs, outputs, cotangents: ops.clamp(cotangents[0], lo=-0.5, hi=0.5))

    def clipped(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return bent(ops, error(ops, ops.matmul(x, params["w"]), y))

    fused = opstage.custom_vjp(error)

    @fused.defvjp
    def _(ops: Any, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        g = (inputs[0] - inputs[1]) * spread(ops, cotangents[0], inputs[0])  # for a mean without its divisor
        return g, -g

    def decayed(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return error(ops, ops.matmul(x, params["w"]), y) + bent(ops, ops.sum(params["w"] * params["w"]))

    for loss in (clipped, decayed):
        with pytest.raises(OpstageError, match="derivative rule"):
            trained(loss, mesh="data=2")

    def meant(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return fused(ops, ops.matmul(x, params["w"]), y)

    np.testing.assert_allclose(trained(meant, mesh="data=2"), trained(meant), rtol=1e-12)


def test_a_sum_with_a_rule_of_its_own_is_one() -> None:
    summed = opstage.custom_vjp(total)

    @summed.defvjp
    def _(ops: Any, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        g = 2.0 * (inputs[0] - inputs[1]) * spread(ops, cotangents[0], inputs[0])
        return g, -g

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return summed(ops, ops.matmul(x, params["w"]), y)

    def after(**how: Any) -> Any:
        trainer = opstage.scalar_trainer(loss, W, options=Options(dtype="float64", **how))
        trainer.step(0.01, X, Y)
        return trainer.get_params()["w"]

    np.testing.assert_allclose(after(mesh="data=2"), after(), rtol=1e-12)


def test_without_the_check_parts_have_their_own() -> None:
    trainer = opstage.scalar_trainer(
        loss_of(*MIXING["centred"]), W, accumulate=Accumulate(2, check=False), options=Options(dtype="float64")
    )
    trainer.step(0.1, X, Y)
