"""ZeRO 3: parameters in parts, whole only where they are read, with the bits of those that are whole everywhere."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Param, derived, optim
from opstage.models import model
from opstage.ops.trees import flatten
from opstage.training import sharding
from opstage.training.state import RunningAverage
from tests.distributed.compared import adamw_steps, digest, noting, rows_of, trainer_of

RULE = optim.adamw(1e-2)
rng = np.random.default_rng(7)
X, Y = rng.standard_normal((12, 40)), rng.integers(0, 5, 12)


def network(**more: Any) -> dict[str, Any]:
    """40·37 elements, which 6 ranks cannot share equally, a tied matrix, a frozen one, a table, and small ones."""
    made = np.random.default_rng(1)
    return {
        "in": made.standard_normal((37, 40)),
        "tied": Param(made.standard_normal((37, 37)), dtype=more.get("dtype", "float32")),
        "frozen": Param(made.standard_normal((37, 37)), requires_grad=False, dtype=more.get("dtype", "float32")),
        "table": Param(np.arange(2000) % 37, requires_grad=False),
        "out": made.standard_normal((5, 37)),
        "b": np.zeros(5),
        "none": np.zeros((0, 5000)),
    }


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    h = ops.tanh(ops.linear(params["in"], None, x))
    h = ops.tanh(ops.matmul(h, ops.transpose2d(params["tied"])))  # a view of it is kept for the backward pass
    h = ops.add(h, ops.linear(params["tied"], None, h))
    h = derived.dropout(ops, ops.linear(params["frozen"], None, h), 0.2, True)
    h = ops.add(
        h,
        ops.cast(
            ops.broadcast_to(ops.slice(params["table"], axis=0, start=0, length=37), shape=h.shape), dtype=str(h.dtype)
        ),
    )
    empty = ops.reduce_sum(params["none"])
    return ops.add(ops.cross_entropy(ops.linear(params["out"], params["b"], h), y), empty)


def begun(mesh: str, zero: int, dtype: str = "float32", **more: Any) -> Any:
    params = network(dtype=dtype)
    params["again"] = params["tied"]
    options = Options(mesh=mesh, zero=zero, dtype=dtype, backend=more.pop("backend", "eager"))  # type: ignore[arg-type]
    return opstage.scalar_trainer(loss, params, options=options, **more)


def leaves(trainer: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in flatten(trainer.get_params())[0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mesh", ["data=2", "data=6"])
@pytest.mark.filterwarnings("ignore:.*never")
def test_the_bits_of_whole_parameters(mesh: str, dtype: str) -> None:
    found = set()
    for zero in (0, 2, 3):
        trainer = begun(mesh, zero, dtype)
        state = trainer.init_optim(RULE)
        losses = [trainer.advance(RULE, state, X, Y).loss.tobytes() for _ in range(3)]
        kept = [trainer.forward(X, Y).tobytes(), *[g.tobytes() for g in flatten(trainer.backward(X, Y))[0]]]
        found.add((digest(leaves(trainer)), *losses, *kept))
    assert len(found) == 1


@pytest.mark.filterwarnings("ignore:.*never")
def test_what_is_read_written_and_averaged_between_steps() -> None:
    found = set()
    for zero in (0, 3):
        trainer, average = begun("data=4", zero), RunningAverage()
        state = trainer.init_optim(RULE)
        held, before = trainer.params["in"].value, None
        for step in range(3):
            if step == 1:
                before = trainer.params["in"].value
                copy = before.copy()
                trainer.set_params({**trainer.get_params(), "out": np.ones((5, 37))})
            trainer.advance(RULE, state, X, Y)
            trainer.average(average, 0.5)
        assert before is not None and (before == copy).all() and not (before == held).all()
        scores = trainer.evaluate(lambda ops, params, x, y: ops.linear(params["in"], None, x), X, Y)
        averaged = trainer.evaluate_at(average, lambda ops, params, x, y: params["in"], X, Y)
        exported = trainer.export_average(average)
        assert (exported["in"] == averaged).all()
        found.add(digest([scores, *exported.values(), *leaves(trainer), *trainer.export().params.values()]))
    assert len(found) == 1


@pytest.mark.parametrize("name", [pytest.param("cnn", marks=pytest.mark.slow), "lstm", "resnet"])
@pytest.mark.filterwarnings("ignore:.*never")
def test_shipped_models_have_the_same_bits(name: str) -> None:
    """With loops over time, and with running statistics."""
    made = model(name)
    batches = [rows_of(made.batch, np.random.default_rng(0), 4)] * 2
    whole, sharded = (trainer_of(made, Options(mesh="data=2", zero=zero)) for zero in (0, 3))
    assert digest(adamw_steps(whole, batches)[1]) == digest(adamw_steps(sharded, batches)[1])


@pytest.mark.filterwarnings("ignore:.*never")
def test_in_parts_of_a_batch() -> None:
    assert len({digest(_accumulated(zero)) for zero in (0, 2, 3)}) == 1


def _accumulated(zero: int) -> list[Any]:
    trainer = opstage.scalar_trainer(
        lambda ops, p, x, y: ops.cross_entropy(ops.linear(p["w"], None, x), y, ignore_index=3),
        {"w": np.random.default_rng(2).standard_normal((30, 40))},
        options=Options(mesh="data=2", zero=zero),
        accumulate=3,
    )
    state = trainer.init_optim(RULE)
    for _ in range(2):
        trainer.advance(RULE, state, X, Y)
    return leaves(trainer)


@pytest.mark.filterwarnings("ignore:.*never")
def test_no_two_are_whole_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step gathers a parameter again where the backward pass reads it, and leaves parts."""
    made: list[Any] = []
    trainer = begun("data=2", 3)
    state = trainer.init_optim(RULE)
    trainer.advance(RULE, state, X, Y)
    noting(monkeypatch, sharding.LazyGathers, "compute_forward", lambda *call: made.append(call))
    trainer.advance(RULE, state, X, Y)
    assert len(made) > 5
    gc.collect()
    kept = {name: ref.shape for name, ref in zip(trainer._state.names, trainer._state.values())}
    assert kept["in"] == (740,) and kept["frozen"] == (685,) and kept["out"] == (5, 37) and kept["table"] == (2000,)
