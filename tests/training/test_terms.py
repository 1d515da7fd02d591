"""Losses whose terms join in ways of their own: steps in parts and on meshes have the numbers of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Accumulate, Aux, Options, UsageError, ValidationError, optim
from opstage.ops.derived import dropout
from tests.training.random_losses import PLACES, random_loss, step

rng = np.random.default_rng(0)
X, LABELS = rng.normal(size=(8, 5)), np.array([0, -100, 2, 1, -100, -100, -100, 3])
COUNTED = (LABELS >= 0).astype(np.float64)
PARAMS = {"w": 0.3 * rng.normal(size=(4, 5)), "head": np.zeros((4, 4))}
EVERYWHERE: dict[str, dict[str, Any]] = {
    "2 parts": {"accumulate": 2},
    "3 parts": {"accumulate": 3},
    "compiled parts": {"accumulate": 3, "backend": "compiled"},
    "2 ranks": {"mesh": "data=2"},
    "8 ranks": {"mesh": "data=8"},
    "compiled ranks": {"mesh": "data=2", "backend": "compiled"},
    "parts on ranks": {"mesh": "data=2", "accumulate": 2},
    "sharded state": {"mesh": "data=2", "accumulate": 2, "zero": 2},
}


def logits(ops: Any, p: Any, x: Any) -> Any:
    return ops.linear(p["head"], None, ops.tanh(ops.linear(p["w"], None, x)))


def errors(ops: Any, p: Any, x: Any) -> Any:
    """A number for each row."""
    return ops.reduce_sum(ops.square(ops.sub(logits(ops, p, x), ops.full(shape=(x.shape[0], 4), value=1.0))), axis=1)


def number(ops: Any, value: float) -> Any:
    return ops.full(shape=(), value=value)


def masked(divisor: Callable[..., Any]) -> Callable[..., Any]:
    """Σ e·m divided by a function of Σ m."""

    def loss(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
        return ops.div(ops.sum(ops.mul(errors(ops, p, x), m)), divisor(ops, ops.sum(m)))

    return loss


def by_inverse(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    return ops.mul(ops.sum(ops.mul(errors(ops, p, x), m)), ops.inv(ops.add(ops.sum(m), number(ops, 1e-6))))


def chosen(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    """0 if nothing counts."""
    count = ops.sum(m)
    mean = ops.div(ops.sum(ops.mul(errors(ops, p, x), m)), count)
    return ops.select(ops.less(number(ops, 0.0), count), mean, number(ops, 0.0))


def normalised(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    """Weights that add up to 1."""
    weights = ops.div(m, ops.broadcast_to(ops.sum(m), shape=m.shape))
    return ops.sum(ops.mul(errors(ops, p, x), weights))


def with_penalties(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    """A cross-entropy with ignored labels, a mean over all rows, weight decay, and a sum."""
    out = logits(ops, p, x)
    decay = ops.scale(ops.sum(ops.square(p["w"])), c=0.01)
    of_rows = ops.add(ops.scale(ops.reduce_mean(ops.square(out)), c=0.1), ops.scale(ops.sum(out), c=0.02))
    return ops.add(ops.add(ops.cross_entropy(out, t), of_rows), decay), Aux(
        metrics={"loss": ops.cross_entropy(out, t), "right": right(ops, out, t), "mean": ops.reduce_mean(out)}
    )


def right(ops: Any, out: Any, t: Any) -> Any:
    return ops.sum(ops.cast(ops.equal(ops.argmax(out, axis=1), t), dtype="int64"))


def two_masks(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    e = errors(ops, p, x)
    others = ops.sub(ops.full(shape=m.shape, value=1.0), m)
    return ops.add(
        ops.div(ops.sum(ops.mul(e, m)), ops.sum(m)),
        ops.scale(ops.div(ops.sum(ops.mul(ops.square(e), others)), ops.sum(others)), c=0.5),
    )


def once_for_each_row(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    decay = ops.broadcast_to(ops.sum(ops.square(p["w"])), shape=x.shape)
    return ops.add(ops.reduce_mean(errors(ops, p, x)), ops.scale(ops.sum(decay), c=1e-3))


def confident(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    """A mean over the rows that the model is wrong about: what counts is decided by parameters, without a gradient."""
    out = logits(ops, p, x)
    wrong = ops.cast(ops.logical_not(ops.equal(ops.argmax(out, axis=1), t)), dtype="float64")
    e = ops.cross_entropy(out, ops.maximum(t, ops.sub(t, t)), reduction="none")
    return ops.div(ops.sum(ops.mul(e, wrong)), ops.maximum(ops.sum(wrong), number(ops, 1.0)))


def in_a_loop(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    """Means over the rows that a loop adds up, and a sum."""

    def body(inner: Any, total: Any, column: Any) -> Any:
        return inner.add(total, inner.reduce_mean(inner.square(column))), None

    total, _ = ops.scan(body, number(ops, 0.0), ops.permute(logits(ops, p, x), axes=(1, 0)))
    return ops.add(total, ops.scale(ops.sum(logits(ops, p, x)), c=0.1))


def smoothed(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    return ops.scale(ops.sum(errors(ops, p, x)), c=1 / (x.shape[0] + 1))


def dropped(ops: Any, p: Any, x: Any, t: Any, m: Any, *, train: bool = False) -> Any:
    """Without dropout's draws, which parts have of their own, but for none."""
    h = dropout(ops, x, p=0.0, train=train)
    return ops.add(ops.cross_entropy(logits(ops, p, h), t), ops.reduce_mean(ops.square(logits(ops, p, h))))


LOSSES: dict[str, Callable[..., Any]] = {
    "maximum(count, 1)": masked(lambda ops, n: ops.maximum(n, number(ops, 1.0))),
    "clamp(count)": masked(lambda ops, n: ops.clamp(n, lo=1.0, hi=1e9)),
    "count + eps": masked(lambda ops, n: ops.add(n, number(ops, 1e-8))),
    "where(count == 0, 1, count)": masked(
        lambda ops, n: ops.select(ops.equal(n, number(ops, 0.0)), number(ops, 1.0), n)
    ),
    "the root of the count": masked(lambda ops, n: ops.sqrt(n)),
    "sum * inv(count)": by_inverse,
    "where(count > 0, mean, 0)": chosen,
    "weights that add up to 1": normalised,
    "cross-entropy and penalties": with_penalties,
    "two masks": two_masks,
    "a penalty once for each row": once_for_each_row,
    "what the model is wrong about": confident,
    "means in a loop and a sum": in_a_loop,
    "a row more": smoothed,
    "a cross-entropy, a mean and dropout": dropped,
}


def trained(loss: Callable[..., Any], params: Any = PARAMS, counted: Any = COUNTED, **options: Any) -> list[Any]:
    parts = options.pop("accumulate", None)
    trainer = opstage.scalar_trainer(loss, params, options=Options(dtype="float64", **options), accumulate=parts)
    rule = optim.adamw(0.05)
    state, results = trainer.init_optim(rule), []
    for _ in range(3):
        results.append(trainer.advance(rule, state, X, LABELS, counted).loss)
        results += trainer.last_metrics.values()
    return [*results, *trainer.get_params().values()]


@pytest.mark.parametrize("where", EVERYWHERE)
@pytest.mark.parametrize("name", LOSSES)
def test_a_step_is_that_of_the_whole_batch(name: str, where: str) -> None:
    """From a head of zeros, where values say nothing of gradients."""
    for found, one in zip(trained(LOSSES[name], **EVERYWHERE[where]), trained(LOSSES[name]), strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-9, atol=1e-11)


def test_a_guard_that_counts_no_row_of_a_part() -> None:
    """The gradient of Σ e·m / max(Σ m, 1) at a last layer of zeros, by hand: rows 0 to 4 count, each by 1/5."""

    def loss(ops: Any, p: Any, x: Any, m: Any) -> Any:
        each = ops.reduce_sum(ops.mul(x, ops.broadcast_to(p["w"], shape=x.shape)), axis=1)
        return ops.div(ops.sum(ops.mul(each, m)), ops.maximum(ops.sum(m), number(ops, 1.0)))

    mask = np.array([1.0, 1, 1, 1, 1, 0, 0, 0])
    for mesh, parts in (("", 1), ("", 2), ("data=2", 1), ("data=2", 2)):
        how = Options(dtype="float64", mesh=mesh, accumulate=parts)
        trainer = opstage.scalar_trainer(loss, {"w": np.zeros(8)}, options=how)
        trainer.step(2.0, np.eye(8), mask)
        np.testing.assert_allclose(trainer.get_params()["w"], [-0.4] * 5 + [0] * 3, rtol=1e-12)


def median(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    return ops.sum(opstage.derived.quantile(ops, errors(ops, p, x), q=0.5, axis=0))


def of_parameters(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    weights = ops.sigmoid(ops.reduce_sum(logits(ops, p, x), axis=1))
    return ops.div(ops.sum(ops.mul(errors(ops, p, x), weights)), ops.sum(weights))


def root(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    return ops.sqrt(ops.reduce_mean(errors(ops, p, x)))


def contrastive(ops: Any, p: Any, x: Any, t: Any, m: Any) -> Any:
    out = logits(ops, p, x)
    return ops.reduce_mean(ops.exp(ops.matmul(out, ops.permute(out, axes=(1, 0)))))


@pytest.mark.parametrize("loss", [median, of_parameters, root, contrastive])
@pytest.mark.parametrize("params", [PARAMS, {**PARAMS, "head": 0.02 * rng.normal(size=(4, 4))}], ids=["zeros", "small"])
def test_what_is_not_proved_is_refused(loss: Callable[..., Any], params: Any) -> None:
    """In parts; ranks compute at once, so they can share sums that parameters decide."""
    with pytest.raises(UsageError, match="whether the loss of a batch follows from that of its parts is not known"):
        trained(loss, params, accumulate=2)
    trained(loss, params, accumulate=Accumulate(2, check=False))
    if loss in (median, contrastive):
        with pytest.raises(ValidationError, match="the loss cannot be sharded over mesh axis"):
            trained(loss, params, mesh="data=2")
        return
    for found, one in zip(trained(loss, params, mesh="data=2"), trained(loss, params), strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_what_a_loss_reads_of_python_may_change(backend: Any) -> None:
    """A guard that becomes another one is that of the whole batch too."""
    found = []
    for options in ({}, {"accumulate": 2}, {"mesh": "data=2"}):
        least, results = {"value": 1.0}, []

        def loss(ops: Any, p: Any, x: Any, t: Any, m: Any, least: Any = least) -> Any:
            count = ops.maximum(ops.sum(m), number(ops, least["value"]))
            return ops.div(ops.sum(ops.mul(errors(ops, p, x), m)), count)

        how = dict(options)
        parts = how.pop("accumulate", None)
        trainer = opstage.scalar_trainer(
            loss, PARAMS, options=Options(dtype="float64", backend=backend, **how), accumulate=parts
        )
        for value in (1.0, 16.0, 1.0):
            least["value"] = value
            results.append(float(trainer.step(0.1, X, LABELS, COUNTED)))
        found.append(results)
    np.testing.assert_allclose(found[1:], found[:1] * 2, rtol=1e-9)


def compared(seeds: range) -> dict[str, int]:
    """Random losses everywhere beside one rank; how often each place had the right numbers."""
    told = dict.fromkeys(PLACES, 0)
    for seed in seeds:
        loss = random_loss(seed)
        one = step(loss)
        for name, options in PLACES.items():
            found = None if one is None else step(loss, **options)
            if found is not None:
                told[name] += 1
                np.testing.assert_allclose(found, one, rtol=1e-9, atol=1e-9, err_msg=f"random_loss({seed}) on {name}")
    return told


@pytest.mark.filterwarnings("ignore")
def test_random_losses_have_the_numbers_of_one_rank_or_are_refused() -> None:
    assert min(compared(range(24)).values()) >= 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_many_random_losses() -> None:
    assert min(compared(range(24, 600)).values()) >= 200
