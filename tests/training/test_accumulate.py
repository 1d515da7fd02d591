"""Batches that are computed in parts: the gradient of the whole batch, and where that cannot be, an error."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Aux, Options, UsageError, optim, scalar_trainer
from opstage.ops.derived import dropout, weighted_cross_entropy
from opstage.training.accumulate import Accumulate

OPTIMIZERS = {"adamw": optim.adamw(0.05), "muon": optim.muon(0.05, others=optim.adamw(0.05))}
OPTIMIZERS["groups"] = optim.grouped(optim.momentum(0.1), {"b": {"lr": 0.5}})
rng = np.random.default_rng(3)
START = {"w": rng.standard_normal((3, 4)), "b": rng.standard_normal(3)}
X, Y = rng.standard_normal((10, 4)), rng.standard_normal((10, 3))
COUNTED = np.array([1, 0, 0, 1, 1, 1, 0, 1, 1, 0])


def hidden(ops: Any, params: Any, x: Any) -> Any:
    return ops.tanh(ops.linear(params["w"], params["b"], x))


def mean(ops: Any, params: Any, x: Any, y: Any) -> Any:
    h = hidden(ops, params, x)
    return ops.mse_loss(h, y), Aux(
        metrics={"mean": ops.reduce_mean(h), "rows": ops.full(shape=(), value=x.shape[0], dtype="int64")}
    )


def total(ops: Any, params: Any, x: Any, y: Any) -> Any:
    d = ops.sub(hidden(ops, params, x), y)
    return ops.sum(ops.mul(d, d))


def counting(divisor: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The mean over the rows that count, as a cross-entropy with ignored targets is, by a function of their number."""

    def loss(ops: Any, params: Any, x: Any, y: Any, counted: Any) -> Any:
        d = ops.sub(hidden(ops, params, x), y)
        weight = ops.cast(counted, dtype="float64")
        count, each = ops.sum(weight), ops.reduce_sum(ops.mul(d, d), axis=1)
        return ops.div(ops.sum(ops.mul(each, weight)), divisor(ops, count)), Aux(metrics={"count": count})

    return loss


masked = counting(lambda ops, count: count)
clamped = counting(lambda ops, count: ops.maximum(count, ops.full(shape=(), value=1.0)))
LABELS = np.array([2, 1, 0, 1, -100, 2, -100, -100, -100, -100])


def ignoring(ops: Any, params: Any, x: Any, labels: Any) -> Any:
    return ops.cross_entropy(hidden(ops, params, x), labels)


def weighted(ops: Any, params: Any, x: Any, labels: Any) -> Any:
    """Classes count 1, 5 and 0.25 times, and some rows not at all."""
    return weighted_cross_entropy(ops, hidden(ops, params, x), labels, ops.const(np.array([1.0, 5.0, 0.25])))


def penalised(ops: Any, params: Any, x: Any, y: Any) -> Any:
    h = hidden(ops, params, x)
    return ops.add(ops.mse_loss(h, y), ops.scale(ops.sum(ops.mul(params["w"], params["w"])), c=0.1))


def recurrent(ops: Any, params: Any, x: Any, labels: Any) -> Any:
    """Four steps of a loop over the columns of x, each row by itself; targets of some rows are ignored."""

    def step(inner: Any, h: Any, column: Any) -> Any:
        spread = inner.broadcast_to(inner.reshape(column, shape=(column.shape[0], 1)), shape=h.shape)
        return inner.tanh(inner.add(h, spread)), None

    h, _ = ops.scan(step, hidden(ops, params, x), ops.permute(x, axes=(1, 0)))
    return ops.cross_entropy(h, labels)


def attended(ops: Any, params: Any, x: Any, labels: Any) -> Any:
    """Every row a sequence of five tokens of width 4, attended to and pooled."""
    seen = ops.reshape(x, shape=(x.shape[0], 1, 5, 4))
    mixed = ops.reshape(ops.scaled_dot_product_attention(seen, seen, seen), shape=(x.shape[0], 5, 4))
    return ops.cross_entropy(ops.linear(params["w"], params["b"], ops.reduce_max(mixed, axis=1)), labels)


def convolved(ops: Any, params: Any, x: Any, y: Any) -> Any:
    """Rows as images of 1×2×2, convolved with kernels made of w."""
    images = ops.reshape(x, shape=(x.shape[0], 1, 2, 2))
    kernel = ops.reshape(params["w"], shape=(3, 1, 2, 2))
    return ops.mse_loss(ops.tanh(ops.reshape(ops.conv(kernel, None, images), shape=(x.shape[0], 3))), y)


def trained(loss: Any, batch: Any, accumulate: Any, backend: Any, optimizer: Any, steps: int = 4, **how: Any) -> Any:
    options = Options(dtype="float64", backend=backend)
    trainer = scalar_trainer(loss, START, options=options, accumulate=accumulate, **how)
    state, losses = trainer.init_optim(optimizer), []
    for _ in range(steps):
        losses.append(trainer.advance(optimizer, state, *batch).loss)
    slots = [slot for each in state.slots for slot in each]
    return [*trainer.get_params().values(), *slots, np.array(losses)], trainer


CASES: dict[str, tuple[Any, Any, Any]] = {
    "mean": (mean, (X, Y), lambda parts: parts),
    "sum": (total, (X, Y), lambda parts: Accumulate(parts, by="sum")),
    "counted": (masked, (X, Y, COUNTED), lambda parts: Accumulate(parts, by="count")),
    "counted, read from the loss": (masked, (X, Y, COUNTED), lambda parts: parts),
    "ignored": (ignoring, (X, LABELS), lambda parts: parts),
    "weighted": (weighted, (X, LABELS), lambda parts: parts),
    "guarded": (clamped, (X, Y, COUNTED), lambda parts: parts),
    "guarded, by a metric": (clamped, (X, Y, COUNTED), lambda parts: Accumulate(parts, by="count")),
    "penalised": (penalised, (X, Y), lambda parts: parts),
    "recurrent": (recurrent, (X, LABELS), lambda parts: parts),
    "attended": (attended, (np.tile(X, 5) + rng.standard_normal((10, 20)), LABELS), lambda parts: parts),
    "convolved": (convolved, (X, Y), lambda parts: parts),
}


@cache
def of_the_whole(case: str, backend: str) -> Any:
    """What training on the batch as a whole gives, which any number of parts is held to."""
    loss, batch, _ = CASES[case]
    return trained(loss, batch, 1, backend, OPTIMIZERS["adamw"])[0]


@pytest.mark.parametrize(
    ("backend", "parts"),
    [
        pytest.param(backend, parts, marks=() if parts in quick else pytest.mark.slow)
        for backend, quick in {"eager": (3, 10, 64), "compiled": (3,)}.items()
        for parts in (2, 3, 4, 10, 64)
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_the_step_is_that_of_the_whole_batch(case: str, backend: str, parts: int) -> None:
    loss, batch, make = CASES[case]
    found, _ = trained(loss, batch, make(parts), backend, OPTIMIZERS["adamw"])
    for a, b in zip(found, of_the_whole(case, backend), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_targets_that_only_later_batches_ignore() -> None:
    """What the first batch cannot show: the same numbers as with whole batches."""
    full, steps = np.where(LABELS < 0, 1, LABELS), [optim.sgd(0.5)] * 3
    cases = (ignoring, (X,), full, LABELS), (weighted, (X,), full, LABELS), (clamped, (X, Y), np.ones(10), COUNTED)
    for loss, rows, first, last in cases:
        found = []
        for parts in (1, 3):
            trainer = scalar_trainer(loss, START, options=Options(dtype="float64"), accumulate=parts)
            state = trainer.init_optim(steps[0])
            for optimizer, targets in zip(steps, (first, first, last)):
                trainer.advance(optimizer, state, *rows, targets)
            found.append(trainer.get_params()["w"])
        np.testing.assert_allclose(found[1], found[0], rtol=1e-12)


def test_rows_that_meet_where_the_first_step_does_not_show_it() -> None:
    """With a head of zeros every loss is alike, however rows meet before it: it is refused all the same."""
    trainer = scalar_trainer(headed, {**START, "head": np.zeros(3)}, options=Options(dtype="float64"), accumulate=2)
    with pytest.raises(UsageError, match="whether the loss of a batch follows from that of its parts is not known"):
        trainer.advance(optim.sgd(0.5), trainer.init_optim(optim.sgd(0.5)), X)


def headed(ops: Any, params: Any, x: Any) -> Any:
    h = hidden(ops, params, x)
    h = ops.sub(h, ops.broadcast_to(ops.reduce_max(h, axis=0), shape=h.shape))
    return ops.reduce_mean(ops.exp(ops.mul(h, ops.broadcast_to(params["head"], shape=h.shape))))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_and_clipping_act_on_the_whole_gradient(name: str) -> None:
    how: dict[str, Any] = {"clip": optim.clip.by_global_norm(0.05)}
    whole, _ = trained(mean, (X, Y), 1, "eager", OPTIMIZERS[name], **how)
    found, _ = trained(mean, (X, Y), 4, "eager", OPTIMIZERS[name], **how)
    for a, b in zip(found, whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def test_metrics_are_joined_as_the_loss_is_and_counts_are_added() -> None:
    _, trainer = trained(mean, (X, Y), 4, "eager", OPTIMIZERS["adamw"], steps=1)
    assert trainer.last_metrics["rows"] == 10
    expected = np.tanh(X @ START["w"].T + START["b"]).mean()
    np.testing.assert_allclose(trainer.last_metrics["mean"], expected, rtol=1e-12)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_parts_share_no_random_bits_and_know_the_step(backend: Any) -> None:
    """Of rows that are alike each part draws anew, the same in every run; what a program reads as the step is that."""

    def masks(ops: Any, params: Any, x: Any, *, train: bool = False) -> Any:
        kept = dropout(ops, ops.mul(x, ops.broadcast_to(params["b"], shape=x.shape)), p=0.5, train=train)
        return ops.reduce_mean(kept), Aux(metrics={"step": ops.cast(ops.step(), dtype="float64")})

    def grads() -> Any:
        trainer = scalar_trainer(
            masks, {"b": np.zeros(200)}, options=Options(backend=backend, dtype="float64"), accumulate=2
        )
        state, seen = trainer.init_optim(optim.sgd(1.0)), []
        for step in range(3):
            before = trainer.get_params()["b"]
            trainer.advance(optim.sgd(1.0), state, np.ones((2, 200)))
            seen.append(np.round((before - trainer.get_params()["b"]) * 200))
            assert trainer.last_metrics["step"] == step
        return np.array(seen)

    found = grads()
    assert set(np.unique(found)) == {0.0, 1.0, 2.0}, "two masks that were alike would give 0 and 2 alone"
    assert len({row.tobytes() for row in found}) == 3
    np.testing.assert_array_equal(found, grads())


def running(ops: Any, params: Any, state: Any, x: Any, y: Any) -> Any:
    h = hidden(ops, params, x)
    new = ops.add(ops.scale(state["m"], c=0.5), ops.scale(ops.detach(ops.reduce_mean(h, axis=0)), c=0.5))
    return ops.mse_loss(h, y), Aux(state={"m": new})


def test_state_moves_once_a_step() -> None:
    _, trainer = trained(running, (X, Y), 2, "eager", OPTIMIZERS["adamw"], steps=1, state={"m": np.zeros(3)})
    h = np.tanh(X @ START["w"].T + START["b"])
    np.testing.assert_allclose(trainer.state["m"], 0.5 * h.mean(0), rtol=1e-12)


def batch_norm(ops: Any, params: Any, x: Any, y: Any) -> Any:
    h = hidden(ops, params, x)
    h = ops.sub(h, ops.broadcast_to(ops.reduce_mean(h, axis=0), shape=h.shape))
    return ops.mse_loss(h, y)


@pytest.mark.parametrize(
    ("loss", "batch", "accumulate", "message"),
    [
        (total, (X, Y), 2, r"is not a mean over the rows .*it is a sum over the rows: .*by='sum'"),
        (mean, (X, Y), Accumulate(2, by="sum"), r"is not a sum over the rows .*it is a mean .*by='rows'"),
        (batch_norm, (X, Y), 2, "check=False continues anyway"),
        (lambda ops, p, x, s: ops.scale(ops.sum(hidden(ops, p, x)), c=1.0), (X, np.ones(())), 2, "along the rows"),
        (lambda ops, p, x, s: ops.sum(hidden(ops, p, x)), (X, np.ones(4)), 2, "along the rows"),
    ],
)
def test_a_loss_that_does_not_follow_from_its_parts_is_refused(
    loss: Any, batch: Any, accumulate: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        trained(loss, batch, accumulate, "eager", OPTIMIZERS["adamw"])


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_loss_that_joins_otherwise_from_now_on_is_refused(backend: str) -> None:
    """How it joins was proved of a mean; what it reads of Python has made a sum of it since."""
    flags = {"sum": False}

    def loss(ops: Any, params: Any, x: Any) -> Any:
        h = ops.linear(params["w"], None, x)
        return ops.reduce_sum(h) if flags["sum"] else ops.reduce_mean(h)

    trainer = scalar_trainer(loss, {"w": np.zeros((1, 3))}, options=Options(backend=backend), accumulate=2)
    rows = np.arange(12.0).reshape(4, 3)
    trainer.step(1.0, rows)
    before = trainer.get_params()["w"]
    flags["sum"] = True
    with pytest.raises(UsageError, match="not a mean over the rows"):
        trainer.step(1.0, rows)
    np.testing.assert_array_equal(trainer.get_params()["w"], before)
    flags["sum"] = False
    trainer.step(1.0, rows)


def test_who_wants_to_goes_on_anyway() -> None:
    trained(batch_norm, (X, Y), Accumulate(2, check=False), "eager", OPTIMIZERS["adamw"])


def test_a_metric_that_is_not_there() -> None:
    with pytest.raises(opstage.ProgramError, match=r"by the metric 'count', .* it gives mean, rows"):
        trained(mean, (X, Y), Accumulate(2, by="count"), "eager", OPTIMIZERS["adamw"])
    with pytest.raises(UsageError, match=r"the metric 'count' is 0\.0 in all"):
        trained(masked, (X, Y, 0 * COUNTED), Accumulate(2, by="count"), "eager", OPTIMIZERS["adamw"])


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_a_number_of_parts(value: Any) -> None:
    with pytest.raises(UsageError, match="parts must be an int that is at least 1"):
        scalar_trainer(mean, START, accumulate=value)


def test_a_part_that_fails_changes_nothing() -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.reduce_mean(opstage.derived.embedding(ops, params["w"], x))

    trainer = scalar_trainer(loss, {"w": START["w"]}, accumulate=2)
    state = trainer.init_optim(optim.adamw(0.1))
    trainer.advance(optim.adamw(0.1), state, np.array([0, 1, 2, 1]))
    before = trainer.get_params()["w"]
    with pytest.raises(opstage.OpstageError):
        trainer.advance(optim.adamw(0.1), state, np.array([0, 1, 2, 7]))
    assert (state.t, trainer.steps_taken) == (1, 1)
    np.testing.assert_array_equal(trainer.get_params()["w"], before)


def test_a_module_takes_steps_in_parts() -> None:
    options = Options(dtype="float64")
    whole, parts = (opstage.ScalarModule.create(ignoring, START, options, accumulate=count) for count in (1, 3))
    for module in (whole, parts):
        module.step(0.5, X, LABELS)
    np.testing.assert_allclose(parts.params()["w"], whole.params()["w"], rtol=1e-12)


def test_options_say_in_how_many_parts_too() -> None:
    def trained(**more: Any) -> Any:
        trainer = opstage.scalar_trainer(mean_loss, {"w": np.ones((1, 4), np.float32)}, **more)
        x = np.arange(24, dtype=np.float32).reshape(6, 4) / 24
        trainer.step(0.1, x)
        assert trainer._parts
        return trainer.get_params()["w"].tobytes()

    def mean_loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.reduce_mean(ops.linear(params["w"], None, x))

    three = Options(accumulate=3)
    assert trained(options=three) == trained(accumulate=3) == trained(options=three, accumulate=3)
    for other in (1, 2):
        with pytest.raises(UsageError, match=f"accumulate is {other}, but the options have accumulate=3"):
            trained(options=three, accumulate=other)
