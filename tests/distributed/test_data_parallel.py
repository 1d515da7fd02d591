"""Training on a mesh: the numbers of one rank, of losses that are sums, means, and means of what counts."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, optim
from opstage.distributed.ranks import Ranks
from opstage.models import mlp, model
from opstage.ops.collective import ALL_REDUCE
from opstage.ops.trees import flatten
from tests.distributed.compared import adamw_steps, assert_close, digest, noting, rows_of, trainer_of
from tests.distributed.compared import trained as trained_by_sgd

MODELS = ("mlp", "cnn", "gpt", "lstm", "vit", "resnet", "unet", "vae", "pinn")
ROWS = 8

pytestmark = pytest.mark.filterwarnings("ignore:.*is never used")


def trained(name: str, mesh: str, steps: int = 2, **options: Any) -> tuple[list[float], Any]:
    """Losses of a shipped model's steps, and its parameters and state after them."""
    made, rng = model(name), np.random.default_rng(0)
    trainer = trainer_of(made, Options(dtype="float64", mesh=mesh, **options))
    return adamw_steps(trainer, [rows_of(made.batch, rng, ROWS) for _ in range(steps)])


@pytest.mark.parametrize("name", MODELS)
def test_a_mesh_gives_the_numbers_of_one_rank(name: str) -> None:
    """Dropout, noise and the statistics of batches among them: they are those of the whole batch."""
    alone, leaves = trained(name, "")
    losses, of_ranks = trained(name, "data=4")
    np.testing.assert_allclose(losses, alone, rtol=1e-9)
    assert_close(of_ranks, leaves, rtol=1e-6, atol=1e-7)


def test_two_runs_have_the_same_bits() -> None:
    assert digest(trained("mlp", "data=4")[1]) == digest(trained("mlp", "data=4")[1])


@pytest.mark.parametrize("name", ["mlp", pytest.param("lstm", marks=pytest.mark.slow), "resnet"])
def test_a_compiled_step_of_all_ranks_is_one_program(name: str) -> None:
    eager, leaves = trained(name, "data=2")
    compiled, others = trained(name, "data=2", steps=2, backend="compiled")
    np.testing.assert_allclose(compiled, eager, rtol=1e-12)
    assert_close(others, leaves, rtol=1e-9, atol=1e-12)


X = np.random.default_rng(1).standard_normal((8, 3))
LABELS = np.array([0, -100, -100, 2, 1, 0, -100, 1])


def _mean(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.reduce_mean(ops.linear(params["w"], None, x))


def _counted(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.cross_entropy(ops.linear(params["w"], None, x), y)


def _mixed(ops: Any, params: Any, x: Any, y: Any) -> Any:
    """The largest of the rows: no sum of terms of them."""
    return ops.reduce_max(ops.reshape(ops.linear(params["w"], None, x), shape=(-1,)), axis=0)


def test_a_loss_that_does_not_join_is_refused() -> None:
    trainer = opstage.scalar_trainer(_mixed, {"w": np.ones((1, 3))}, options=Options(mesh="data=2", validate=False))
    with pytest.raises(opstage.UsageError, match="cannot be sharded over mesh axis 'data'"):
        trainer.step(0.1, X, LABELS)


def _centred(ops: Any, params: Any, x: Any, y: Any) -> Any:
    """Nothing of it is a term of a row alone; its collectives make it one of all ranks."""
    h = ops.linear(params["w"], None, x)
    mean = opstage.derived.all_mean(ops, ops.reduce_mean(h, axis=0), axis="data")
    apart = ops.sub(h, ops.broadcast_to(mean, shape=h.shape))
    return opstage.derived.all_mean(ops, ops.reduce_mean(ops.mul(apart, apart)), axis="data")


def test_a_loss_may_sum_over_the_ranks_itself() -> None:
    found = []
    for text in ("", "data=4"):
        trainer = opstage.scalar_trainer(_centred, {"w": np.eye(3)}, options=Options(dtype="float64", mesh=text))
        value, gradients = trainer.loss_and_backward(X, LABELS)
        found.append((value, gradients["w"]))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-13)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-12)


def test_that_the_ranks_can_share_the_rows_is_part_of_the_contract() -> None:
    how = Options(mesh="data=4")
    trainer = opstage.scalar_trainer(_mean, {"w": np.ones((1, 3))}, Spec("B 3"), Spec("B", "int64"), options=how)
    assert "B % 4 == 0" in str(trainer.report(*trainer.specs))
    trainer.step(0.1, X, LABELS)
    with pytest.raises(opstage.OpstageError, match=r"B % 4 == 0"):
        trainer.step(0.1, X[:6], LABELS[:6])
    with pytest.raises(opstage.OpstageError, match="has 6, which 4 ranks"):
        opstage.scalar_trainer(_mean, {"w": np.ones((1, 3))}, Spec("6 3"), Spec("6", "int64"), options=how)


def test_rows_that_the_ranks_cannot_share_are_an_error() -> None:
    trainer = opstage.scalar_trainer(_mean, {"w": np.ones((1, 3))}, options=Options(mesh="data=3"))
    with pytest.raises(opstage.OpstageError, match="which 3 ranks of mesh axis 'data' cannot share equally"):
        trainer.step(0.1, X, LABELS)


@pytest.mark.parametrize("backend, zero", [("eager", 0), ("compiled", 2)])
def test_accumulated_parts_are_exactly_the_large_batch(backend: str, zero: int) -> None:
    """In fractions, so that no rounding hides anything: a mean, of which the parts have other numbers of rows."""

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        apart = ops.sub(ops.linear(params["w"], None, x), y)
        return ops.reduce_mean(ops.mul(apart, apart))

    rng = np.random.default_rng(1)
    x, y = rng.integers(-5, 5, (8, 3)), rng.integers(-5, 5, (8, 342))
    found = []
    for text, parts in (("", 1), ("", 3), ("data=2", 2), ("data=4", 1)):
        how = Options(dtype="exact", mesh=text, backend=backend, zero=zero if text else 0)  # type: ignore[arg-type]
        trainer = opstage.scalar_trainer(loss, {"w": np.full((342, 3), Fraction(1, 3))}, options=how, accumulate=parts)
        trainer.step(Fraction(1, 10), *[np.vectorize(Fraction, otypes=[object])(each) for each in (x, y)])
        found.append(trainer.get_params()["w"].tolist())
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_gradients_of_all_parts_are_summed_once(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Counter[Any]()
    count = lambda found, this, primitive, refs, static: made.update([(primitive, refs[0].shape)])  # noqa: E731
    noting(monkeypatch, Ranks, "collective", count)
    options = Options(mesh="data=2", backend=backend)  # type: ignore[arg-type]
    trainer = opstage.scalar_trainer(_counted, {"w": np.eye(3)}, options=options, accumulate=2)
    trainer.step(0.1, X, LABELS)
    assert made[ALL_REDUCE, (3, 3)] == 1


def test_fit_and_its_checkpoints_know_nothing_of_the_mesh(tmp_path: Any) -> None:
    """A run of one mesh goes on on another, and predicts with none."""
    rng = np.random.default_rng(0)
    rows = {"x": rng.standard_normal((48, 4)), "y": rng.integers(0, 2, 48)}
    how = {"config": mlp.Config(inputs=(4,), classes=2), "batch_size": 8, "progress": False}
    meshes = [Options(dtype="float64", mesh=text) for text in ("data=2", "")]
    runs = [opstage.fit("mlp", rows, epochs=2, options=each, **how) for each in meshes]
    assert_close(*(flatten(run.trainer.get_params())[0] for run in runs), rtol=1e-8, atol=1e-10)
    kept = opstage.fit("mlp", rows, epochs=1, options=meshes[0], out=tmp_path / "run", **how)
    alone = opstage.load(tmp_path / "run", options=meshes[1])
    np.testing.assert_allclose(alone.predict(rows["x"])["class"], kept.predict(rows["x"])["class"])


def test_a_resumed_run_may_split_what_the_optimizer_keeps_otherwise(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    rows = {"x": rng.standard_normal((48, 40)), "y": rng.integers(0, 2, 48)}
    how = {"config": mlp.Config(inputs=(40,), classes=2), "batch_size": 8, "progress": False}
    weights = []
    for zero in (0, 2, 3):
        folder = tmp_path / str(zero)
        opstage.fit("mlp", rows, epochs=1, options=Options(mesh="data=2"), out=folder, **how)
        run = opstage.fit(
            "mlp", rows, epochs=2, options=Options(mesh="data=2", zero=zero), out=folder, resume=True, **how
        )
        weights.append([leaf.tobytes() for leaf in flatten(run.trainer.get_params())[0]])
    assert weights[0] == weights[1] == weights[2]


def test_an_optimizer_clips_by_the_norm_of_the_whole_gradient() -> None:
    norms = []
    for text in ("", "data=4"):
        trainer = opstage.scalar_trainer(
            _counted, {"w": np.eye(3)}, options=Options(dtype="float64", mesh=text), gradient_norm=True
        )
        rule = optim.sgd(0.1)
        norms.append(float(trainer.train_step(rule, trainer.init_optim(rule), X, LABELS).gradient_norm))
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-12)


def test_programs_that_predict_take_whole_batches() -> None:
    """A program with collectives, of which nobody shares out the batch, is that of one rank."""

    def outputs(ops: Any, params: Any, x: Any) -> Any:
        h = ops.linear(params["w"], None, x)
        return ops.all_reduce(h, axis="data"), ops.axis_index(axis="data")

    trainer = opstage.scalar_trainer(_mean, {"w": np.eye(3)}, options=Options(dtype="float64", mesh="data=4"))
    for rows in (X, X[:3]):
        found, index = trainer.evaluate(outputs, rows)
        np.testing.assert_array_equal(found, rows)
        assert index == 0


def _inverse(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.reduce_sum(ops.inv(ops.linear(params["w"], None, x)))


def test_a_nan_on_any_rank_is_found() -> None:
    rows = X.copy()
    rows[5] = 0  # on the third of four ranks
    how = Options(dtype="float64", mesh="data=4", detect_anomaly=True)
    trainer = opstage.scalar_trainer(_inverse, {"w": np.eye(3)}, options=how)
    with pytest.raises(opstage.OpstageError, match=r"inv at .*test_data_parallel.py"):
        trainer.step(0.1, rows, LABELS)


@pytest.mark.parametrize(
    "call",
    [
        lambda f, how: opstage.run(f, np.ones(2), options=how),
        lambda f, how: opstage.value_and_grad(f, np.ones(2), options=how),
        lambda f, how: opstage.compile(f, Spec("2"), options=how),
        lambda f, how: opstage.Session(how),
    ],
)
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_what_runs_on_one_rank_says_so(call: Any, backend: str) -> None:
    with pytest.raises(opstage.UsageError, match="runs the program of one rank, but the options have mesh='data=2'"):
        call(lambda ops, x: ops.sum(x), Options(mesh="data=2", backend=backend))


def _weighed(ops: Any, params: Any, x: Any, weights: Any) -> Any:
    """A mean by weights of the batch's own."""
    each = ops.reduce_sum(ops.tanh(ops.linear(params["w"], None, x)), axis=1)
    return ops.div(ops.reduce_sum(ops.mul(each, weights)), ops.reduce_sum(weights))


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize(
    "weights",
    [(3, 2, 1, 1), (3, 2, 0, 0), (0, 0, 0, 2), (3, 2, -1, -0.5), (3, 2, 1, -1)],
    ids=["plain", "a rank without", "one row", "below 0", "that add up to 0"],
)
def test_weights_of_whatever_sign(weights: tuple[float, ...], backend: str) -> None:
    """A rank, or a part of a batch, whose weights add up to 0 or less counts with its sum as any other does."""
    rows = np.random.default_rng(0).standard_normal((4, 2)), np.array(weights, np.float64)
    found = []
    for more in ({}, {"mesh": "data=2"}, {"accumulate": 2}, {"mesh": "data=2", "accumulate": 2}):
        how = {"rate": 1.0, "steps": 1, "backend": backend, **more}
        found.append(trained_by_sgd(_weighed, {"w": np.array([[0.5, -0.3], [0.2, 0.1]])}, *rows, **how))
    for (loss, w), more in zip(found, ("", "mesh", "parts", "parts"), strict=True):
        if more == "parts" and weights[2:] == (1, -1):  # a part without a mean: it is said by a number that is none
            assert np.isnan(loss)
            continue
        np.testing.assert_allclose(loss, found[0][0], rtol=1e-12)
        np.testing.assert_allclose(w, found[0][1], rtol=1e-12)


def test_batches_that_the_ranks_of_a_run_cannot_share() -> None:
    rows = {"x": np.ones((48, 4)), "y": np.zeros(48, np.int64)}
    how = {"config": mlp.Config(inputs=(4,), classes=2), "epochs": 1, "batch_size": 8, "progress": False}
    with pytest.raises(opstage.UsageError, match="share batches of 8 samples equally; give batches of 9"):
        opstage.fit("mlp", rows, options=Options(mesh="data=3"), **how)
    parts = {"run": {"accumulate": 3}}
    with pytest.raises(opstage.UsageError, match="2 ranks cannot share batches of 8 samples in 3 parts"):
        opstage.fit("mlp", rows, options=Options(mesh="data=2"), settings=parts, **how)


FLAGS = {"sum": False, "factor": 1.0}


def _switched(ops: Any, params: Any, x: Any, y: Any) -> Any:
    h = ops.linear(params["w"], None, x)
    return ops.reduce_sum(h) if FLAGS["sum"] else ops.reduce_mean(h)


def _scaled(ops: Any, params: Any, x: Any, y: Any, config: Any) -> Any:
    return ops.scale(ops.reduce_mean(ops.linear(params["w"], None, x)), c=config["factor"])


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize(
    "name, value, loss", [("sum", True, _switched), ("factor", 3.0, partial(_scaled, config=FLAGS))]
)
def test_what_a_loss_reads_of_python_may_change(
    name: str, value: Any, loss: Any, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How it joins too: a mean that becomes a sum is summed over the ranks."""
    gradients = []
    for mesh in ("", "data=2"):
        monkeypatch.setitem(FLAGS, name, {"sum": False, "factor": 1.0}[name])
        how = Options(dtype="float64", mesh=mesh, backend=backend)
        trainer = opstage.scalar_trainer(loss, {"w": np.zeros((1, 3))}, options=how)
        before = trainer.backward(X, LABELS)["w"]
        monkeypatch.setitem(FLAGS, name, value)
        gradients.append((before, trainer.backward(X, LABELS)["w"]))
    assert_close(*reversed(gradients), rtol=1e-12)
