"""The new state of a step on a mesh, or in parts, is that of one rank with the whole batch, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Aux, OpstageError, Options, Spec, check_step
from opstage.ops.derived import all_mean, median
from opstage.training.accumulate import Accumulate

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 3)) + 0.3 * np.arange(8)[:, None]
Y = RNG.integers(-1, 2, 8)
W = {"w": RNG.standard_normal((2, 3))}
STATE = {"m": np.array([0.5, -1.0, 2.0])}
COUNT = {"m": np.array([3, 4, 5])}

New = Callable[[Any, Any, Any, Any], Any]


def mean(ops: Any, x: Any) -> Any:
    return ops.reduce_mean(x, axis=0)


def ratio(ops: Any, x: Any, y: Any) -> Any:
    """A mean over the rows whose label is not ignored."""
    counted = ops.cast(ops.less_equal(ops.full(shape=y.shape, value=0, dtype="int64"), y), dtype="float64")
    return ops.broadcast_to(ops.sum(ops.reduce_mean(x, axis=1) * counted) / ops.sum(counted), shape=(3,))


def centred(ops: Any, x: Any) -> Any:
    return x - ops.broadcast_to(mean(ops, x), shape=x.shape)


def rows(ops: Any, x: Any) -> Any:
    return ops.full(shape=(3,), value=x.shape[0] * 1.0)


def row(ops: Any, x: Any, at: Any) -> Any:
    return ops.reshape(ops.slice(x, axis=0, start=at, length=1), shape=(3,))


def statistics(ops: Any, x: Any, which: int) -> Any:
    return ops.batch_norm(x, None, None, channel_axis=1)[which]


def counted(ops: Any, x: Any) -> Any:
    return ops.cast(ops.less(x, ops.full(shape=x.shape, value=0.0)), dtype="int64")


JOINED: dict[str, New] = {
    "fixed": lambda ops, m, x, y: m + 1.0,
    "its own decay": lambda ops, m, x, y: 0.9 * m,
    "a mean": lambda ops, m, x, y: mean(ops, x),
    "a running mean": lambda ops, m, x, y: 0.9 * m + 0.1 * mean(ops, x),
    "a running mean of squares": lambda ops, m, x, y: 0.9 * m + 0.1 * mean(ops, x * x),
    "a running mean, as a step": lambda ops, m, x, y: m + 0.1 * (mean(ops, x) - m),
    "of rows and the old state": lambda ops, m, x, y: mean(ops, (x - ops.broadcast_to(m, shape=x.shape)) ** 2),
    "a sum": lambda ops, m, x, y: ops.reduce_sum(x, axis=0),
    "a running sum": lambda ops, m, x, y: m + ops.reduce_sum(x, axis=0),
    "a running sum, first": lambda ops, m, x, y: ops.reduce_sum(x * x, axis=0) + m,
    "the number of rows": lambda ops, m, x, y: rows(ops, x),
    "a running number of rows": lambda ops, m, x, y: m + rows(ops, x),
    "a running variance": lambda ops, m, x, y: 0.9 * m + 0.1 * mean(ops, centred(ops, x) ** 2),
    "a variance of moments": lambda ops, m, x, y: mean(ops, x * x) - mean(ops, x) ** 2,
    "a root of a mean": lambda ops, m, x, y: 0.9 * m + 0.1 * ops.sqrt(mean(ops, x * x)),
    "the size of a mean": lambda ops, m, x, y: ops.abs(mean(ops, x)),
    "a decaying sum": lambda ops, m, x, y: 0.9 * m + ops.reduce_sum(x, axis=0),
    "a decaying number of rows": lambda ops, m, x, y: 0.9 * m + rows(ops, x),
    "twice the number of rows, and one": lambda ops, m, x, y: 2.0 * rows(ops, x) + 1.0,
    "an unbiased mean": lambda ops, m, x, y: ops.scale(ops.reduce_sum(x, axis=0), c=1 / (x.shape[0] - 1)),
    "what of another step depends on": lambda ops, m, x, y: ops.cond(
        ops.less(ops.full(shape=(), value=0.0), ops.sum(mean(ops, x))), lambda ops, m: m + 1.0, lambda ops, m: m, m
    ),
    "a mean over rows that count": lambda ops, m, x, y: 0.9 * m + 0.1 * ratio(ops, x, y),
}
COUNTS: dict[str, New] = {
    "steps": lambda ops, m, x, y: m + ops.full(shape=(3,), value=1, dtype="int64"),
    "rows with a feature": lambda ops, m, x, y: m + ops.reduce_sum(counted(ops, x), axis=0),
}
OF_RANKS: dict[str, New] = {
    "a batch's statistics and their number": lambda ops, m, x, y: statistics(ops, x, 1) + rows(ops, x),
    "the mean of a batch": lambda ops, m, x, y: 0.9 * m + 0.1 * statistics(ops, x, 1),
    "the variance of a batch": lambda ops, m, x, y: 0.9 * m + 0.1 * statistics(ops, x, 2),
    "a maximum of all ranks": lambda ops, m, x, y: ops.maximum(m, ops.all_max(ops.reduce_max(x, axis=0), axis="data")),
    "a root of a mean of all ranks": lambda ops, m, x, y: ops.sqrt(all_mean(ops, mean(ops, x * x), axis="data")),
}
REFUSED: dict[str, New] = {
    "a running maximum": lambda ops, m, x, y: ops.maximum(m, ops.reduce_max(x, axis=0)),
    "the last row": lambda ops, m, x, y: row(ops, x, x.shape[0] - 1),
    "the first row": lambda ops, m, x, y: 0.9 * m + 0.1 * row(ops, x, 0),
    "a median": lambda ops, m, x, y: median(ops, x, axis=0),
}
HOW = [
    {"mesh": "data=2"},
    {"mesh": "data=4"},
    {"accumulate": 2},
    {"accumulate": 3},
    {"mesh": "data=2", "accumulate": 2},
]


def trained(new: New, state: Any, how: Any) -> Any:
    def loss(ops: Any, params: Any, state: Any, x: Any, y: Any) -> Any:
        loss = ops.cross_entropy(ops.linear(params["w"], None, x), y, ignore_index=-1)
        return loss, Aux(state={"m": new(ops, state["m"], x, y)})

    trainer = opstage.scalar_trainer(loss, W, state=state, options=Options(dtype="float64", **how))
    for _ in range(2):
        trainer.step(0.1, X, Y)
    return trainer.state["m"]


def reported(new: New, state: Any) -> Any:
    def loss(ops: Any, params: Any, state: Any, x: Any, y: Any) -> Any:
        return ops.reduce_mean(ops.linear(params["w"], None, x)), Aux(state={"m": new(ops, state["m"], x, y)})

    kinds = {name: Spec(value.shape, str(value.dtype)) for name, value in state.items()}
    how = Options(mesh="data=N", dtype="float64")
    return check_step(loss, W, Spec("B 3", where=("B >= 4",)), Spec("B", "int64"), state=kinds, options=how)


@pytest.mark.filterwarnings("ignore:.*is never used")
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("name", [*JOINED, *COUNTS])
def test_it_is_that_of_the_whole_batch(name: str, how: Any) -> None:
    new, state = (JOINED[name], STATE) if name in JOINED else (COUNTS[name], COUNT)
    one, own = trained(new, state, {}), trained(new, state, how)
    np.testing.assert_allclose(own, one, rtol=1e-12, atol=1e-14)
    assert own.dtype == one.dtype


@pytest.mark.filterwarnings("ignore:.*is never used")
@pytest.mark.parametrize("name", OF_RANKS)
def test_what_ranks_alone_can_join_is_refused_in_parts(name: str) -> None:
    new = OF_RANKS[name]
    for mesh in ("data=2", "data=4"):
        np.testing.assert_allclose(trained(new, STATE, {"mesh": mesh}), trained(new, STATE, {}), rtol=1e-12)
    for how in ({"accumulate": 2}, {"mesh": "data=2", "accumulate": 2}):
        if "mesh" not in how and "root" in name:  # one rank has that of its parts
            np.testing.assert_allclose(trained(new, STATE, how), trained(new, STATE, {}), rtol=1e-12)
            continue
        with pytest.raises(OpstageError, match=r"accumulate: (the new state m|batch_norm at)"):
            trained(new, STATE, how)


@pytest.mark.filterwarnings("ignore:.*is never used")
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proved_is_refused(name: str, how: Any) -> None:
    with pytest.raises(OpstageError, match=r"(new state m|batch_norm at .*) (cannot be sharded|of a batch|takes the)"):
        trained(REFUSED[name], STATE, how)


@pytest.mark.parametrize("name", [*JOINED, *COUNTS, *OF_RANKS, *REFUSED])
def test_a_check_of_every_number_of_ranks_agrees(name: str) -> None:
    new = {**JOINED, **COUNTS, **OF_RANKS, **REFUSED}[name]
    report = reported(new, COUNT if name in COUNTS else STATE)
    refused = any("the new state m cannot be sharded" in str(finding) for finding in report.errors)
    assert report.ok != refused and refused == (name in REFUSED), report


def test_without_the_check_state_continues_part_by_part() -> None:
    def loss(ops: Any, params: Any, state: Any, x: Any) -> Any:
        new = 0.5 * state["m"] + 0.5 * statistics(ops, x, 1)
        return ops.reduce_mean(ops.linear(params["w"], None, x)), Aux(state={"m": new})

    trainer = opstage.scalar_trainer(
        loss, W, state={"m": np.zeros(3)}, accumulate=Accumulate(2, check=False), options=Options(dtype="float64")
    )
    trainer.step(0.1, X)
    np.testing.assert_allclose(trainer.state["m"], 0.25 * X[:4].mean(0) + 0.5 * X[4:].mean(0), rtol=1e-12)


def sending(mesh: str, *, counts: bool) -> Any:
    """Steps of a loss that is summed by hand, with a state of which a part is and a part is not."""

    def loss(ops: Any, params: Any, state: Any, x: Any) -> Any:
        whole = all_mean(ops, ops.reduce_mean(ops.linear(params["w"], None, x)), axis="data")
        total = state["total"] + ops.all_reduce(ops.reduce_sum(x, axis=0), axis="data")
        repeated = ops.reduce_sum(ops.broadcast_to(state["m"], shape=x.shape), axis=0)
        new = {"total": total, "m": repeated}
        return whole, Aux(state={**new, "rows": state["rows"] + rows(ops, x)} if counts else new)

    state = {"total": np.zeros(3), "m": STATE["m"], **({"rows": np.zeros(3)} if counts else {})}
    trainer = opstage.scalar_trainer(loss, W, state=state, options=Options(dtype="float64", mesh=mesh))
    for _ in range(2):
        trainer.step(0.1, X)
    return trainer.state


@pytest.mark.parametrize("mesh", ["data=2", "data=4"])
def test_what_a_program_that_sends_computes_without_sending_is_not_taken_as_it_is(mesh: str) -> None:
    one, own = sending("", counts=False), sending(mesh, counts=False)
    for name, value in one.items():
        np.testing.assert_allclose(own[name], value, rtol=1e-12)
    with pytest.raises(OpstageError, match="the new state rows cannot be sharded"):
        sending(mesh, counts=True)


def all_sum(ops: Any, x: Any) -> Any:
    return ops.all_reduce(ops.reduce_sum(x, axis=0), axis="data")


def synced(ops: Any, x: Any) -> Any:
    return all_mean(ops, mean(ops, x), axis="data")


def apart(ops: Any, x: Any) -> Any:
    return x - ops.broadcast_to(synced(ops, x), shape=x.shape)


def all_rows(ops: Any, x: Any) -> Any:
    return x.shape[0] * ops.mesh.size("data")


def paired(ops: Any, x: Any) -> Any:
    """The rows, by way of a size that is only divided."""
    return ops.reshape(ops.reshape(x, shape=(x.shape[0] // 2, 2, 3)), shape=x.shape)


SYNCED: dict[str, New] = {
    "a running mean": lambda ops, m, x, y: 0.9 * m + 0.1 * synced(ops, x),
    "a variance": lambda ops, m, x, y: all_mean(ops, mean(ops, apart(ops, x) ** 2), axis="data"),
    "a variance of own rows": lambda ops, m, x, y: mean(ops, apart(ops, x) ** 2),
    "a mean and that of own rows": lambda ops, m, x, y: synced(ops, x) + mean(ops, x),
    "times own rows": lambda ops, m, x, y: ops.scale(ops.sqrt(synced(ops, x * x)), c=x.shape[0]),
    "times a tensor of own rows": lambda ops, m, x, y: rows(ops, x) * synced(ops, x),
    "repeated for own rows, a sum": lambda ops, m, x, y: ops.reduce_sum(
        ops.broadcast_to(synced(ops, x), shape=x.shape), axis=0
    ),
    "repeated for own rows, a mean": lambda ops, m, x, y: mean(ops, ops.broadcast_to(synced(ops, x), shape=x.shape)),
    "unbiased by the batch's rows": lambda ops, m, x, y: ops.scale(
        synced(ops, x), c=all_rows(ops, x) / (all_rows(ops, x) - 1)
    ),
    "by rows and ranks": lambda ops, m, x, y: ops.scale(all_sum(ops, x), c=1 / all_rows(ops, x)),
    "by rows, then by ranks": lambda ops, m, x, y: ops.scale(
        ops.scale(all_sum(ops, x), c=1 / x.shape[0]), c=1 / ops.mesh.size("data")
    ),
    "by the number of ranks in Python": lambda ops, m, x, y: ops.scale(
        all_sum(ops, x), c=1 / (x.shape[0] * len(range(ops.mesh.size("data"))))
    ),
    "by a count of all ranks": lambda ops, m, x, y: (
        all_sum(ops, x) / (ops.all_reduce(ops.vary(rows(ops, x), axis="data"), axis="data") - 1.0)
    ),
    "a maximum of all rows": lambda ops, m, x, y: ops.reduce_max(ops.all_gather(x, axis="data"), axis=0),
    "in a loop": lambda ops, m, x, y: ops.scan(
        lambda ops, c, _: (0.5 * c + synced(ops, x), None), m, ops.iota(shape=(3,))
    )[0],
    "of a batch norm": lambda ops, m, x, y: 0.9 * m + 0.1 * statistics(ops, x, 1) + synced(ops, x),
    "of rows in pairs": lambda ops, m, x, y: 0.9 * m + 0.1 * synced(ops, paired(ops, x)),
    "without sending, by rows and ranks": lambda ops, m, x, y: ops.scale(
        ops.reduce_sum(x, axis=0), c=1 / all_rows(ops, x)
    ),
}
OF_ONE_RANK: dict[str, New] = {
    "unbiased by own rows": lambda ops, m, x, y: ops.scale(synced(ops, x), c=x.shape[0] / (x.shape[0] - 1)),
    "a sum and that of own rows": lambda ops, m, x, y: all_sum(ops, x) + ops.reduce_sum(x, axis=0),
    "divided by own rows": lambda ops, m, x, y: ops.scale(synced(ops, x), c=1 / x.shape[0]),
    "own rows added": lambda ops, m, x, y: synced(ops, x) + rows(ops, x),
    "decaying by own rows": lambda ops, m, x, y: ops.scale(m, c=1 - 1 / x.shape[0]) + synced(ops, x),
    "some of the batch's rows": lambda ops, m, x, y: mean(
        ops, ops.slice(ops.all_gather(x, axis="data"), axis=0, start=0, length=x.shape[0])
    ),
    "times the statistics of a batch": lambda ops, m, x, y: (
        ops.scale(statistics(ops, x, 1), c=x.shape[0] / (x.shape[0] - 1)) + synced(ops, x)
    ),
    "own rows in Python": lambda ops, m, x, y: ops.scale(synced(ops, x), c=float(int(x.shape[0]))),
    "rows in pairs, by own rows in Python": lambda ops, m, x, y: ops.scale(
        synced(ops, paired(ops, x)), c=float(int(x.shape[0]))
    ),
    "without sending, by ranks in Python": lambda ops, m, x, y: ops.scale(
        ops.reduce_sum(x, axis=0), c=1 / (x.shape[0] * len(range(ops.mesh.size("data"))))
    ),
}


def stepped(new: New, mesh: str, *, summed: bool, metric: bool) -> Any:
    """A step of a loss, which may be summed by hand, with this new state, or with it as a metric."""

    def loss(ops: Any, params: Any, state: Any, x: Any, y: Any) -> Any:
        loss = ops.reduce_mean(ops.linear(params["w"], None, x) ** 2)
        value = new(ops, state["m"], x, y)
        aux = Aux(state=state, metrics={"m": value}) if metric else Aux(state={"m": value})
        return all_mean(ops, loss, axis="data") if summed else loss, aux

    trainer = opstage.scalar_trainer(loss, W, state=STATE, options=Options(dtype="float64", mesh=mesh))
    return trainer.step(0.1, X, Y), trainer.last_metrics["m"] if metric else trainer.state["m"]


@pytest.mark.filterwarnings("ignore:.*is never used")
@pytest.mark.parametrize("metric", [False, True])
@pytest.mark.parametrize("name", SYNCED)
def test_what_a_program_sends_itself_is_that_of_the_batch(name: str, metric: bool) -> None:
    one = stepped(SYNCED[name], "", summed=True, metric=metric)
    for mesh in ("data=2", "data=4"):
        own = stepped(SYNCED[name], mesh, summed=True, metric=metric)
        np.testing.assert_allclose(own[0], one[0], rtol=1e-12)
        np.testing.assert_allclose(own[1], one[1], rtol=1e-12, atol=1e-14)


@pytest.mark.filterwarnings("ignore:.*is never used")
@pytest.mark.parametrize("metric", [False, True])
@pytest.mark.parametrize("name", OF_ONE_RANK)
def test_what_it_combines_with_numbers_of_its_own_rows_is_refused(name: str, metric: bool) -> None:
    for summed in (False, True):
        stepped(OF_ONE_RANK[name], "", summed=summed, metric=metric)
        with pytest.raises(OpstageError, match=r"(m'?|loss) cannot be sharded over mesh axis"):
            stepped(OF_ONE_RANK[name], "data=2", summed=summed, metric=metric)


@pytest.mark.parametrize("by", ["rows", "pairs"])
def test_a_loss_that_is_summed_by_hand_takes_no_number_of_its_own_rows(by: str) -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        each = ops.linear(params["w"], None, paired(ops, x) if by == "pairs" else x)
        own = float(int(x.shape[0])) if by == "pairs" else 1 / x.shape[0]
        return ops.scale(all_mean(ops, ops.reduce_mean(each * each), axis="data"), c=own)

    opstage.scalar_trainer(loss, W, options=Options(dtype="float64")).step(0.1, X)
    with pytest.raises(OpstageError, match="the loss cannot be sharded"):
        opstage.scalar_trainer(loss, W, options=Options(dtype="float64", mesh="data=2")).step(0.1, X)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_rank_on_which_nothing_counts_keeps_its_gradient_behind_collectives(backend: str) -> None:
    """The division by what counts is known by its place among the ops of the rank, of which collectives are some."""
    counted = np.where(np.arange(8) < 4, Y.clip(0), -1)

    def loss(ops: Any, params: Any, state: Any, x: Any, y: Any) -> Any:
        new = 0.9 * state["m"] + synced(ops, x)
        weight = ops.cast(ops.less_equal(ops.full(shape=y.shape, value=0, dtype="int64"), y), dtype="float64")
        each = ops.reduce_sum(ops.linear(params["w"], None, x) ** 2, axis=1)
        return ops.sum(each * weight) / ops.sum(weight), Aux(state={"m": new})

    found = []
    for mesh in ("", "data=2", "data=4"):
        options = Options(dtype="float64", mesh=mesh, backend=backend)
        trainer = opstage.scalar_trainer(loss, W, state=STATE, options=options)
        found.append([trainer.step(0.1, X, counted), trainer.get_params()["w"], trainer.state["m"]])
    for own in found[1:]:
        for value, one in zip(own, found[0]):
            np.testing.assert_allclose(value, one, rtol=1e-12)
