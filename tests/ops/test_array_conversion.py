"""Whatever is like an array is read in one way, or refused, as is a number that a dtype does not hold."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Box, Options, Session, UsageError
from opstage.data import Dataset, Loader, from_arrays
from opstage.interop.weights import read_state_dict, write_state_dict
from opstage.models import Model
from opstage.ops.array_conversion import as_numpy, is_table
from opstage.ops.errors import DtypeError
from tests.conformance.harness import EXECUTING

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
h5py = pytest.importorskip("h5py")
sparse = pytest.importorskip("scipy.sparse")

DOUBLE = Options(dtype="float64")
X = np.arange(6.0).reshape(3, 2)
ROWS = [2, 0, 1]
"""The labels of shuffled rows."""


class Tensor:
    """An array of another library: a tensor of torch, an array of xarray."""

    def __init__(self, array: Any = X, refuses: Exception | None = None):
        self.array, self.refuses = array, refuses
        self.shape, self.dtype = np.shape(array), "torch.float64"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self.refuses is not None:
            raise self.refuses
        return self.array


class Shared:
    """An array that has only DLPack."""

    def __dlpack__(self, **how: Any) -> Any:
        return X.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return X.__dlpack_device__()


class Stream:
    """A table that has only the Arrow C stream."""

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        return pa.table({"a": X[:, 0], "b": X[:, 1]}).__arrow_c_stream__(schema)


FILE = h5py.File("none.h5", "w", driver="core", backing_store=False)


def stored(array: Any) -> Any:
    return FILE.create_dataset(None, data=array)


RECORDS = np.array([(0.0, 1), (2, 3), (4, 5)], [("a", "f8"), ("b", "i4")])
COUNTS = np.arange(3)
MIXED = {"a": [1, 2, 3], "b": [True, False, True], "c": [0.5, 0.5, 0.5]}
MIXED_ROWS = np.array([[1, 1, 0.5], [2, 0, 0.5], [3, 1, 0.5]])

GOOD: dict[str, tuple[Any, Any]] = {
    "pandas frame": (pd.DataFrame(X, columns=["a", "b"], index=ROWS), X),
    "pandas frame of kinds": (pd.DataFrame(MIXED, index=ROWS), MIXED_ROWS),
    "pandas nullable frame": (pd.DataFrame(MIXED, index=ROWS).convert_dtypes(), MIXED_ROWS),
    "pandas frame, columns by number": (pd.DataFrame(X, columns=[1, 0]), X),
    "pandas frame, levels of columns": (pd.DataFrame(X, columns=pd.MultiIndex.from_tuples([("a", 1), ("a", 2)])), X),
    "pandas series": (pd.Series([0.0, 1, 2], index=ROWS), np.arange(3.0)),
    "pandas Int64": (pd.Series([0, 1, 2], index=ROWS, dtype="Int64"), COUNTS),
    "pandas Float64": (pd.Series([0, 1, 2], dtype="Float64"), np.arange(3.0)),
    "pandas boolean": (pd.Series([True, False], dtype="boolean"), np.array([True, False])),
    "pandas of Arrow": (pd.Series([0, 1, 2], index=ROWS, dtype="int64[pyarrow]"), COUNTS),
    "pandas categories of numbers": (pd.Series([5, 7, 5], dtype="category"), np.array([5, 7, 5])),
    "pandas rows": (pd.Series([*X], index=ROWS), X),
    "pandas index": (pd.Index([3, 4, 5]), np.array([3, 4, 5])),
    "polars frame": (pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}), X),
    "polars frame of kinds": (pl.DataFrame(MIXED), MIXED_ROWS),
    "polars series": (pl.Series([0, 1, 2]), COUNTS),
    "polars booleans": (pl.Series([True, False]), np.array([True, False])),
    "polars arrays": (pl.Series(X.tolist(), dtype=pl.Array(pl.Float64, 2)), X),
    "polars lists": (pl.Series(X.tolist()), X),
    "Arrow table": (pa.table({"a": X[:, 0], "b": X[:, 1]}), X),
    "Arrow table of pandas": (pa.Table.from_pandas(pd.DataFrame(X, columns=["a", "b"], index=ROWS)), X),
    "Arrow batch": (pa.record_batch({"a": X[:, 0], "b": X[:, 1]}), X),
    "Arrow array": (pa.array([0, 1, 2]), COUNTS),
    "Arrow chunks": (pa.chunked_array([[0, 1], [2]]), COUNTS),
    "Arrow dictionary": (pa.array([5, 7, 5]).dictionary_encode(), np.array([5, 7, 5])),
    "Arrow lists": (pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 2), X),
    "Arrow stream": (Stream(), X),
    "tensor": (Tensor(), X),
    "DLPack": (Shared(), X),
    "h5py": (stored(X), X),
    "h5py, most significant byte first": (stored(COUNTS.astype(">i8")), COUNTS),
    "masked nowhere": (np.ma.masked_array(X), X),
    "matrix": (np.asmatrix(X), X),
    "structured": (RECORDS, X),
    "records": (RECORDS.view(np.recarray), X),
    "most significant byte first": (X.astype(">f8"), X),
    "integers, most significant byte first": (COUNTS.astype(">i8"), COUNTS),
    "short integers, most significant byte first": (COUNTS.astype(">u2"), COUNTS),
    "rows in memory's other order": (np.asfortranarray(X), X),
}
"""What is accepted, and the array that it is."""

BAD: dict[str, tuple[Any, str]] = {
    "pandas Int64": (pd.Series([0, None, 2], dtype="Int64"), "row 1 is missing"),
    "pandas Float64": (pd.Series([0, 1, None], dtype="Float64"), "row 2 is missing"),
    "pandas of Arrow": (pd.Series([None, 1], dtype="int64[pyarrow]"), "row 0 is missing"),
    "pandas frame": (pd.DataFrame({"a": [1, 2], "b": pd.array([1, None], "Int64")}), "column b: row 1 is missing"),
    "pandas objects": (pd.Series([1.0, None, 2], dtype=object), "row 1 is missing|array of NoneType"),
    "polars": (pl.Series([0, None, 2]), "row 1 is missing"),
    "Arrow": (pa.array([0, None, 2]), "row 1 is missing"),
    "masked": (np.ma.masked_array(X, X == 3), "fill them first"),
    "masked rows": ([np.ma.masked_array([1.0, 2.0], [False, True])] * 2, "fill them first"),
    "masked in lists": ([[np.ma.masked_array([1.0, 2.0], [False, True])]], "fill them first"),
    "missing in lists": ([([pd.Series([1, None], dtype="Int64")],)], "row 1 is missing"),
    "masked column": (np.ma.masked_array(RECORDS, [(0, 1), (0, 0), (0, 0)]), "column b: a masked array"),
    "names": (pd.DataFrame({"a": [1, 2], "b": ["u", "v"]}), "column b holds 'u'; expected a number in each row"),
    "dates": (pd.DataFrame({"when": pd.to_datetime(["2020-01-01"])}), "column when holds datetime64"),
    "two of a name": (pd.DataFrame(X, columns=["a", "a"]), "two columns are called 'a'"),
    "rounded": (pd.DataFrame({"a": [2**53 + 1, 2], "b": [0.5, 0.5]}), r"column a holds integers beyond 2\*\*53"),
    "gradient": (Tensor(refuses=RuntimeError("it requires grad")), "Tensor gives no NumPy array: it requires grad"),
    "sparse": (sparse.csr_matrix(X), r"array of csr_matrix; give x\.toarray\(\)"),
    "lazy": (pl.DataFrame({"a": [1]}).lazy(), r"array of LazyFrame; give x\.collect\(\)"),
    "set": ({1, 2}, r"array of set; give list\(x\)"),
    "views": ({"a": 1}.values(), r"array of dict_values; give list\(x\)"),
    "strings": (np.array(["u", "v"], np.dtypes.StringDType()), "hold numbers|not 'u'|numbers|cannot be stored"),
    "names alone": (pd.Series(["u", "v"]), "hold numbers|floats, integers or booleans|numbers|cannot be stored"),
    "complex": (X + 1j, "complex"),
}  # fmt: skip
"""What is refused, and what is said of it."""


def evaluated(value: Any) -> Any:
    trainer = opstage.scalar_trainer(lambda ops, p, x: ops.reduce_mean(x) * p, np.ones(()), options=DOUBLE)
    return trainer.evaluate(lambda ops, p, x: x, value)


def loaded(value: Any) -> Any:
    loader = Loader(from_arrays(x=value), 2, seed=3)
    rows = np.concatenate([x for (x,) in loader.epoch(1)])
    return rows[np.argsort(loader.order(1))]


def predicted(value: Any) -> Any:
    from opstage.runs.predictions import initial_predictor

    shape, dtype = np.shape(as_numpy(value)), as_numpy(value).dtype.kind
    spec = opstage.Spec(("B", *shape[1:]), {"f": None, "b": "bool"}.get(dtype, "int64"))
    model = Model("m", None, np.ones(()), None, None, (spec,), None, lambda ops, p, x: {"out": x})
    return initial_predictor(model, DOUBLE)(value)["out"]


def session(value: Any) -> Any:
    session = Session(DOUBLE)
    return session.get_value(session.input(value))


def kept(value: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        write_state_dict(f"{folder}/a", {"a": value})
        return read_state_dict(f"{folder}/a")["a"]


ENTRANCES: dict[str, Callable[[Any], Any]] = {
    "run": lambda value: opstage.run(lambda ops, x: x, value, options=DOUBLE),
    "compiled run": lambda value: opstage.run(lambda ops, x: x, value, options=DOUBLE.replace(backend="compiled")),
    "const": lambda value: opstage.run(lambda ops: ops.const(value), options=DOUBLE),
    "Session.input": session,
    "Session.param": lambda value: Session(DOUBLE).param(value, requires_grad=False).value,
    "Param": lambda value: opstage.Param(value, requires_grad=False).value,
    "state": lambda value: (
        opstage.scalar_trainer(lambda ops, p, s: (ops.reduce_mean(p), s), np.ones(2), state=value, options=DOUBLE).state
    ),
    "parameters": lambda value: opstage.scalar_trainer(
        lambda ops, p: ops.reduce_mean(p), value, requires_grad=False, options=DOUBLE
    ).get_params(),
    "evaluate": evaluated,
    "Predictor": predicted,
    "Dataset": lambda value: Dataset(("x",), (value,))["x"],
    "Loader": loaded,
    "Box": lambda value: Box.around(value, 0).lower,
    "state_dict": kept,
}


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("kind", GOOD)
def test_every_entrance_reads_the_array_that_it_is(kind: str, entrance: str) -> None:
    value, expected = GOOD[kind]
    found = ENTRANCES[entrance](value)
    assert type(found) is np.ndarray and found.dtype.isnative
    assert found.dtype.kind == expected.dtype.kind or (found.dtype.kind, expected.dtype.kind) in {
        ("i", "u"),
        ("u", "i"),
    }
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("kind", BAD)
def test_every_entrance_refuses_what_is_no_array(kind: str, entrance: str) -> None:
    value, message = BAD[kind]
    if isinstance(value, list) and entrance not in ("const", "Dataset", "Loader"):
        pytest.skip("a list of arrays is a tree there")
    with pytest.raises(UsageError, match=message):
        ENTRANCES[entrance](value)


@pytest.mark.parametrize("kind", ["pandas Int64", "masked"])
def test_an_index_is_read_like_any_array(kind: str) -> None:
    value, message = BAD[kind]
    with pytest.raises(UsageError, match=message):
        opstage.run(lambda ops, x: x[value], X)


@pytest.mark.parametrize("apply", [operator.add, operator.sub, operator.mul, operator.truediv, operator.lt])
@pytest.mark.parametrize("left", [pd.DataFrame(X + 1, index=ROWS), pd.Series([5.0, 2.0], index=[1, 0])])
def test_a_frame_may_stand_to_the_left_of_an_operator(left: Any, apply: Callable[[Any, Any], Any]) -> None:
    y = X + 0.5
    found = opstage.run(lambda ops, y: apply(left, y), y, options=DOUBLE)
    np.testing.assert_array_equal(found, apply(left.to_numpy(), y))


@pytest.mark.parametrize("kind", GOOD)
def test_check_reads_shapes_and_dtypes(kind: str) -> None:
    value, expected = GOOD[kind]
    (spec,) = opstage.ops.spec.as_specs((value,))
    assert spec.shape == expected.shape
    assert spec.dtype == {"f": None, "b": "bool"}.get(expected.dtype.kind, "int64")


def test_a_batch_is_read_by_position() -> None:
    frame, labels = pd.DataFrame(X, columns=["a", "b"], index=ROWS), pd.Series([1.0, 0.0, 2.0], index=ROWS)

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.reduce_mean(ops.square(x @ params - y))

    trainers = [opstage.scalar_trainer(loss, np.zeros(2), options=DOUBLE) for _ in range(3)]
    losses = [trainers[0].step(0.01, frame, labels), trainers[1].step(0.01, {"y": labels, "x": frame})]
    expected = trainers[2].step(0.01, X, labels.to_numpy())
    assert losses == [expected, expected]
    for trainer in trainers:
        np.testing.assert_array_equal(trainer.get_params(), trainers[2].get_params())


def test_an_index_of_a_ref_is_read_by_position() -> None:
    where = pd.Series([2, 0, 1], index=ROWS)
    np.testing.assert_array_equal(opstage.run(lambda ops, x: x[where], X), X[[2, 0, 1]])


def test_a_generator_is_no_array() -> None:
    with pytest.raises(UsageError, match=r"array of generator; give list\(x\)"):
        from_arrays(x=(row for row in X))


def test_an_array_that_is_a_dataclass_is_a_leaf() -> None:
    from dataclasses import dataclass

    @dataclass
    class Stored(Tensor):  # as zarr's arrays are
        metadata: str

        def __post_init__(self) -> None:
            super().__init__()

    np.testing.assert_array_equal(opstage.run(lambda ops, x: x * 2.0, Stored("a"), options=DOUBLE), 2 * X)


def test_arrays_of_numbers_are_not_copied() -> None:
    assert as_numpy(X) is X
    assert np.shares_memory(as_numpy(np.asmatrix(X)), X)
    assert is_table(RECORDS) and not is_table(X) and not is_table(pd.Series([1])) and not is_table(pl.Series([1]))


# Constants and arguments: a number that the wanted dtype does not hold is an error, as it is of ops.full --------------

UNFIT: dict[str, tuple[Any, str | None, type[Exception], str]] = {
    "too large": ([1, 2**40], "int32", DtypeError, f"value {2**40} is not a value of int32"),
    "too small": (np.array([-(2**31) - 1]), "int32", DtypeError, "is not a value of int32"),
    "half": ([1.0, 1.5], "int32", DtypeError, "value 1.5 is not a value of int32"),
    "a fraction": ([Fraction(3, 2)], "int64", DtypeError, "is not a value of int64"),
    "nan": (np.nan, "int64", DtypeError, "value nan is not a value of int64"),
    "infinite": (-np.inf, "int32", DtypeError, "value -inf is not a value of int32"),
    "2⁶³ unsigned": (np.array([1, 2**63], np.uint64), "int64", DtypeError, f"value {2**63} is not a value of int64"),
    "2⁶³ as a float": (2.0**63, "int64", DtypeError, "is not a value of int64"),
    "2⁷⁰": (2**70, "int64", DtypeError, "is not a value of int64"),
    "2⁷⁰, no dtype": ([1, 2**70], None, UsageError, "integers are at most"),
    "masked": (np.ma.array([1.0, 2.0], mask=[False, True]), None, UsageError, "fill them first"),
}
FIT: dict[str, tuple[Any, str | None, Any]] = {
    "whole floats": ([1.0, -2.0], "int32", np.array([1, -2], np.int32)),
    "the ends": ([-(2**31), 2**31 - 1], "int32", np.array([-(2**31), 2**31 - 1], np.int32)),
    "unsigned": (np.array([2**63 - 1], np.uint64), "int64", np.array([2**63 - 1])),
    "booleans": ([True, False], "int64", np.array([1, 0])),
    "truth": ([2, 0], "bool", np.array([True, False])),
    "nothing": (np.zeros(0), "int32", np.zeros(0, np.int32)),
    "fractions": ([Fraction(4, 2)], "int64", np.array([2])),
    "small integers as objects": (np.array([1, 2], object), None, np.array([1.0, 2.0])),
    "masked nowhere": (np.ma.array([1.0, 2.0]), None, np.array([1.0, 2.0])),
}


@pytest.mark.parametrize("interpreter", EXECUTING)
@pytest.mark.parametrize("name", UNFIT)
def test_values_that_a_dtype_does_not_hold(interpreter: str, name: str) -> None:
    value, dtype, kind, message = UNFIT[name]
    ops = EXECUTING[interpreter](Options(dtype="float64"))
    with pytest.raises(kind, match=message):
        ops.const(value) if dtype is None else ops.const(value, dtype=dtype)


@pytest.mark.parametrize("interpreter", EXECUTING)
@pytest.mark.parametrize("name", FIT)
def test_values_that_it_holds(interpreter: str, name: str) -> None:
    value, dtype, right = FIT[name]
    ops = EXECUTING[interpreter](Options(dtype="float64"))
    found = ops.get(ops.const(value) if dtype is None else ops.const(value, dtype=dtype))
    assert found.dtype == right.dtype
    np.testing.assert_array_equal(found, right)


def test_a_check_says_so_too() -> None:
    report = opstage.check(lambda ops: ops.const([1.5], dtype="int32"))
    assert not report.ok and "value 1.5 is not a value of int32" in str(report)


def test_masked_arguments_are_refused() -> None:
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    with pytest.raises(UsageError, match="argument x: a masked array has entries that are masked"):
        opstage.run(lambda ops, x: x, masked)
