"""Runs of tables: new rows by the names of their columns, batches that leave rows out, wrong arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import UsageError
from opstage.data import Dataset, from_csv
from opstage.models import mlp
from opstage.runs.export import _sample, metadata
from opstage.runs.run_comparison import DIFFERENT_DATA, DIFFERENT_SCALES, compare_runs, comparison_html
from opstage.runs.trained_model import Trained

X = np.random.default_rng(4).normal(size=(40, 3)).round(3)
KIND = ["cat" if row[0] > 0 else "dog" for row in X]
CONFIG = mlp.Config(inputs=(3,), classes=2, hidden=(4,))
Rows = dict[str, Any]


def written(path: Path, **columns: Any) -> Path:
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A table, and the same one with its columns in another order."""
    folder = tmp_path_factory.mktemp("tables")
    own = written(folder / "own.csv", a=X[:, 0], b=X[:, 1], c=X[:, 2], kind=KIND)
    return own, written(folder / "other.csv", c=X[:, 2], kind=KIND, a=X[:, 0], b=X[:, 1])


@pytest.fixture(scope="module", params=["file", "dataset"])
def run(request: pytest.FixtureRequest, files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    data: Any = from_csv(files[0], label="kind") if request.param == "dataset" else files[0]
    settings = {"data": {"label": "kind"}} if request.param == "file" else None
    out = tmp_path_factory.mktemp("run") / "run"
    opstage.fit("mlp", data, config=CONFIG, epochs=2, batch_size=8, settings=settings, out=out, progress=False)
    return opstage.load(out)


def test_new_rows_go_by_the_names_of_their_columns(run: Trained, files: tuple[Path, Path]) -> None:
    expected = run.predict(X)["probabilities"]
    named = {"b": X[:, 1].tolist(), "more": KIND, "c": X[:, 2], "a": X[:, 0]}
    table = from_csv(files[1], label="kind")
    turned = table.only("y", "x").take(np.arange(40))
    for given in (*files, table, turned, named, {"x": X}):
        assert np.array_equal(run.predict(given)["probabilities"], expected)
    assert run.classes == ("cat", "dog")
    labelled = {**named, "kind": KIND}
    judged = run.evaluate(files[0])
    assert judged == run.evaluate(files[1]) == run.evaluate(table) == run.evaluate(labelled)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0], "b": [1.0]}, "no column is called 'c'; the columns are a, b"),
        ({"a": ["u"], "b": [1.0], "c": [1.0]}, "row 0: column a is 'u'; expected a finite number"),
        ({"a": [1.0], "b": [1.0, 2.0], "c": [1.0]}, "column b has 2 rows, but a has 1"),
        ({"a": [[1.0]], "b": [1.0], "c": [1.0]}, "column a is float64 of shape (1, 1); expected (rows,)"),
        ({"a": [1.0, None], "b": [1.0, 1.0], "c": [1.0, 1.0]}, "column a: row 1 is missing"),
        ({"a": [1.0, np.nan], "b": [1.0, 1.0], "c": [1.0, 1.0]}, "row 1: column a is nan; expected a finite number"),
    ],
)
def test_columns_that_do_not_fit(run: Trained, columns: Rows, message: str) -> None:
    with pytest.raises(UsageError) as error:
        run.predict(columns)
    assert message in str(error.value)


def test_a_dataset_that_lacks_a_column_of_the_run(run: Trained, tmp_path: Path) -> None:
    other = from_csv(written(tmp_path / "t.csv", a=X[:, 0], bb=X[:, 1], c=X[:, 2], kind=KIND), label="kind")
    with pytest.raises(UsageError, match=r"no column is called 'b' \(did you mean 'bb'\?\)"):
        run.predict(other)


def test_datasets_hold_as_many_columns_as_arrays() -> None:
    with pytest.raises(UsageError, match="columns for 1 arrays, but 2 arrays"):
        Dataset(("x", "y"), (X, X), columns=(("a", "b", "c"),))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run.predict([["a", "b", "c"]]), "holds <U1 values; expected floats, integers or booleans"),
        (lambda run: run.predictor([["a", "b", "c"]]), "x.0.0 is 'a'; expected numbers: floats, integers or booleans"),
        (lambda run: run.predictor(np.array([[None]])), "x holds object values; expected numbers"),
        (lambda run: run.predict(X, rows="many"), "rows must be a number of rows but is 'many'"),
        (lambda run: opstage.load(run.directory, model="mlp"), "model= is a str; expected the opstage.Model that"),  # type: ignore[arg-type]
        (lambda run: opstage.load(run.directory, model=mlp), "model= is a module; expected the opstage.Model"),  # type: ignore[arg-type]
        (lambda run: opstage.load(None), "run= is None; expected the path of a run directory"),  # type: ignore[arg-type]
        (lambda run: opstage.load(run.directory, options={}), "options= is a dict; expected an opstage.Options"),  # type: ignore[arg-type]
    ],
)
def test_arguments_of_another_kind(run: Trained, call: Callable[[Trained], Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        call(run)
    assert message in str(error.value)


def test_an_exported_model_has_its_names(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from opstage.runs.export import export

    path = written(tmp_path / "t.csv", a=X[:, 0], colour=["rot", "grün"] * 20, kind=KIND)
    made = opstage.fit(
        *("mlp", path),
        config=CONFIG,
        epochs=1,
        batch_size=8,
        settings={"data": {"label": "kind", "categories": "one_hot", "scale": "standard"}},
        progress=False,
    )
    export(made, tmp_path / "m.onnx", "onnx")
    model = onnx.load(tmp_path / "m.onnx")
    found = {each.key: json.loads(each.value) for each in model.metadata_props}
    assert [part["scaling"] for part in found.pop("preparation")["parts"]] == [None, None]
    assert found == {
        "classes": ["cat", "dog"],
        "columns": {"x": ["a", "colour"]},
        "categories": {"x": {"a": [], "colour": ["grün", "rot"]}},
        "one_hot": ["x"],
    }


def test_other_scaling_of_the_same_data_is_not_other_data(files: tuple[Path, Path], tmp_path: Path) -> None:
    few = written(tmp_path / "few.csv", a=X[:30, 0], b=X[:30, 1], c=X[:30, 2], kind=KIND[:30])
    outs = []
    for data, scale in ((files[0], "none"), (files[0], "standard"), (files[0], "minmax"), (few, "minmax")):
        outs.append(tmp_path / f"{scale}{data.stem}")
        settings = {"data": {"label": "kind", "scale": scale}}
        opstage.fit("mlp", data, config=CONFIG, epochs=1, batch_size=8, settings=settings, out=outs[-1], progress=False)
    assert compare_runs(outs[:3]).remark == DIFFERENT_SCALES
    assert DIFFERENT_SCALES in comparison_html(compare_runs(outs[1:3]))
    assert compare_runs(outs[1:]).remark == DIFFERENT_DATA
    assert compare_runs(outs[:1]).remark == ""


def test_rows_that_no_batch_has_are_said_once(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = from_csv(files[0], label="kind")
    said = "each epoch leaves out 2 of the 32 samples, others each time: all batches have 10 (batch_size)"
    for size in (8, 10):
        opstage.fit("mlp", data, config=CONFIG, epochs=2, batch_size=size)
        assert capsys.readouterr().out.count(said) == (size == 10)
    with pytest.raises(UsageError) as error:
        opstage.fit("mlp", data, config=CONFIG, epochs=1, batch_size=33, progress=False)
    assert str(error.value) == (
        "batch_size=33 is larger than the dataset, which has 32 rows; expected at most 32: --batch-size 32, in Python "
        "batch_size=32 (8 rows more are held out)"
    )


@pytest.mark.parametrize("as_pair", [True, False])
def test_held_out_rows_are_read_as_those_to_train_on(files: tuple[Path, Path], tmp_path: Path, as_pair: bool) -> None:
    dogs = [i for i, kind in enumerate(KIND) if kind == "dog"]  # alone they would be class 0
    other = written(tmp_path / "dogs.csv", c=X[dogs, 2], kind=["dog"] * len(dogs), a=X[dogs, 0], b=X[dogs, 1])
    training, held_out = (from_csv(path, label="kind") for path in (files[0], other))
    given: Rows = {"data": (training, held_out)} if as_pair else {"data": training, "held_out": held_out}
    run = opstage.fit("mlp", **given, config=CONFIG, epochs=1, batch_size=8, progress=False)
    assert run.results[-1].held_out == run.evaluate(other) == run.evaluate()
    found = run.predict(X[dogs])["class"]
    assert run.results[-1].held_out["accuracy"] == np.mean(found == 1)


def test_images_and_classes_that_are_at_hand_are_read_as_those_of_a_folder() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(24) % 3
    x = (rng.integers(0, 60, (24, 1, 2, 2)) + 90 * y[:, None, None, None]).astype(np.uint8)
    training = Dataset(("x", "y"), (x, y), classes=("ant", "mule", "zebra"))
    held_out = Dataset(("x", "y"), (x[y > 0], y[y > 0] - 1), classes=("mule", "zebra"))
    config = mlp.Config(inputs=(1, 2, 2), classes=3, hidden=(8,))
    run = opstage.fit("mlp", (training, held_out), config=config, epochs=5, batch_size=8, progress=False)
    assert run.classes == ("ant", "mule", "zebra")
    found = run.predict(x)["class"]
    assert run.results[-1].held_out["accuracy"] == np.mean(found[y > 0] == y[y > 0]) > 0
    assert np.array_equal(run.predict(x / 255)["class"], found)
    assert run.evaluate(held_out) == run.results[-1].held_out
    found = metadata(run)
    assert json.loads(found.pop("preparation"))["form"] == "images"
    assert found == {"classes": '["ant", "mule", "zebra"]', "bytes": '["x"]'}


def test_rows_that_were_given_are_not_there_to_judge_by(files: tuple[Path, Path], tmp_path: Path) -> None:
    def loss(ops: Any, w: Any, x: Any, y: Any) -> Any:
        return ops.cross_entropy(ops.linear(w, None, x), y)

    batch = (opstage.Spec("B 3"), opstage.Spec("B", dtype="int64"))
    model = opstage.Model("m", None, np.ones((2, 3)), loss, None, batch)
    data = from_csv(files[0], label="kind")
    opstage.fit(model, data, epochs=1, batch_size=8, out=tmp_path / "m", progress=False)
    opstage.fit("mlp", data, config=CONFIG, epochs=1, batch_size=8, out=tmp_path / "mlp", progress=False)
    for name, own in (("m", model), ("mlp", None)):
        run = opstage.load(tmp_path / name, model=own)
        with pytest.raises(UsageError, match="were given in Python"):
            run.evaluate()
        assert run.evaluate(data)["loss"] > 0
        if own is None:
            assert all(sample.any() for sample in _sample(run, 8))  # an exported model is not tried on zeros alone


def test_whole_targets_of_a_dataset_of_a_table_become_floats(tmp_path: Path) -> None:
    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.mse_loss(ops.squeeze(ops.matmul(x, params), axis=1), y)

    path = written(tmp_path / "t.csv", a=X[:, 0], price=range(40))
    model = opstage.Model("m", None, np.ones((1, 1)), loss, None, (opstage.Spec("B 1"), opstage.Spec("B")))
    made = [opstage.fit(model, data, epochs=1, batch_size=8, progress=False) for data in (path, from_csv(path))]
    assert made[0].results[-1].held_out == made[1].results[-1].held_out


def test_a_dataset_of_a_table_goes_to_arguments_of_other_names(files: tuple[Path, Path]) -> None:
    def loss(ops: Any, w: Any, inputs: Any, target: Any) -> Any:
        return ops.cross_entropy(ops.linear(w, None, inputs), target)

    def outputs(ops: Any, w: Any, inputs: Any) -> Any:
        return ops.linear(w, None, inputs)

    batch = (opstage.Spec("B 3"), opstage.Spec("B", dtype="int64"))
    model = opstage.Model("m", None, np.ones((2, 3)), loss, None, batch, outputs=outputs)
    own, other = (from_csv(path, label="kind") for path in files)
    run = opstage.fit(model, own, epochs=1, batch_size=8, progress=False)
    assert np.array_equal(run.predict(own), run.predict(other)) and np.array_equal(run.predict(own), run.predict(X))
    assert run.evaluate(own) == run.evaluate(other) == run.evaluate(files[1])


def test_classes_of_held_out_rows_that_nobody_can_join() -> None:
    def loss(ops: Any, params: Any, x: Any, y: Any, w: Any) -> Any:
        return ops.sum(ops.mul(ops.mul(ops.matmul(x, params), y), w))

    model = opstage.Model("m", None, np.ones((3, 1)), loss, None, (opstage.Spec("B 3"), *[opstage.Spec("B 1")] * 2))
    parts = [Dataset(("x", "y", "w"), (X, X[:, :1], X[:, :1]), classes=names) for names in (("a", "b"), ("b", "a"))]
    with pytest.raises(UsageError, match="the held-out data have other classes than the data to train on"):
        opstage.fit(model, parts[0], held_out=parts[1], epochs=1, batch_size=8, progress=False)
