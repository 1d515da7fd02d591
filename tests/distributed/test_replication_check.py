"""The step of a rank, proved for every number of ranks: what differs, what is sent, what is kept; and its mutants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, optim
from opstage.distributed.ranks import Ranks, on_mesh
from opstage.distributed.replication_check import Fault, agreement, require_replicated
from opstage.interpreters.registry import make_interpreter
from opstage.interpreters.shape_check.report import Report
from opstage.models import gpt, model
from opstage.ops.body import Body
from opstage.ops.dims import evaluate as at
from opstage.training.validate import check_planned_step, check_step
from opstage.transforms.tracer import constants, evaluate
from tests.distributed import test_bodies
from tests.distributed.compared import noting
from tests.distributed.mutants import mutants

MODELS = ("mlp", "cnn", "gpt", "lstm", "vit", "resnet", "unet", "vae", "pinn")
SMALL = gpt.Config(width=8, depth=1, heads=2, hidden=8, length=4)


def checked(name: str, mesh: str, rows: int | None = None, rule: Any = None) -> Report:
    """The report on a step of a shipped model; with `rows`, for batches of so many, in numbers alone."""
    made = model(name, SMALL) if name == "gpt" else model(name)
    batch = made.batch
    if rows is not None:
        sizes = [[int(e) if str(e).isdecimal() else rows for e in spec.entries] for spec in batch]
        batch = tuple(Spec(tuple(shape), spec.dtype) for shape, spec in zip(sizes, batch))
    how = Options(mesh=mesh, dtype="float64")
    return check_step(made.loss, made.init, *batch, state=made.state, options=how, optimizer=rule or optim.adamw())


@pytest.mark.parametrize("name", MODELS)
def test_the_step_is_right_for_every_number_of_ranks(name: str) -> None:
    report = checked(name, "data=N")
    assert report.ok and not report.conditions
    assert "B % N == 0" in str(report)
    numbers = checked(name, "data=4")
    assert numbers.ok
    sizes = {"N": 4, "B": 8, "T": 4}
    assert at(report.traffic.sent, sizes) == at(numbers.traffic.sent, sizes)
    assert [s[:3] for s in report.traffic.sendings] == [s[:3] for s in numbers.traffic.sendings]
    assert "B" not in str(report.traffic.sent)  # what is broadcast to the rows is summed at its own size
    assert report.traffic.fingerprint == checked(name, "data=N").traffic.fingerprint


def test_the_calls_are_those_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Counter[str]()
    noting(monkeypatch, Ranks, "collective", lambda found, this, primitive, *more: made.update([primitive.name]))
    trainer = opstage.scalar_trainer(
        _loss, {"w": np.ones((3, 5))}, Spec("B 5"), Spec("B", "int64"), options=Options(mesh="data=4")
    )
    trainer.step(0.1, np.ones((8, 5)), np.zeros(8, np.int64))
    told = check_step(_loss, {"w": (3, 5)}, Spec("B 5"), Spec("B", "int64"), options=Options(mesh="data=N"))
    assert {s.name: s.calls for s in told.traffic.sendings} == {"all_reduce": made["all_reduce"]}


def _loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.cross_entropy(ops.linear(params["w"], None, x), y)


def test_rows_that_cannot_be_shared() -> None:
    params = {"w": (3, 5)}
    report = check_step(_loss, params, Spec("6 5"), Spec("6", "int64"), options=Options(mesh="data=4"))
    assert not report.ok
    assert "its axis 0 has 6, which 4 ranks of mesh axis 'data' cannot share equally" in str(report)
    some = check_step(_loss, params, Spec("6 5"), Spec("6", "int64"), options=Options(mesh="data=N"))
    assert some.ok and "6 % N == 0" in str(some)
    held = check_step(_loss, params, Spec("2*K 5"), Spec("2*K", "int64"), options=Options(mesh="data=2"))
    assert held.ok and not held.conditions


def test_a_name_is_for_checks_alone() -> None:
    with pytest.raises(opstage.UsageError, match=r"mesh data=N: N may be any number; a run needs one, such as data=2"):
        opstage.scalar_trainer(_loss, {"w": np.ones((3, 5))}, options=Options(mesh="data=N"))


def _unjoined(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.reduce_max(ops.reshape(ops.linear(params["w"], None, x), shape=(-1,)), axis=0)


def _sums_what_is_alike(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.reduce_sum(ops.all_reduce(ops.all_reduce(ops.linear(params["w"], None, x), axis="data"), axis="data"))


@pytest.mark.parametrize(
    "loss, message",
    [(_unjoined, "cannot be sharded over mesh axis"), (_sums_what_is_alike, "all ranks of mesh axis 'data' have")],
)
def test_a_wrong_program_is_named(loss: Any, message: str) -> None:
    specs = Spec("B 5"), Spec("B", "int64")
    report = check_step(loss, {"w": (3, 5)}, *specs, options=Options(mesh="data=N"))
    assert not report.ok and message in str(report)


# Mutants ------------------------------------------------------------------------------------------------------------


def _run(body: Body, arrays: list[Any], mesh: str) -> list[Any]:
    """The values of every output on every rank."""
    how = Options(mesh=mesh, dtype="float64")
    ops = on_mesh(make_interpreter(how), how)
    assert isinstance(ops, Ranks)

    def program(ranks: Any, *refs: Any) -> tuple[Any, ...]:
        return tuple(evaluate(ranks, body, refs, constants(ranks, body)))

    outs = ops.execute_each(program, tuple(map(ops.put, arrays)), 1)
    return [np.asarray(ops.inner.get(value)) for out in outs for value in out.values]


@pytest.mark.parametrize(
    "name, mesh, rule",
    [
        pytest.param(name, mesh, rule, id=f"{name}-{mesh}-{called}", marks=marks)
        for called, rule in (("sgd", optim.sgd(0.1)), ("adamw", optim.adamw(0.1)))
        for name, mesh, marks in (
            ("mlp", "data=2", ()),
            ("gpt", "data=2", pytest.mark.slow if called == "adamw" else ()),
            ("gpt", "data=2,model=2", pytest.mark.slow if called == "adamw" else ()),
            ("pinn", "data=2", ()),
        )
    ],
)
def test_a_wrong_collective_is_refuted_or_moves_no_number(name: str, mesh: str, rule: Any) -> None:
    graph = checked(name, mesh, rows=4, rule=rule).graph
    refuted = _refuted(graph, mesh, {})
    assert refuted > len([e for e in graph.body.equations if e.primitive.name == "all_reduce"]) * 2


@pytest.mark.parametrize(
    "loss, mesh",
    [
        (test_bodies.repeated, "data=2,model=2"),
        (test_bodies.stacked, "data=2,model=2"),
        (test_bodies.normalized, "data=2"),
        (test_bodies.pipeline, "data=2,stage=2"),
        (test_bodies.chosen, "data=2,model=2"),
    ],
)
def test_a_wrong_collective_in_a_loop(loss: Any, mesh: str) -> None:
    params = {"w": (4, 4), "b": (4,)} if loss is not test_bodies.pipeline else {"layers": (4, 4, 4), "b": (4,)}
    how = Options(mesh=mesh, dtype="float64")
    report = check_step(loss, params, Spec("4 4"), optimizer=optim.sgd(0.1), options=how)
    assert report.ok
    assert _refuted(report.graph, mesh, {}) > 4


@pytest.mark.parametrize("zero", [2, 3])
def test_a_wrong_collective_beside_what_is_in_parts(zero: int) -> None:
    made, sizes = model("gpt", SMALL), Spec("4 4", "int64")
    how = Options(mesh="data=2", zero=zero, dtype="float64")
    report, step = check_planned_step(made.loss, made.init, sizes, sizes, optimizer=optim.adamw(), options=how)
    # of the table of bytes and of the head two moments each, and with level 3 themselves
    assert step is not None and len(step.kept) == (4 if zero == 2 else 6)
    assert _refuted(report.graph, "data=2", step.kept) > 20
    moments = r"slots\.bytes\.0 differs between the ranks of mesh axis 'data'"
    with pytest.raises(Fault, match=moments if zero == 2 else "all ranks of mesh axis 'data' have the same x"):
        _prove(report.graph.body, report.graph, {})


def _prove(body: Body, graph: Any, kept: Mapping[str, str]) -> None:
    inputs = {i: kept[name] for i, name in enumerate(graph.input_names) if name in kept}
    require_replicated(agreement(body, inputs), graph.output_names, kept)


def _refuted(graph: Any, mesh: str, kept: Mapping[str, str]) -> int:
    """How many mutants the proof refutes; every other one must leave each number of each rank as it is."""
    body, rng, refuted = graph.body, np.random.default_rng(0), 0
    arrays = [
        rng.uniform(0.1, 1, t.shape) if t.dtype.kind == "f" else rng.integers(0, 8, t.shape) for t in body.input_types
    ]
    right = _run(body, arrays, mesh)
    for what, mutant in mutants(body):
        try:
            _prove(mutant, graph, kept)
        except Fault:
            refuted += 1
            continue
        for found, expected in zip(_run(mutant, arrays, mesh), right, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12, err_msg=what)
    return refuted
