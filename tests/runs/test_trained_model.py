"""A run is a model: it predicts, is judged and exported, and says what is wrong with it where it cannot."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage import OpstageError, Options, Spec, UsageError
from opstage.data import digits, from_arrays
from opstage.models import mlp, model, resnet
from opstage.runs import RunSettings, Settings, configure, train
from opstage.runs.export import export
from opstage.runs.predictions import write_predictions
from opstage.runs.settings import configure_resumed
from opstage.runs.trained_model import Trained, load


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    train(Settings(run=RunSettings(model="mlp", epochs=2, out=path), model=mlp.Config(hidden=(16,))))
    return path


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(run, tmp_path / "copy"))


IMAGES = digits()["x"]


def by_hand(trained: Trained, x: Any) -> Any:
    """The class probabilities of the run's mlp, in NumPy's float64."""
    first, last = trained.trainer.get_params()["layers"]
    h = np.maximum(x.reshape(len(x), -1) @ first["weight"].T.astype(float) + first["bias"], 0)
    z = h @ last["weight"].T.astype(float) + last["bias"]
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize(("rows", "at_once"), [(1, 1024), (7, 3), (100, 100), (300, 64)])
def test_predictions_are_the_models_at_every_number_of_rows(run: Path, backend: str, rows: int, at_once: int) -> None:
    trained = load(run, options=Options(backend=backend))
    found = trained.predict(IMAGES[:rows], rows=at_once)
    assert found["probabilities"].shape == (rows, 10)
    assert np.allclose(found["probabilities"], by_hand(trained, IMAGES[:rows]), rtol=1e-4, atol=1e-6)
    assert np.array_equal(found["class"], found["probabilities"].argmax(axis=1))


def test_it_says_what_it_is(run: Path) -> None:
    trained = load(run)
    accuracy = trained.results[-1].held_out["accuracy"]
    shown = repr(trained)
    assert shown.startswith("Trained(mlp; 2 epochs; held-out accuracy ") and shown.endswith(f"; kept in {run})")
    assert f"accuracy {100 * accuracy:.2f} %" in shown


def test_lists_are_the_same_before_and_after_a_quick_call_is_made(run: Path) -> None:
    predictor = load(run, options=Options(backend="compiled")).predictor
    rows = (np.arange(64.0).reshape(1, 8, 8) % 16).reshape(IMAGES[:1].shape)
    whole: Any = rows.astype(int).tolist()
    for given in (rows, rows.tolist(), whole, whole, rows):
        assert np.array_equal(predictor(given)["probabilities"], predictor(rows)["probabilities"])
    for bad in ([[1.0], [2.0, 3.0]], [["a"]], [], [None]):
        with pytest.raises(OpstageError):
            predictor(bad)


def test_inputs_by_name_as_lists_and_as_a_dataset_are_the_same(run: Path) -> None:
    trained = opstage.load(run)
    expected = trained.predict(IMAGES[:4])["probabilities"]
    for given in ({"x": IMAGES[:4], "y": np.arange(4)}, from_arrays(y=np.arange(4), x=IMAGES[:4]), IMAGES[:4].tolist()):
        assert np.array_equal(trained.predict(given)["probabilities"], expected)
    assert np.array_equal(trained.predict(x=IMAGES[:4])["probabilities"], expected)


def test_predictions_are_those_of_the_parameters_as_they_are(run: Path) -> None:
    trained = load(run, options=Options(backend="compiled"))
    before = trained.predict(IMAGES[:2])["probabilities"]
    trained.trainer.set_params(opstage.init.build(trained.model.init, seed=9))
    after = trained.predict(IMAGES[:2])["probabilities"]
    assert not np.array_equal(before, after)
    assert np.allclose(after, by_hand(trained, IMAGES[:2]), rtol=1e-4)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((IMAGES[:2, 0],), "x has shape|rank"),
        ((IMAGES[:2], IMAGES[:2]), "predicts from x, but got 2 inputs"),
        ((), "x is missing"),
        ((IMAGES[:0],), "B is 0"),
        ((np.zeros((2, 1, 8, 8), bool),), "x is bool"),
        ((np.zeros((2, 1, 8, 8), np.uint8),), "x is uint8"),
    ],
)
def test_inputs_that_do_not_fit_are_errors(run: Path, inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(opstage.OpstageError, match=message):
        load(run).predict(*inputs)


def test_judge_warns_at_the_users_line_and_evaluates_a_dataset(run: Path) -> None:
    trained = load(run)
    rows = trained.prepared_rows()
    with pytest.warns(DeprecationWarning, match=r"use Trained\.evaluate_dataset") as caught:
        found = trained.judge(rows)
    assert found == trained.evaluate_dataset(rows) == trained.evaluate()
    assert caught[0].filename == __file__


def test_a_run_is_judged_by_what_it_held_out(run: Path, copy: Path) -> None:
    last = (run / "metrics.jsonl").read_text().splitlines()[-1]
    found = load(run).evaluate()
    assert f'"accuracy": {found["accuracy"]}' in last
    text = (copy / "run.json").read_text()
    (copy / "run.json").write_text(text.replace('"rows": 359', '"rows": 358'))
    with pytest.raises(UsageError, match="held-out data are not those of mlp now"):
        load(copy).evaluate()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.toml", "use: expected a run, but config.toml is missing"),
        ("checkpoint/checkpoint.json", "without parameters"),
    ],
)
def test_a_run_that_is_not_whole_is_refused(copy: Path, name: str, message: str) -> None:
    (copy / name).unlink()
    with pytest.raises(UsageError, match=message):
        load(copy)
    with pytest.raises(UsageError, match="the run directory does not exist"):
        load(copy / "nowhere")


def test_the_best_epoch_and_the_moving_average(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "run"
    values = {
        "run": {"epochs": 3, "out": out},
        "model": {"hidden": (16,)},
        "callbacks": {"best": "accuracy", "ema": 0.9},
    }
    results = train(configure("mlp", values=values, environ={})).results
    best = max(results, key=lambda result: result.held_out["accuracy"]).held_out["accuracy"]
    assert load(out, which="best").evaluate()["accuracy"] == best
    last = results[-1].held_out
    average = load(out, which="ema").evaluate()
    assert {f"ema_{name}": value for name, value in average.items()}.items() <= last.items()
    assert load(out).evaluate()["loss"] == last["loss"] != average["loss"]
    for which, message in [
        ("best", "lacks a best epoch"),
        ("ema", "lacks a moving average"),
        ("emma", "mean 'ema'"),
    ]:
        with pytest.raises(UsageError, match=message):
            load(run, which=which)


@pytest.mark.parametrize(("setting", "other"), [("hidden = [16]", "hidden = [17]"), ("dropout = 0.2", "dropout = 0.3")])
def test_a_configuration_of_another_model_is_refused(copy: Path, setting: str, other: str) -> None:
    text = (copy / "config.toml").read_text()
    assert setting in text
    (copy / "config.toml").write_text(text.replace(setting, other))
    with pytest.raises(UsageError, match=rf"has model.{re.escape(other)}, but the run was trained with"):
        load(copy)


def test_a_checkpoint_of_another_model_is_refused(copy: Path, tmp_path: Path) -> None:
    values = {"run": {"epochs": 1, "out": tmp_path / "wide"}, "model": {"hidden": (17,)}}
    train(configure("mlp", values=values, environ={}))
    shutil.rmtree(copy / "checkpoint")
    shutil.copytree(tmp_path / "wide" / "checkpoint", copy / "checkpoint")
    with pytest.raises(UsageError, match=r"has model.hidden = \[16\], but the run was trained with \[17\]"):
        load(copy)


def test_the_onnx_model_takes_inputs_alone_and_gives_our_numbers(run: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    trained = load(run)
    export(trained, tmp_path / "m.onnx", "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert [i.name for i in session.get_inputs()] == ["x"]
    for rows in (1, 33):
        x = IMAGES[:rows].astype(np.float32)
        found = dict(zip(("class", "probabilities"), session.run(["class", "probabilities"], {"x": x})))
        expected = trained.predict(x)
        assert np.allclose(found["probabilities"], expected["probabilities"], rtol=1e-4, atol=1e-6)
        assert np.array_equal(found["class"], expected["class"])


def test_rows_that_are_predicted_from_other_rows_are_not_predicted_in_parts() -> None:
    def outputs(ops: Any, w: Any, x: Any) -> Any:
        return ops.linear(w, None, x - ops.reduce_mean(x, axis=0, keepdims=True))

    def loss(ops: Any, w: Any, x: Any, y: Any) -> Any:
        return ops.mse_loss(outputs(ops, w, x), y)

    made = opstage.Model("m", None, np.ones((1, 2)), loss, None, (Spec("B 2"), Spec("B 1")), outputs=outputs)
    x = np.random.default_rng(0).normal(size=(20, 2))
    trained = opstage.fit(made, {"x": x, "y": x[:, :1]}, epochs=1, batch_size=2, progress=False)
    assert trained.predict(x).shape == (20, 1)
    with pytest.raises(UsageError, match="predicts output of a row from the other rows too"):
        trained.predict(x, rows=5)


@pytest.mark.parametrize("stateful", [False, True])
def test_an_onnx_model_of_a_program_with_other_names(tmp_path: Path, stateful: bool) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    batch = (Spec("B 2"), Spec("B 1"))
    if stateful:
        made = opstage.Model(
            *("m", None, {"w": np.ones((1, 2))}),
            lambda ops, p, s, x, y: (ops.mse_loss(ops.linear(p["w"], None, x), y), opstage.Aux(state=s)),
            *(None, batch, {"k": np.ones((2, 1))}),
            outputs=lambda ops, weights, kept, x: ops.matmul(x * weights["w"], kept["k"]),
        )
    else:
        made = opstage.Model(
            *("m", None, np.ones((1, 2)), lambda ops, p, x, y: ops.mse_loss(ops.linear(p, None, x), y), None, batch),
            outputs=lambda ops, weights, x: ops.linear(weights, None, x),
        )
    data = {"x": np.ones((8, 2)), "y": np.ones((8, 1))}
    trained = opstage.fit(made, data, epochs=1, batch_size=2, progress=False)
    export(trained, tmp_path / "m.onnx", "onnx")
    assert [each.name for each in onnx.load(tmp_path / "m.onnx").graph.input] == ["x"]


def _as_floats(ops: Any, w: Any, x: Any) -> Any:
    return w * ops.cast(x, dtype="float32")


EXPORTED: dict[str, tuple[dict[str, Spec], dict[str, Any], Any]] = {
    # Specs of the inputs, their arrays, outputs from (ops, w, inputs)
    "bytes": ({"x": Spec("B 2", "int64")}, {"x": np.ones((8, 2), np.uint8)}, _as_floats),
    "int16": ({"x": Spec("B 2", "int64")}, {"x": np.ones((8, 2), np.int16)}, _as_floats),
    "int32": ({"x": Spec("B 2", "int32")}, {"x": np.ones((8, 2), np.int64)}, _as_floats),
    "mask": ({"x": Spec("B 2", "bool")}, {"x": np.eye(8, 2) > 0}, lambda ops, w, x: ops.select(x, w * 2.0, w)),
    "float64": ({"x": Spec("B 2")}, {"x": np.eye(8, 2)}, lambda ops, w, x: w * x),
    "several": (
        {"x": Spec("B 2"), "k": Spec("B", "int32")},
        {"x": np.eye(8, 2), "k": np.arange(8) % 2},
        lambda ops, w, x, k: {"a/b": w * x, "whole": k + k, "is": ops.equal(k, k), "x": ops.gather_vec(w[0], k)},
    ),
    "an infinity": ({"x": Spec("B 2")}, {"x": np.eye(8, 2)}, lambda ops, w, x: ops.log(ops.relu(w * x))),
    "a size twice another": (
        {"x": Spec("B 2"), "z": Spec("B 2*T")},
        {"x": np.eye(8, 2), "z": np.ones((8, 6))},
        lambda ops, w, x, z: w * x + ops.reduce_sum(z, axis=1, keepdims=True),
    ),
}


@pytest.mark.parametrize("given", EXPORTED.values(), ids=EXPORTED)
@pytest.mark.parametrize("kept", [True, False], ids=["held out", "made up"])
def test_onnx_models_have_inputs_and_outputs_of_every_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, kept: bool
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    specs, arrays, program = given

    def outputs(ops: Any, w: Any, *inputs: Any) -> Any:
        return program(ops, ops.broadcast_to(w, shape=(inputs[0].shape[0], 2)), *inputs)

    def loss(ops: Any, w: Any, *inputs: Any) -> Any:
        return ops.mse_loss(ops.broadcast_to(w[:, 0], shape=inputs[-1].shape), inputs[-1])

    one = inspect.Parameter
    for function, names in ((outputs, [*specs]), (loss, [*specs, "y"])):
        parameters = [one(name, one.POSITIONAL_OR_KEYWORD) for name in ("ops", "w", *names)]
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made = opstage.Model("m", None, np.ones((1, 2)), loss, None, (*specs.values(), Spec("B")), outputs=outputs)
    trained = opstage.fit(made, {**arrays, "y": np.ones(8)}, epochs=1, batch_size=2, progress=False, held_out=0.5)
    if not kept:
        monkeypatch.setattr(Trained, "prepared_rows", _without_data)
    export(trained, tmp_path / "m.onnx", "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    dtypes = {"tensor(float)": "float32", "tensor(int32)": "int32", "tensor(int64)": "int64", "tensor(bool)": "bool"}
    feed = {each.name: np.asarray(arrays[each.name], dtypes[each.type]) for each in session.get_inputs()}
    expected = optree.tree_leaves(trained.predict(*[feed.get(name, arrays[name]) for name in specs]))
    for ours, theirs in zip(expected, session.run(None, feed), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-5)
        assert theirs.dtype == ours.dtype


def _without_data(_: Trained) -> Any:
    raise UsageError("the data were given in Python")


def test_a_model_that_onnxruntime_refuses_or_computes_otherwise_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")

    def refusing(*_: Any, **__: Any) -> Any:
        raise onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented("no kernel for Gelu")

    trained = load(run)
    with monkeypatch.context() as refused:
        refused.setattr(onnxruntime, "InferenceSession", refusing)
        with pytest.raises(UsageError, match=r"cannot run the model, so nothing is written: .*no kernel"):
            export(trained, tmp_path / "m.onnx", "onnx")
    honest = trained.predictor.__call__
    wrong = lambda *inputs: {**honest(*inputs), "probabilities": honest(*inputs)["probabilities"] + 0.01}  # noqa: E731
    monkeypatch.setattr(type(trained.predictor), "__call__", lambda self, *inputs: wrong(*inputs))
    with pytest.raises(UsageError, match="another probabilities"):
        export(trained, tmp_path / "m.onnx", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_model_with_state_predicts_by_its_running_statistics(tmp_path: Path) -> None:
    small = resnet.Config(channels=(4,), blocks=1)
    out = tmp_path / "run"
    train(Settings(run=RunSettings(model="resnet", epochs=1, out=out), model=small))
    trained = load(out)
    alone = trained.predict(IMAGES[:1])["probabilities"]
    beside = trained.predict(IMAGES[:50])["probabilities"]
    assert np.allclose(alone, beside[:1], rtol=1e-4)
    export(trained, tmp_path / "m.onnx", "onnx")


def test_outputs_without_rows_are_not_put_together() -> None:
    from opstage.training.predictor import Predictor

    made = model("mlp")
    whole = opstage.models.Model(
        "whole", None, {"w": opstage.Declaration((3,), opstage.init.zeros)}, lambda ops, p, x: ops.sum(x), None,
        (Spec("B 3"),), outputs=lambda ops, p, x: {"sum": ops.sum(x)},
    )  # fmt: skip
    trainer = opstage.scalar_trainer(whole.loss, {"w": np.zeros(3)}, options=Options(validate=False))
    predict = Predictor(whole, trainer)
    assert predict(np.ones((4, 3)))["sum"] == 12
    with pytest.raises(UsageError, match=r"output\.sum of shape \(\), which lacks an axis of B rows"):
        predict(np.ones((4, 3)), rows=2)
    silent = opstage.models.Model("silent", None, made.init, made.loss, made.metrics, made.batch)
    with pytest.raises(UsageError, match="silent predicts nothing"):
        Predictor(silent, trainer)


def test_predictions_in_files(tmp_path: Path) -> None:
    outputs = {"class": np.array([1, 0]), "probabilities": np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)}
    assert write_predictions(tmp_path / "p.csv", outputs, ("cat", "dog, brown")) == 2
    assert (tmp_path / "p.csv").read_text() == (
        'class,probabilities.cat,"probabilities.dog, brown"\n"dog, brown",0.25,0.75\ncat,0.5,0.5\n'
    )
    write_predictions(tmp_path / "p.npz", outputs, ("cat", "dog"))
    with np.load(tmp_path / "p.npz") as file:
        assert file["class"].tolist() == ["dog", "cat"]
        assert np.array_equal(file["probabilities"], outputs["probabilities"])
    for path, given, message in [
        ("p.txt", outputs, "predictions are written as .csv or .npz"),
        ("q.csv", {"image": np.zeros((2, 3, 3))}, "which does not fit a table"),
        ("q.csv", {"a": np.zeros(2), "b": np.zeros(3)}, "expected outputs with a row for each prediction"),
        ("no/q.csv", outputs, "no/q.csv"),
        ("q.npz", {"file": np.zeros(2)}, "another name"),
    ]:
        with pytest.raises(UsageError, match=message):
            write_predictions(tmp_path / path, given)
        assert not (tmp_path / path).exists()


def test_half_a_run_is_refused(opstage_csv: Path, tmp_path: Path) -> None:
    values = {
        "run": {"epochs": 1, "out": tmp_path / "run"},
        "data": {"file": opstage_csv, "scale": "standard", "batch_size": 8},
        "model": {"inputs": (2,), "classes": 2, "hidden": (4,)},
    }
    train(configure("mlp", values=values, environ={}))

    def copied(name: str) -> Path:
        return Path(shutil.copytree(tmp_path / "run", tmp_path / name))

    lost, without, changed, untrained = map(copied, ("lost", "without", "changed", "untrained"))
    (lost / "preparation.json").unlink()
    (without / "run.json").unlink()
    text = (changed / "preparation.json").read_text()
    (changed / "preparation.json").write_text(text.replace('"center": [', '"center": [9,'))
    shutil.rmtree(untrained / "checkpoint")
    missing = "is missing, without which the run's data cannot be read in the same way"
    for directory, message in ((lost, missing), (without, r"run\.json: is missing"), (changed, "has changed, without")):
        with pytest.raises(UsageError, match=message):
            load(directory)
    for directory, message in ((lost, missing), (untrained, "has trained, but its checkpoint is missing")):
        with pytest.raises(UsageError, match=message):
            train(configure_resumed(directory, environ={}), resume=True)


def test_a_run_of_another_version_is_said(copy: Path) -> None:
    described = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**described, "versions": {"opstage": "9.9.9"}}))
    with pytest.warns(UserWarning, match=r"was started with Opstage 9\.9\.9 and this is"):
        load(copy)
    with pytest.warns(UserWarning, match=r"was started with Opstage 9\.9\.9 and this is"):
        train(configure_resumed(copy, environ={}), resume=True)


@pytest.fixture
def opstage_csv(tmp_path: Path) -> Path:
    rows = "".join(f"{i % 7},{i % 5},{'ab'[i % 2]}\n" for i in range(60))
    (tmp_path / "rows.csv").write_text(f"one,two,y\n{rows}")
    return tmp_path / "rows.csv"
