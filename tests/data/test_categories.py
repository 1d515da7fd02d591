"""Columns of names among the inputs of a model, and columns that settings give to its arguments."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec, UsageError
from opstage.data.preparation import Preparation
from opstage.data.table import read_columns
from opstage.files import Document
from opstage.models import mlp
from opstage.runs import DataSettings

from .test_preparation import loaded, model_of, written

pytest.importorskip("pyarrow")
ROWS = 40
WEIGHT = np.random.default_rng(8).normal(50, 7, ROWS).round(3)
COLOUR = [["red", "blue", "green"][i % 3] for i in range(ROWS)]
SIZE = [["s", "l"][i % 2] for i in range(ROWS)]
KIND = [["cat", "dog"][i % 2] for i in range(ROWS)]
COLUMNS: dict[str, Any] = {"weight": WEIGHT, "colour": COLOUR, "size": SIZE, "kind": KIND}
ENCODED = np.column_stack([WEIGHT, *[[c == name for c in COLOUR] for name in ("blue", "green", "red")]])
ENCODED = np.column_stack([ENCODED, *[[c == name for c in SIZE] for name in ("l", "s")]])


def two_inputs(ops: Any, params: Any, x: Any, z: Any, y: Any) -> Any:
    return ops.mean(x)


TWO = model_of(two_inputs, Spec("B 2"), Spec("B", dtype="int64"), Spec("B", dtype="int64"))


def kept(preparation: Preparation | None) -> Preparation:
    """As a run keeps it and reads it again."""
    assert preparation is not None
    found = Preparation.of(Document.of(json.dumps(preparation.to_document()), "preparation.json"))
    assert found == preparation
    return found


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("scale", ["none", "standard", "minmax"])
def test_one_hot(tmp_path: Path, form: str, scale: Any) -> None:
    path = written(tmp_path, COLUMNS, form)
    found = loaded(path, config=mlp.Config(inputs=(6,), classes=2), categories="one_hot", scale=scale)
    run = kept(found.preparation)
    x = run.labelled(path)["x"]
    assert np.array_equal(x[:, 1:], ENCODED[:, 1:])  # no scaling touches them
    rows = {tuple(row) for part in (found.training, found.held_out) for row in part["x"]}
    assert rows == {tuple(row) for row in x}
    if scale == "none":
        assert np.array_equal(x, ENCODED)
    few = written(tmp_path, {"size": ["l"], "more": ["?"], "colour": ["red"], "weight": [WEIGHT[0]]}, form)
    again = run.inputs(few, ["x"])["x"]  # by the run's categories, not those of the file
    assert again[0, 1:].tolist() == [0, 0, 1, 1, 0]
    assert again[0, 0] == x[0, 0]


def test_names_are_numbered_for_integers_and_on_demand(tmp_path: Path) -> None:
    path = written(tmp_path, COLUMNS)
    model = model_of(lambda ops, params, x, y: ops.mean(x), Spec("B 2", dtype="int64"), Spec("B", dtype="int64"))
    run = kept(loaded(path, model, columns="x=colour,size", label="kind").preparation)
    x = run.labelled(path)["x"]
    expected = [[["blue", "green", "red"].index(c), ["l", "s"].index(s)] for c, s in zip(COLOUR, SIZE)]
    assert x.dtype == np.int64
    assert x.tolist() == expected
    floats = loaded(path, config=mlp.Config(inputs=(3,), classes=2), categories="number", scale="minmax")
    assert kept(floats.preparation).labelled(path)["x"][:, 1:].tolist() == expected


def test_names_for_floats_need_a_say(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        loaded(written(tmp_path, COLUMNS), config=mlp.Config(inputs=(6,), classes=2))
    assert (
        "row at line 2: column colour is 'red'; expected a finite number; names in an input are taken with --data.c"
        in (str(error.value))
    )


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"colour": ["red", "gren"]},
            "column colour is 'gren', which is not a category of the training data ",
        ),
        ({"colour": ["red", "gren"]}, "(did you mean 'green'?); these are blue, green, red"),
        ({"colour": ["red", ""]}, "column colour is empty; expected the name of a category"),
        ({"colour": [1, 2]}, "column colour holds numbers; expected the names of categories: blue, green, red"),
        ({"weight": ["heavy", "light"]}, "column weight is 'heavy'; expected a finite number"),
        ({"size": None}, "no column is called 'size'"),
    ],
)
def test_new_rows_that_do_not_fit(tmp_path: Path, form: str, change: dict[str, Any], message: str) -> None:
    config = mlp.Config(inputs=(6,), classes=2)
    run = kept(loaded(written(tmp_path, COLUMNS), config=config, categories="one_hot").preparation)
    columns = {"weight": [1.0, 2.0], "colour": ["red", "blue"], "size": ["s", "l"], **change}
    path = written(tmp_path, {name: values for name, values in columns.items() if values is not None}, form)
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        run.inputs(path, ["x"])
    assert str(path) in str(error.value)
    if "is '" in message:
        row = 0 if "heavy" in message else 1
        assert (f"row at line {row + 2}" if form == "csv" else f"row {row}") in str(error.value)


def test_a_column_of_identifiers_is_not_made_one_hot(tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(1001)]
    path = written(tmp_path, {"name": names, "y": [0, 1] * 500 + [0]})
    with pytest.raises(UsageError, match="column name holds 1,001 different names"):
        loaded(path, config=mlp.Config(inputs=(1001,), classes=2), categories="one_hot")


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("columns", ["x=weight,height; z=colour", "z=colour;x=weight,*;", "z=colour; x=*; y=kind"])
def test_columns_go_where_settings_say(tmp_path: Path, form: str, columns: str) -> None:
    height = np.arange(ROWS) / 4
    table = {"colour": COLOUR, "weight": WEIGHT, "kind": KIND, "height": height}
    found = loaded(written(tmp_path, table, form), TWO, columns=columns, label="kind")
    run = kept(found.preparation)
    assert [part.columns for part in run.parts] == [("weight", "height"), ("colour",), ("kind",)]
    (tmp_path / "new").mkdir()
    other = written(tmp_path / "new", dict(reversed(table.items())), form)  # by name, in whatever order
    data = run.labelled(other)
    assert np.array_equal(data["x"], np.column_stack([WEIGHT, height]))
    assert data["z"].tolist() == [["blue", "green", "red"].index(c) for c in COLOUR]
    assert data["y"].tolist() == [["cat", "dog"].index(k) for k in KIND]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("x=weight,size; zz=colour", "data.columns names 'zz', which is not an argument of the model"),
        ("x=weight,size", "data.columns lacks columns for 'z', and no column has its name; add '; z=COLUMN,…'"),
        ("x=weight,sise; z=colour", "no column is called 'sise' (did you mean 'size'?)"),
        ("x=weight,kind; z=colour", "column 'kind' would go to two places"),
        ("x=weight,size,colour,kind; z=*; y=kind2", "gives 'z' the columns left over, and none is"),
    ],
)
def test_columns_that_fit_nothing(tmp_path: Path, columns: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        loaded(written(tmp_path, COLUMNS), TWO, columns=columns, label="" if "y=" in columns else "kind")


@pytest.mark.parametrize("text", ["x", "x=", "=a", "x=a,,b", "x=a;x=b", "x=a,a", "x=a; z=a", "x=*; z=*"])
def test_columns_of_another_form(text: str) -> None:
    with pytest.raises(UsageError, match="columns"):
        DataSettings(columns=text)
    assert read_columns("") == read_columns(" ; ") == {}


def test_columns_and_categories_are_for_tables(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((9, 2)), y=np.zeros(9, int))
    for data in ({"columns": "x=a"}, {"categories": "one_hot"}):
        with pytest.raises(UsageError, match=f"data.{next(iter(data))} is for a table"):
            loaded(tmp_path / "d.npz", **data)


def test_scaling_is_for_floats(tmp_path: Path) -> None:
    table = {"a": np.arange(ROWS), "b": np.arange(ROWS) * 2.0, "y": np.arange(ROWS) % 2}
    model = model_of(lambda ops, params, x, y: ops.mean(x), Spec("B 2", dtype="int64"), Spec("B", dtype="int64"))
    with pytest.raises(UsageError, match="takes integers; leave"):
        loaded(written(tmp_path, table), model, scale="standard")
    path = written(tmp_path, {"w": WEIGHT, "h": WEIGHT + 1, "z": np.arange(ROWS), "y": np.arange(ROWS) % 2})
    found = loaded(path, TWO, columns="x=w,h", scale="minmax")
    assert found.training["x"].max() == 1
    assert sorted([*found.training["z"], *found.held_out["z"]]) == list(range(ROWS))


def test_a_run_of_names_predicts(tmp_path: Path) -> None:
    path = written(tmp_path, COLUMNS)
    settings = {"data": {"categories": "one_hot", "scale": "standard"}}
    config = mlp.Config(inputs=(6,), classes=2, hidden=(4,))
    made = opstage.fit(
        "mlp", path, config=config, epochs=1, batch_size=8, settings=settings, out=tmp_path / "run", progress=False
    )
    run = opstage.load(tmp_path / "run")
    few = written(tmp_path, {"size": ["l"], "colour": ["red"], "weight": [44.0]})
    expected = made.predict({"x": [[44.0, 0, 0, 1, 1, 0]]})["probabilities"]
    assert np.array_equal(run.predict(few)["probabilities"], expected)
