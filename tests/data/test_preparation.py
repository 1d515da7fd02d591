"""Data files bound to a model, with all that was learnt of them kept for new data."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Model, Recipe, Spec, UsageError
from opstage.data import from_csv, from_parquet
from opstage.data.preparation import FewRows, Preparation
from opstage.data.table import Scaling, cast
from opstage.files import Document
from opstage.models import mlp
from opstage.runs import DataSettings, RunSettings, Settings
from opstage.runs.run_data import Loaded, load_data

pytest.importorskip("pyarrow")
RNG = np.random.default_rng(5)
NAMES = ["setosa", "virginica", "versicolor"]
X = RNG.normal(50, 7, (30, 3)).round(3)
SPECIES = [NAMES[i % 3] for i in range(30)]


def written(folder: Path, columns: dict[str, Any], form: str = "csv") -> Path:
    path = folder / f"data.{form}"
    if form == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    elif form == "npz":
        np.savez(path, **columns)
    else:
        rows = [",".join(map(str, row)) for row in zip(*columns.values())]
        path.write_text("\n".join([",".join(columns), *rows]) + "\n")
    return path


def flowers(folder: Path, form: str = "csv") -> Path:
    return written(folder, {"a": X[:, 0], "species": SPECIES, "b": X[:, 1], "c": X[:, 2]}, form)


def loaded(path: Path, model: Model | None = None, config: Any = None, **data: Any) -> Loaded:
    config = mlp.Config(inputs=(3,), classes=3) if config is None else config
    settings = Settings(run=RunSettings(model="mlp"), data=DataSettings(file=path, **data), model=config)
    return load_data(settings, mlp.make(config) if model is None else model, Recipe())


def regression(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mean(ops.square(ops.sub(ops.matmul(x, params), y)))


def model_of(loss: Any, *batch: Spec) -> Model:
    return Model("mine", None, np.ones((3, 1), np.float32), loss, None, batch)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_names_of_classes_are_numbered_in_sorted_order(tmp_path: Path, form: str) -> None:
    found = loaded(flowers(tmp_path, form), label="species")
    assert found.preparation is not None
    assert found.preparation.classes == ("setosa", "versicolor", "virginica")
    assert found.preparation.features == ("a", "b", "c")
    both = np.concatenate([found.training["x"], found.held_out["x"]])
    labels = np.concatenate([found.training["y"], found.held_out["y"]])
    for row, label in zip(both, labels, strict=True):
        (at,) = np.flatnonzero((row == X).all(axis=1))
        assert found.preparation.classes[label] == SPECIES[at]
    assert np.bincount(found.held_out["y"]).tolist() == [2, 2, 2]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_dataset_of_a_table_has_the_names_too(tmp_path: Path, form: str) -> None:
    path = flowers(tmp_path, form)
    data = from_csv(path, label="species") if form == "csv" else from_parquet(path, label="species")
    assert data.columns == (("a", "b", "c"), ("species",))
    assert data.classes == ("setosa", "versicolor", "virginica")
    assert [data.classes[i] for i in data["y"]] == SPECIES
    assert data.take(np.arange(2)).classes == data.only("y").classes == data.classes


@pytest.mark.parametrize("name", ["standard", "minmax"])
def test_scaling_is_fitted_on_the_training_part_alone(tmp_path: Path, name: Any) -> None:
    plain = loaded(flowers(tmp_path), label="species")
    found = loaded(flowers(tmp_path), label="species", scale=name)
    x = plain.training["x"]
    center, width = (x.mean(0), x.std(0)) if name == "standard" else (x.min(0), x.max(0) - x.min(0))
    for part in ("training", "held_out"):
        expected = (getattr(plain, part)["x"] - center) / width
        assert np.allclose(getattr(found, part)["x"], expected, rtol=1e-12)
        assert np.array_equal(getattr(found, part)["y"], getattr(plain, part)["y"])


@pytest.mark.parametrize("scale", ["none", "standard", "minmax"])
def test_new_data_are_read_as_the_runs_own(tmp_path: Path, scale: Any) -> None:
    path = flowers(tmp_path)
    found = loaded(path, label="species", scale=scale)
    assert found.preparation is not None
    text = json.dumps(found.preparation.to_document())
    kept = Preparation.of(Document.of(text, "preparation.json"))
    assert kept == found.preparation
    folder = tmp_path / "new"
    folder.mkdir()
    columns = {"c": X[:, 2], "more": ["?"] * 30, "b": X[:, 1], "a": X[:, 0]}
    whole = kept.labelled(path)
    for form in ("csv", "parquet"):  # another order, a column more, no label
        assert np.array_equal(kept.inputs(written(folder, columns, form), ["x"])["x"], whole["x"])
    for given in ({"x": X.tolist(), "z": 1}, X, X.tolist()):
        assert np.array_equal(kept.inputs(given, ["x"])["x"], whole["x"])
    rows = {tuple(row) for row in found.training["x"]} | {tuple(row) for row in found.held_out["x"]}
    assert {tuple(row) for row in whole["x"]} == rows
    few = written(folder, {"a": [1.0], "b": [2.0], "c": [3.0], "species": ["virginica"]})
    assert kept.labelled(few)["y"].tolist() == [2]  # by the run's classes, not by those of the file


@pytest.mark.parametrize("scale", ["none", "standard", "minmax"])
@pytest.mark.parametrize("dtype", ["float32", "float64", ">f8"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_few_rows_are_prepared_with_the_same_bits(tmp_path: Path, scale: Any, dtype: str, rows: int) -> None:
    preparation = loaded(flowers(tmp_path), label="species", scale=scale).preparation
    assert preparation is not None
    few, x = FewRows(preparation, ("x",)), np.asfortranarray(X[:rows].astype(dtype))
    for given in (x, x.tolist()):
        found, expected = few((given,)), preparation.inputs({"x": given}, ("x",))["x"]
        assert found is not None and found[0].dtype == expected.dtype and np.array_equal(found[0], expected)


@pytest.mark.parametrize(
    "given",
    [
        (X[:2].astype(int),), (X[:2, :2],), (X[0],), (X[:0],), (X[:2], X[:2]), (), (X[:2].tolist()[0],), ("data.csv",),
        (np.where(X[:2] > 50, np.nan, X[:2]),), (np.full((1, 3), np.inf),), (np.full((1, 3), 1e300),),
        ([["a", "b", "c"]],), (np.float64(3.0),), (X[:2].astype(bool),), (np.ma.masked_array(X[:2]),),
        (np.zeros((9999, 3)),),
    ],
    ids=str,
)  # fmt: skip
def test_anything_else_is_read_with_care(tmp_path: Path, given: tuple[Any, ...]) -> None:
    preparation = loaded(flowers(tmp_path), label="species", scale="standard").preparation
    assert preparation is not None and FewRows(preparation, ("x",))(given) is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1], "bb": [1], "c": [1]}, "no column is called 'b' (did you mean 'bb'?); the columns are"),
        (
            {"a": [1, 1], "b": [1, 1], "c": [1, 1], "species": ["setosa", "setossa"]},
            "row at line 3: column species is 'setossa', which is not a class of the training data "
            "(did you mean 'setosa'?)",
        ),
        ({"a": [1], "b": [1], "c": [1], "species": [0]}, "column species holds numbers; expected the names of classes"),
        ({"a": [1], "b": ["no"], "c": [1], "species": ["setosa"]}, "column b is 'no'; expected a finite number"),
    ],
)
def test_new_data_that_do_not_fit(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    kept = loaded(flowers(tmp_path), label="species").preparation
    assert kept is not None
    with pytest.raises(UsageError, match=re.escape(message)):
        kept.labelled(written(tmp_path, columns))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (mlp.Config(), "; set --model.inputs 3 --model.classes 3"),
        (mlp.Config(inputs=(3,)), "3 classes, setosa, versicolor, virginica, but mlp has 10 classes; set --model.clas"),
        (mlp.Config(inputs=(3,), classes=2), "; set --model.classes 3"),
        (mlp.Config(inputs=(4,), classes=3), '(3,), but mlp takes x of Spec("B 4"); set --model.inputs 3'),
    ],
)
def test_a_mistake_says_what_to_set(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        loaded(flowers(tmp_path), config=config, label="species")


def test_arrays_go_to_the_arguments_of_their_names(tmp_path: Path) -> None:
    def loss(ops: Any, params: Any, target: Any, points: Any) -> Any:
        return regression(ops, params, points, target)

    path = written(tmp_path, {"points": X, "target": X[:, :1], "extra": np.ones(2)}, "npz")
    found = loaded(path, model_of(loss, Spec("B 1"), Spec("B 3")))
    assert (found.training["points"].shape, found.training["target"].shape) == ((24, 3), (24, 1))
    assert np.array_equal(found.training["points"][:, :1], found.training["target"])


def test_columns_go_to_the_arguments_of_their_names(tmp_path: Path) -> None:
    def loss(ops: Any, params: Any, u: Any, t: Any, x: Any) -> Any:
        return ops.mean(u)

    path = written(tmp_path, {"x": X[:, 0], "spare": SPECIES, "t": X[:, 1], "u": X[:, 2]})
    found = loaded(path, model_of(loss, Spec("B"), Spec("B 1"), Spec("B 1")))
    rows = np.concatenate(
        [np.column_stack([part["x"], part["t"], part["u"]]) for part in (found.training, found.held_out)]
    )
    assert sorted(map(tuple, rows)) == sorted(map(tuple, X))


def test_regression_is_not_stratified(tmp_path: Path) -> None:
    for y in (X[:, 0], np.arange(30)):
        found = loaded(written(tmp_path, {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y}), REGRESSION)
        assert (found.held_out["y"].shape, found.held_out["y"].dtype) == ((6, 1), np.float64)


REGRESSION = model_of(regression, Spec("B 3"), Spec("B 1"))


@pytest.mark.parametrize(
    ("array", "kind", "image", "expected"),
    [
        (np.array([0, 51, 255], np.uint8), "float", True, np.array([0, 0.2, 1], np.float32)),
        (np.array([0, 255]), "float", True, np.array([0, 1], np.float32)),
        (np.array([3, -(2**53)]), "float", False, np.array([3.0, -(2.0**53)])),
        (np.array([3.0, -2.0], np.float32), "int", False, np.array([3, -2])),
        (np.array([7], np.uint8), "int", False, np.array([7], np.uint8)),
        (np.array([True]), "bool", False, np.array([True])),
    ],
)
def test_casts(array: Any, kind: Any, image: bool, expected: Any) -> None:
    found = cast(array, kind, image=image, origin="x")
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("array", "kind", "image", "message"),
    [
        (np.array([0, 2**53 + 1]), "float", False, "row 1 holds 9007199254740993"),
        (np.array([0.0, 0.5]), "int", False, "row 1 holds 0.5 (rows are counted from 0); expected a whole number"),
        (np.array([0.0, 1e300]), "int", False, "row 1 holds 1e+300"),
        (np.array([0, 256]), "float", True, "row 1 holds 256"),
        (np.array([0.0, 17.0]), "float", True, "row 1 holds 17.0"),
    ],
)
def test_casts_that_would_lose_something(array: Any, kind: Any, image: bool, message: str) -> None:
    with pytest.raises(UsageError, match="x: row 1") as error:
        cast(array, kind, image=image, origin="x")
    assert message in str(error.value)


def test_bytes_are_a_share_of_255_and_scaled_ones_are_not(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (20, 3)).astype(np.uint8)
    path = written(tmp_path, {"x": pixels, "y": np.arange(20) % 3}, "npz")
    plain, scaled = loaded(path), loaded(path, scale="minmax")
    assert plain.training["x"].dtype == np.float32
    assert plain.training["x"].max() <= 1
    assert plain.preparation is not None and scaled.preparation is not None
    assert np.allclose(plain.preparation.inputs(pixels, ["x"])["x"], pixels / 255.0, atol=1e-7)
    own = scaled.training["x"]
    assert (own.min(), own.max()) == (0, 1)
    assert np.array_equal(scaled.preparation.inputs(pixels.astype(float), ["x"])["x"].min(0) <= 0, [True] * 3)
    with pytest.raises(UsageError, match="bytes over 255"):
        plain.preparation.inputs(pixels.astype(float), ["x"])
    floats = loaded(written(tmp_path, {"x": pixels / 255.0, "y": np.arange(20) % 3}, "npz"))
    assert floats.preparation is not None
    with pytest.raises(UsageError, match="holds bytes"):
        floats.preparation.inputs(pixels, ["x"])


def test_a_column_that_does_not_vary_is_moved_to_zero() -> None:
    x = np.array([[1e8 + 0.1, 2.0], [1e8 + 0.1, 4.0]])
    for name in ("standard", "minmax"):
        scaling = Scaling.of(name, x)  # type: ignore[arg-type]
        assert scaling is not None
        assert scaling.apply(x)[:, 0].tolist() == [0, 0]


DAMAGES: list[tuple[tuple[Any, ...], Any]] = [
    (("format",), 2),
    (("form",), "images of nothing"),
    (("parts",), []),
    (("classes",), ["a", "a"]),
    (("parts", 0, "kind"), "complex"),
    (("parts", 0, "image"), 1),
    (("parts", 0, "scaling", "width"), [0.0, 1.0, 1.0]),
    (("parts", 0, "scaling", "center"), [1.0]),
    (("parts", 0, "scaling", "center"), ["nan", 1.0, 1.0]),
    (("parts", 1, "argument"), "x"),
]


@pytest.mark.parametrize(("at", "value"), DAMAGES)
def test_a_damaged_preparation_is_an_error(tmp_path: Path, at: tuple[Any, ...], value: Any) -> None:
    kept = loaded(flowers(tmp_path), label="species", scale="standard").preparation
    assert kept is not None
    document = json.loads(json.dumps(kept.to_document()))
    place: Any = document
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = value
    with pytest.raises(UsageError, match=r"preparation\.json"):
        Preparation.of(Document(document, "preparation.json"))


def test_a_run_keeps_and_uses_it(tmp_path: Path) -> None:
    path = flowers(tmp_path)
    config = mlp.Config(inputs=(3,), classes=3, hidden=(8,))
    settings = {"data": {"label": "species", "scale": "standard"}}
    made = opstage.fit(
        "mlp", path, config=config, epochs=1, batch_size=8, settings=settings, out=tmp_path / "run", progress=False
    )
    run = opstage.load(tmp_path / "run")
    assert run.preparation == made.preparation is not None
    assert run.classes == ("setosa", "versicolor", "virginica")
    assert np.allclose(run.prepared(path)["x"].mean(0), 0, atol=0.5)
    assert np.array_equal(run.predict(path)["probabilities"], made.predict({"x": X})["probabilities"])
    assert run.evaluate() == made.evaluate()


def test_label_and_scale_without_a_file_are_errors() -> None:
    for data in (DataSettings(label="a"), DataSettings(scale="minmax")):
        settings = replace(Settings(), data=data)
        with pytest.raises(UsageError, match="is for a data file"):
            load_data(settings, mlp.make(mlp.Config()), Recipe(data=lambda seed: pytest.fail("read")))


def test_a_label_column_holds_names_or_numbers(tmp_path: Path) -> None:
    for cells, message in (
        (["a", "1"], "column y is '1'; expected the name of"),
        (["1", "a"], "column y is 'a'; expec"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            from_csv(written(tmp_path, {"x": [1, 2], "y": cells}))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0, None], "y": [0, 1]}, "column a: row 1 is missing"),
        ({"a": [1.0, float("nan")], "y": [0, 1]}, "row 1: column a is nan"),
        ({"a": ["u", "v"], "y": [0, 1]}, "row 0: column a is 'u'; expected a finite number"),
        ({"a": [[1], [2]], "y": [0, 1]}, "expected (rows,), of numbers"),
        ({"a": [2**60, 1], "y": [0, 1]}, "beyond 2**53"),
        ({"a": [], "y": []}, "the dataset is empty"),
    ],
)
def test_parquet_that_is_no_table_of_numbers(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        loaded(written(tmp_path, columns, "parquet"), model_of(regression, Spec("B 1"), Spec("B")))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = flowers(tmp_path, "parquet")
    monkeypatch.setattr("opstage.ops.errors.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'opstage\[parquet\]'"):
        loaded(path, label="species")


def test_a_parquet_file_that_is_none(tmp_path: Path) -> None:
    whole = flowers(tmp_path, "parquet").read_bytes()
    for i, data in enumerate((b"", b"PAR1", whole[:-9], whole[:200] + b"\xff" * 40 + whole[240:])):
        path = tmp_path / f"bad{i}.parquet"
        path.write_bytes(data)
        with pytest.raises(UsageError, match=f"bad{i}.parquet"):
            loaded(path, label="species")
    with pytest.raises(UsageError, match="no such file"):
        loaded(tmp_path / "none.parquet", label="species")


def test_classes_of_new_data_are_those_of_the_run(tmp_path: Path) -> None:
    from opstage.data import from_csv
    from opstage.data.preparation import ArgumentData, Preparation

    parts = (ArgumentData("x", ("a",), "float", (1,)), ArgumentData("y", ("kind",), "int", (), label=True))
    named, numbered = Preparation("table", parts, ("cat", "dog", "eel")), Preparation("table", parts, None)
    (tmp_path / "some.csv").write_text("a,kind\n1,eel\n2,dog\n3,eel\n")
    (tmp_path / "numbers.csv").write_text("a,kind\n1,2\n2,1\n")
    (tmp_path / "other.csv").write_text("a,kind\n1,fox\n2,dog\n")
    some = from_csv(tmp_path / "some.csv", label="kind")
    for source in (tmp_path / "some.csv", some):
        assert named.labelled(source)["y"].tolist() == [2, 1, 2]
        with pytest.raises(UsageError, match="had numbers"):
            numbered.labelled(source)
    with pytest.raises(UsageError, match="'fox', which the training data lacked"):
        named.labelled(from_csv(tmp_path / "other.csv", label="kind"))
    with pytest.raises(UsageError, match="numbers for labels"):
        named.labelled(from_csv(tmp_path / "numbers.csv", label="kind"))
    np.savez(tmp_path / "rows.npz", x=np.ones((2, 1)), a=np.zeros((2, 1)))
    assert named.inputs(tmp_path / "rows.npz", ["x"])["x"].tolist() == [[1], [1]]
    with pytest.raises(UsageError, match="all rows must have one shape"):
        named.inputs({"x": [[1], [1, 2]]}, ["x"])


BYTES = RNG.integers(0, 250, (20, 1, 4, 4)).astype(np.uint8)


@pytest.mark.parametrize(
    ("x", "y", "batch", "kinds"),
    [  # the arrays of a file, and what the model gets of them
        (X[:20], BYTES[:, 0, 0, 0], ("B 3", "B"), (1, 1)),  # counts to be predicted stay what they are
        (X[:20], BYTES[:, 0, 0, :1], ("B 3", "B 1"), (1, 1)),
        (X[:20], BYTES[:, 0, 0], ("B 3", "B 4"), (1, 1)),
        (BYTES, BYTES[:, 0, 0, 0], ("B 1 4 4", "B"), (255, 1)),
        (BYTES, BYTES, ("B 1 4 4", "B 1 4 4"), (255, 255)),  # images to be predicted are images
        (X[:20] > 50, X[:20, 0] > 50, ("B 3", "B"), (1, 1)),  # booleans are 0 and 1
        (X[:20].astype(">f4"), np.arange(20).astype(">i8"), ("B 3", "B"), (1, 1)),
        (BYTES[:, 0].astype(">u2"), np.arange(20).astype(">i2"), ("B 4 4", "B"), (1, 1)),
    ],
    ids=str,
)
def test_arrays_of_a_file_are_cast_by_what_they_are_for(
    tmp_path: Path, x: Any, y: Any, batch: tuple[str, str], kinds: tuple[int, int]
) -> None:
    path = written(tmp_path, {"x": x, "y": y}, "npz")
    found = loaded(path, model_of(lambda ops, params, x, y: ops.reduce_mean(x), *map(Spec, batch)), held_out=0.25)
    assert found.preparation is not None
    again = found.preparation.labelled(path)
    for name, array, kind in zip("xy", (x, y), kinds):
        expected = array.astype(np.float32) / np.float32(kind) if kind != 1 else array.astype(np.float64)
        assert again[name].dtype.kind == "f" and again[name].dtype.isnative
        np.testing.assert_array_equal(again[name], expected)
    parts = np.concatenate([found.training["y"], found.held_out["y"]])
    np.testing.assert_array_equal(np.sort(parts, axis=0), np.sort(again["y"], axis=0))


@pytest.mark.parametrize("dtype", [bool, "u1", ">i4", "f8"])
def test_labels_of_classes_are_integers(tmp_path: Path, dtype: Any) -> None:
    labels = np.arange(20) % 2
    path = written(tmp_path, {"x": X[:20], "y": labels.astype(dtype)}, "npz")
    found = loaded(path, config=mlp.Config(inputs=(3,), classes=2))
    assert found.training["y"].dtype.kind in "iu" and found.training["y"].dtype.isnative
    assert np.bincount(np.concatenate([found.training["y"], found.held_out["y"]])).tolist() == [10, 10]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_refuse_integers_that_a_float_would_round(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, {"a": [2**53 + 1, 2**53], "y": [0, 1]}, form)
    with pytest.raises(UsageError, match=r"beyond 2\*\*53"):
        loaded(path, model_of(regression, Spec("B 1"), Spec("B")))


@pytest.mark.parametrize("scale", ["none", "standard", "minmax"])
@pytest.mark.parametrize("dtype", ["i8", ">i8", "u8"])
def test_arrays_refuse_integers_that_a_float_would_round(tmp_path: Path, dtype: str, scale: str) -> None:
    x = np.arange(20).reshape(10, 2).astype(dtype) + np.asarray(2**53, dtype)
    path = written(tmp_path, {"x": x, "y": np.arange(10.0)}, "npz")
    with pytest.raises(UsageError, match=r"data\.npz: x: row 0 holds 9007199254740993 .*beyond 2\*\*53"):
        loaded(path, model_of(regression, Spec("B 2"), Spec("B")), scale=scale)


def test_an_input_of_one_number_a_row_is_one_column(tmp_path: Path) -> None:
    path = written(tmp_path, {"x": X[:20, 0], "y": np.arange(20) % 2}, "npz")
    with pytest.raises(
        UsageError, match=r"rows of shape \(\), .*; set --model\.inputs 1, in Python .*'inputs': \(1,\)"
    ):
        loaded(path, config=mlp.Config(inputs=(3,), classes=2))
    assert loaded(path, config=mlp.Config(inputs=(1,), classes=2)).training["x"].shape == (16, 1)
