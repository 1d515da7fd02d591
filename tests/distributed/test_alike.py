"""Collectives of what all ranks have alike, though a parameter is varied at its first use: named, or without effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, derived
from opstage.training.validate import check_step
from tests.distributed.compared import assert_close

ROWS = 8


def _penalty(ops: Any, params: Any) -> Any:
    return ops.scale(ops.reduce_sum(ops.mul(params["w"], params["w"])), c=0.1)


def _data(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.cross_entropy(ops.linear(params["w"], params["b"], x), y)


def _plus(penalty: Callable[..., Any]) -> Callable[..., Any]:
    """The loss of a batch and what this makes of the parameters."""

    return lambda ops, params, x, y: ops.add(_data(ops, params, x, y), penalty(ops, params))


def _summed(ops: Any, params: Any) -> Any:
    return ops.all_reduce(_penalty(ops, params), axis="data")


def _summed_in_a_loop(ops: Any, params: Any) -> Any:
    def body(o: Any, carry: Any, _: Any) -> Any:
        return o.add(carry, o.all_reduce(_penalty(o, params), axis="data")), None

    return ops.scan(body, ops.full(shape=(), value=0.0, dtype=ops.dtype), None, length=2)[0]


def _gathered(ops: Any, params: Any) -> Any:
    return ops.reduce_sum(ops.all_gather(params["w"], axis="data"))


def _scattered(ops: Any, params: Any) -> Any:
    twice = ops.reduce_scatter(ops.concat([params["w"], params["w"]], axis=0), axis="data")
    return ops.reduce_sum(ops.all_gather(twice, axis="data", replicated=True))


def _exchanged(ops: Any, params: Any) -> Any:
    both = ops.concat([params["w"], ops.scale(params["w"], c=2.0)], axis=0)
    own = ops.all_to_all(both, axis="data", split=0, join=0)
    return ops.reduce_sum(ops.slice(own, axis=0, start=0, length=1))


def _summed_weight(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return _data(ops, {**params, "w": ops.all_reduce(params["w"], axis="data")}, x, y)


def _scaled_by_another_number(ops: Any, params: Any) -> Any:
    return ops.all_reduce(ops.scale(_penalty(ops, params), c=0.25), axis="data")


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(
    "loss",
    [
        _plus(_summed),
        _plus(_summed_in_a_loop),
        _plus(_gathered),
        _plus(_scattered),
        _plus(_exchanged),
        _plus(_scaled_by_another_number),
        _summed_weight,
    ],
)
def test_it_would_count_once_for_each_rank(loss: Callable[..., Any], validate: bool) -> None:
    trainer = _trainer(loss, "data=2", validate=validate)
    with pytest.raises(opstage.OpstageError, match="all ranks of mesh axis 'data' have the same x"):
        trainer.step(0.1, *_batch())
    for mesh in ("data=2", "data=N"):
        specs = Spec("B 5"), Spec("B", "int64")
        report = check_step(loss, {"w": (3, 5), "b": (3,)}, *specs, options=Options(mesh=mesh))
        assert not report.ok


def _mean(ops: Any, params: Any) -> Any:
    return derived.all_mean(ops, _penalty(ops, params), axis="data")


def _shifted(ops: Any, params: Any) -> Any:
    return ops.reduce_sum(ops.shift(params["w"], axis="data"))


def _largest(ops: Any, params: Any) -> Any:
    return ops.reduce_sum(ops.mul(params["w"], ops.all_max(ops.detach(params["w"]), axis="data")))


def _outside(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return derived.all_mean(ops, ops.add(_data(ops, params, x, y), _penalty(ops, params)), axis="data")


@pytest.mark.parametrize(
    "loss", [_plus(_penalty), _plus(_mean), _plus(_shifted), _plus(_largest), _outside], ids=range(5)
)
@pytest.mark.parametrize("mesh", ["data=2", "data=4"])
def test_what_counts_it_once_has_the_numbers_of_one_rank(loss: Callable[..., Any], mesh: str) -> None:
    found = []
    for on in ("", mesh):
        trainer = _trainer(loss, on)
        found.append([trainer.step(0.5, *_batch()), *trainer.get_params().values()])
    assert_close(*reversed(found), rtol=1e-12)
    specs = Spec("B 5"), Spec("B", "int64")
    assert check_step(loss, {"w": (3, 5), "b": (3,)}, *specs, options=Options(mesh="data=N")).ok


def _counted(ops: Any, params: Any, x: Any, y: Any) -> Any:
    """A number that a program varies itself shall be summed: so it counts the rows of all ranks."""
    apart = ops.sub(ops.linear(params["w"], params["b"], x), ops.full(shape=(x.shape[0], 3), value=1.0, dtype=x.dtype))
    rows = ops.vary(ops.full(shape=(), value=x.shape[0], dtype=x.dtype), axis="data")
    return derived.batch_mean(ops, ops.reduce_sum(ops.mul(apart, apart)), rows, axis="data")


def test_a_number_that_is_varied_on_purpose_is_summed() -> None:
    values = [float(_trainer(_counted, mesh).step(0.5, *_batch())) for mesh in ("", "data=2")]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def _trainer(loss: Callable[..., Any], mesh: str, **more: Any) -> Any:
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((3, 5)), "b": rng.standard_normal(3)}
    return opstage.scalar_trainer(loss, params, options=Options(mesh=mesh, dtype="float64", **more))


def _batch() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((ROWS, 5)), rng.integers(0, 3, ROWS)
