"""Data frames: trained on by position, with their columns matched by name in what comes later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import UsageError
from opstage.data import Dataset, from_arrays, from_file, from_frame
from opstage.models import mlp

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

RNG = np.random.default_rng(3)
N = 200
X = pd.DataFrame({"a": RNG.normal(size=N), "b": RNG.normal(size=N), "c": RNG.integers(0, 5, N)})
Y = ((X.a + 2 * X.b - X.c / 2) > 0).astype(int).rename("kind")
SHUFFLED = RNG.permutation(N)
XS, YS = X.iloc[SHUFFLED], Y.iloc[SHUFFLED]
NAMES = np.array(["cat", "dog"])
WHOLE = XS.assign(kind=NAMES[YS])
MIXED_UP = ["c", "a", "b"]


def fitted(data: Any, **more: Any) -> opstage.Trained:
    config = mlp.Config(inputs=(3,), classes=2)
    return opstage.fit("mlp", data, config=config, epochs=12, lr=0.1, batch_size=32, progress=False, **more)


@pytest.fixture(scope="module")
def trained() -> opstage.Trained:
    return fitted({"x": XS, "y": YS})


def test_fit_of_shuffled_frames_is_that_of_their_arrays(trained: opstage.Trained) -> None:
    arrays = fitted({"x": XS.to_numpy(), "y": YS.to_numpy()})
    assert trained.evaluate() == arrays.evaluate() and trained.evaluate()["accuracy"] > 0.85
    np.testing.assert_array_equal(fitted((XS, YS)).predict(X)["class"], trained.predict(X)["class"])


FRAMES: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda frame: frame,
    "nullable": lambda frame: frame.convert_dtypes(),
    "Arrow-backed": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "polars": pl.from_pandas,
    "Arrow": pa.table,
    "structured": lambda frame: frame.to_records(index=False),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_predict_matches_columns_by_name(trained: opstage.Trained, kind: str) -> None:
    expected = trained.predict(X)
    assert (expected["class"] == Y).mean() > 0.95
    for columns in (MIXED_UP, ["a", "b", "c"]):
        frame = FRAMES[kind](X[columns])
        for found in (trained.predict(frame), trained.predict(x=frame), trained.predict({"x": frame})):
            np.testing.assert_array_equal(found["class"], expected["class"])
    with_label = FRAMES[kind](X.assign(kind=Y)[["kind", *MIXED_UP]])
    np.testing.assert_array_equal(trained.predict(with_label)["class"], expected["class"])
    assert trained.evaluate(with_label)["accuracy"] > 0.95
    one = trained.predict(FRAMES[kind](X[MIXED_UP].iloc[:1]))
    np.testing.assert_array_equal(one["class"], expected["class"][:1])


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (X[["a", "b"]], "no column is called 'c'; the columns are a, b"),
        (X.assign(id=1), "has a column 'id' .*which the training data lacked; drop it. They had a, b, c"),
        (X.rename(columns={"c": "C"}), "has a column 'C'"),
        (X.assign(b="u"), "column b is 'u'; expected a finite number"),
        (X.assign(b=np.where(X.b > 0, X.b, np.nan)), "column b is nan; expected a finite number"),
        (pd.concat([X, X[["a"]]], axis=1), "two columns are called 'a'"),
    ],
)
def test_predict_refuses_frames_of_other_columns(trained: opstage.Trained, frame: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trained.predict(frame)


def test_a_model_of_arrays_takes_a_frame_by_position() -> None:
    arrays = fitted({"x": XS.to_numpy(), "y": YS.to_numpy()})
    np.testing.assert_array_equal(arrays.predict(X)["class"], arrays.predict(X.to_numpy())["class"])


@pytest.mark.parametrize("kind", FRAMES)
def test_fit_of_a_whole_frame_is_that_of_its_file(tmp_path: Path, kind: str) -> None:
    WHOLE.to_csv(tmp_path / "d.csv", index=False)
    frame = FRAMES[kind](WHOLE.astype({"kind": object} if kind == "structured" else {}))
    found, expected = fitted(frame), fitted(tmp_path / "d.csv")
    assert found.classes == ("cat", "dog") and found.evaluate() == expected.evaluate()
    np.testing.assert_array_equal(found.predict(X[MIXED_UP])["class"], expected.predict(X)["class"])
    np.testing.assert_array_equal(expected.predict(X[MIXED_UP])["class"], expected.predict(X)["class"])


def test_held_out_frames_have_their_columns_in_any_order() -> None:
    first, rest = WHOLE.iloc[:150], WHOLE.iloc[150:]
    found = fitted(first, held_out=rest[["kind", *MIXED_UP]]).evaluate()
    assert found == fitted(first, held_out=rest).evaluate() and found["accuracy"] > 0.9


def test_a_dataset_knows_the_columns_of_frames() -> None:
    dataset = from_arrays(x=X, y=Y)
    assert dataset.columns == (("a", "b", "c"), ("kind",)) and dataset["x"].dtype == np.float64
    assert from_arrays(x=X, z=np.ones(N)).columns == (("a", "b", "c"), ("z",))
    assert Dataset(("y",), (Y,)).columns == ()
    whole = from_frame(WHOLE, label="kind")
    np.testing.assert_array_equal(whole["x"], XS.to_numpy())
    np.testing.assert_array_equal(whole["y"], YS)
    assert whole.columns == dataset.columns


@pytest.mark.parametrize(
    ("frame", "label", "message"),
    [
        (WHOLE, "species", "no column is called 'species'"),
        (WHOLE.assign(b=None), None, "column b"),
        (pd.DataFrame(index=[0, 1]), None, "the frame: has no column; expected the label's and at least one more"),
        (X.to_numpy(), None, "takes a data frame, not an ndarray"),
        (
            pd.DataFrame([[1.0, 2.0, 3.0]], columns=[10, 0, 5]),
            0,
            "position, that of '10', but another column is called '0'",
        ),
        (WHOLE.assign(kind=["cat", None] * (N // 2)), None, "row 1"),
    ],
)
def test_from_frame_refuses(frame: Any, label: str | int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_frame(frame, label=label)


def test_the_index_of_a_pandas_frame_is_no_column(tmp_path: Path) -> None:
    for name, frame in {"shuffled": WHOLE, "named": WHOLE.rename_axis("number"), "made": WHOLE.set_index("c")}.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
        columns = tuple(column for column in frame.columns if column != "kind")
        assert from_file(tmp_path / f"{name}.parquet").columns == (columns, ("kind",))
        assert from_frame(pa.Table.from_pandas(frame), label="kind").columns == (columns, ("kind",))


def test_wide_tables_take_time_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    from opstage.data.table import assign, require_columns

    names = [Name(f"c{i}") for i in range(2000)] + [Name("y")]
    require_columns("a table", names, names)
    assign("a table", {"x": ("*",)}, names, ("x", "y"), ("y",), "y")
    assert compared < 50 * len(names)
