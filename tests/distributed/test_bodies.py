"""Loops and branches on a mesh: what varies is followed through their bodies, so they have the numbers of one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, derived
from opstage.ops.types import dtype_name
from opstage.training.validate import check_step
from tests.distributed.compared import assert_close, trained

WIDTH, ROWS = 32, 8
"""A weight is large enough for ZeRO to share it out."""


def _square(ops: Any, x: Any) -> Any:
    return ops.reduce_mean(ops.mul(x, x))


def repeated(ops: Any, params: Any, x: Any) -> Any:
    """A block of Megatron's, whose alike input meets parts of weights within the loop."""

    def body(o: Any, carry: Any, _: Any) -> Any:
        h = o.tanh(o.linear(o.shard(params["w"], axis="model", dim=0), None, carry))
        out = o.all_reduce(o.linear(o.shard(params["w"], axis="model", dim=1), None, h), axis="model")
        return o.add(carry, o.add(out, o.broadcast_to(params["b"], shape=out.shape))), None

    return _square(ops, ops.scan(body, x, None, length=2)[0])


def stacked(ops: Any, params: Any, x: Any) -> Any:
    """A carry that stays alike, beside parts that are stacked."""

    def body(o: Any, carry: Any, _: Any) -> Any:
        own = o.shard(o.tanh(o.linear(params["w"], params["b"], carry)), axis="model", dim=1)
        return o.all_gather(own, axis="model", dim=1, replicated=True), own

    last, parts = ops.scan(body, x, None, length=2)
    return ops.add(_square(ops, last), derived.all_mean(ops, _square(ops, parts), axis="model"))


def normalized(ops: Any, params: Any, x: Any) -> Any:
    def body(o: Any, carry: Any, _: Any) -> Any:
        mean = derived.all_mean(o, o.reduce_mean(carry, axis=0), axis="data")
        return o.tanh(o.linear(params["w"], params["b"], o.sub(carry, o.broadcast_to(mean, shape=carry.shape)))), None

    return derived.all_mean(ops, _square(ops, ops.scan(body, x, None, length=2)[0]), axis="data")


def _batch_normed(ops: Any, params: Any, x: Any) -> Any:
    def body(o: Any, carry: Any, _: Any) -> Any:
        out, _, _ = o.batch_norm(carry, params["b"], params["b"], eps=1e-5, channel_axis=1)
        return o.tanh(o.linear(params["w"], None, out)), None

    return _square(ops, ops.scan(body, x, None, length=2)[0])


def _dropped(ops: Any, params: Any, x: Any) -> Any:
    def body(o: Any, carry: Any, _: Any) -> Any:
        return derived.dropout(o, o.tanh(o.linear(params["w"], params["b"], carry)), 0.5, True), None

    return _square(ops, ops.scan(body, x, None, length=3)[0])


def _same_noise(ops: Any, params: Any, x: Any) -> Any:
    """Without `like` all ranks draw the same, in a loop too."""

    def body(o: Any, carry: Any, _: Any) -> Any:
        noise = o.rand_normal(shape=(WIDTH,))
        return o.tanh(o.linear(params["w"], params["b"], o.add(carry, o.broadcast_to(noise, shape=carry.shape)))), None

    return _square(ops, ops.scan(body, x, None, length=2)[0])


def pipeline(ops: Any, params: Any, x: Any) -> Any:
    """Two stages by hand: what a rank hands on begins with zeros, which are alike on all."""
    stages, layers = ops.mesh.size("stage"), ops.shard(params["layers"], axis="stage", dim=0)
    kind = dtype_name(x.dtype)
    zeros = ops.full(shape=x.shape, value=0.0, dtype=kind)
    idle = ops.full(shape=(stages - 1, *x.shape), value=0.0, dtype=kind)
    entering = ops.concat([ops.unsqueeze(x, axis=0), idle], axis=0)
    first = ops.equal(ops.axis_index(axis="stage"), ops.full(shape=(), value=0, dtype="int64"))

    def body(o: Any, carry: Any, x: Any) -> Any:
        h = o.select(o.broadcast_to(first, shape=x.shape), x, carry)
        for i in range(layers.shape[0]):
            h = o.tanh(o.linear(o.squeeze(o.slice(layers, axis=0, start=i, length=1), axis=0), params["b"], h))
        return o.shift(h, axis="stage", by=1), h

    _, left = ops.scan(body, zeros, entering)
    last = ops.squeeze(ops.slice(left, axis=0, start=stages - 1, length=1), axis=0)
    return derived.all_mean(ops, _square(ops, derived.broadcast(ops, last, axis="stage", root=stages - 1)), axis="data")


def chosen(ops: Any, params: Any, x: Any) -> Any:
    """A branch that all ranks take alike, with a sum in one."""

    def summed(o: Any, h: Any) -> Any:
        own = o.shard(params["w"], axis="model", dim=0)
        return o.all_gather(o.linear(own, None, h), axis="model", dim=1, replicated=True)

    small = ops.less(ops.reduce_sum(params["b"]), ops.full(shape=(), value=100.0, dtype=dtype_name(x.dtype)))
    out = ops.cond(small, summed, lambda o, h: o.linear(params["w"], params["b"], h), x)
    return derived.all_mean(ops, _square(ops, out), axis="data")


def _drop_or_not(ops: Any, params: Any, x: Any) -> Any:
    small = ops.less(ops.reduce_sum(params["b"]), ops.full(shape=(), value=100.0, dtype=dtype_name(x.dtype)))
    out = ops.linear(params["w"], params["b"], x)
    out = ops.cond(small, lambda o, h: derived.dropout(o, h, 0.5, True), lambda o, h: h, out)
    return derived.all_mean(ops, _square(ops, out), axis="data")


def _penalized(ops: Any, params: Any, x: Any) -> Any:
    """A loss that holds a derivative (Gulrajani et al. 2017), with dropout and a loop in what is derived."""

    def body(o: Any, carry: Any, _: Any) -> Any:
        return derived.dropout(o, o.tanh(o.linear(params["w"], params["b"], carry)), 0.5, True), None

    y, pullback = ops.vjp_of(lambda o, x: o.scan(body, x, None, length=2)[0], x)
    (slope,) = pullback(ops.full(shape=y.shape, value=1.0, dtype=y.dtype))
    return ops.add(_square(ops, y), _square(ops, slope))


def _tangent(ops: Any, params: Any, x: Any) -> Any:
    def program(o: Any, x: Any) -> Any:
        return derived.dropout(o, o.tanh(o.linear(params["w"], params["b"], x)), 0.5, True)

    y, moved = ops.jvp_of(program, (x,), (ops.full(shape=x.shape, value=1.0, dtype=x.dtype),))
    return derived.all_mean(ops, ops.add(_square(ops, y), _square(ops, moved)), axis="data")


def _trained(loss: Callable[..., Any], mesh: str, backend: str, zero: int) -> list[Any]:
    rng = np.random.default_rng(0)
    params = {"w": 0.5 * rng.standard_normal((WIDTH, WIDTH)), "b": rng.standard_normal(WIDTH)}
    params["layers"] = 0.5 * rng.standard_normal((4, WIDTH, WIDTH))
    used = {name: params[name] for name in (("layers", "b") if loss is pipeline else ("w", "b"))}
    rows = rng.standard_normal((ROWS, WIDTH))
    return trained(loss, used, rows, rate=0.5, mesh=mesh, backend=backend, zero=zero)


@pytest.mark.filterwarnings("ignore::opstage.ops.errors.ProgramWarning")  # one branch does not read a parameter
@pytest.mark.parametrize(
    "loss, mesh, backends",
    [
        (repeated, "model=2", ("eager", "compiled")),
        (repeated, "data=2,model=2", ("eager", "compiled")),
        (stacked, "data=2,model=2", ("eager", "compiled")),
        (normalized, "data=4", ("eager", "compiled")),
        (_batch_normed, "data=2", ("eager", "compiled")),
        (_dropped, "data=4", ("eager", "compiled")),
        (_same_noise, "data=2", ("eager", "compiled")),
        (pipeline, "stage=2", ("eager", "compiled")),
        (pipeline, "data=2,stage=4", ("eager", "compiled")),
        (chosen, "data=2,model=2", ("eager",)),
        (_drop_or_not, "data=2", ("eager",)),
        (_penalized, "data=4", ("eager", "compiled")),
        (_tangent, "data=2", ("eager", "compiled")),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_it_has_the_numbers_of_one_rank(loss: Callable[..., Any], mesh: str, backends: tuple[str, ...]) -> None:
    alone = _trained(loss, "", "eager", 0)
    for backend in backends:
        for zero in (0, 3):
            assert_close(_trained(loss, mesh, backend, zero), alone, rtol=1e-12, atol=1e-12)


def _apart(ops: Any, params: Any, x: Any) -> Any:
    """One rank sends, the other does not."""
    own = ops.shard(ops.linear(params["w"], params["b"], x), axis="model", dim=1)
    first = ops.equal(ops.axis_index(axis="model"), ops.full(shape=(), value=0, dtype="int64"))
    own = ops.cond(first, lambda o, h: o.shift(h, axis="model"), lambda o, h: h, own)
    return derived.all_mean(ops, _square(ops, own), axis="model")


def _until(ops: Any, params: Any, x: Any) -> Any:
    """Ranks that take another number of iterations, in each of which they sum."""
    h = ops.linear(params["w"], params["b"], x)

    def more(o: Any, h: Any) -> Any:
        return o.less(o.full(shape=(), value=0.01, dtype=dtype_name(h.dtype)), o.reduce_max(o.mul(h, h)))

    def body(o: Any, h: Any) -> Any:
        mean = derived.all_mean(o, o.reduce_mean(h, axis=0), axis="data")
        return o.scale(o.sub(h, o.broadcast_to(mean, shape=h.shape)), c=0.5)

    return derived.all_mean(ops, _square(ops, ops.while_loop(more, body, h, max_iterations=9)), axis="data")


def _sums_a_carry(ops: Any, params: Any, x: Any) -> Any:
    """In the first iteration all ranks have the same carry: a sum would count it once for each."""
    own = ops.shard(ops.linear(params["w"], params["b"], x), axis="model", dim=1)

    def body(o: Any, carry: Any, _: Any) -> Any:
        return o.add(o.all_reduce(carry, axis="model"), o.reduce_mean(own, axis=1)), None

    last, _ = ops.scan(body, ops.reduce_mean(x, axis=1), None, length=2)
    return derived.all_mean(ops, _square(ops, last), axis="model")


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(
    "loss, mesh, message",
    [
        (_apart, "model=2", "what it decides by may differ between them"),
        (_until, "data=2", "what it decides by may differ between them"),
        (_sums_a_carry, "model=2", "all ranks of mesh axis 'model' have the same x.*2 times x"),
    ],
)
def test_a_wrong_program_is_named(loss: Callable[..., Any], mesh: str, message: str, validate: bool) -> None:
    params = {"w": np.ones((WIDTH, WIDTH)), "b": np.ones(WIDTH)}
    trainer = opstage.scalar_trainer(loss, params, options=Options(mesh=mesh, validate=validate))
    with pytest.raises(opstage.OpstageError, match=message):
        trainer.step(0.1, np.ones((ROWS, WIDTH)))
    report = check_step(loss, {"w": (WIDTH, WIDTH), "b": (WIDTH,)}, Spec(f"B {WIDTH}"), options=Options(mesh=mesh))
    assert not report.ok
