"""Elements in another order, repeated, in parts of matrices, and made from nothing: against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import derived
from opstage.ops.errors import RangeError, ShapeError
from tests.ops.functions import FLOAT64, Row, assert_row, of

INTS = np.array([[3, -1, 2], [0, 7, 5]])
MASK = np.array([[True, False, True], [False, False, True]])

_STEPS: Any = ((0, 5, 1), (2, 9, 3), (9, 2, -3), (3, 3, 1), (4, 1, 1), (-2, 3, 2))

ROWS = [
    of("take", ((2, 4, 3), np.array([[1, 3], [0, 1]])), lambda x, i: np.take(x, i, 1), axis=1),
    of("take last", ((2, 3), np.array(2)), lambda x, i: np.take(x, i, 1), axis=-1),
    of("take none", ((2, 3), np.zeros(0, int)), lambda x, i: np.take(x, i, 1), gradient=False, axis=1),
    of("flip", ((2, 3, 2),), lambda x: np.flip(x, (0, 2)), axis=(0, -1)),
    of("flip ints", (INTS,), np.flip, gradient=False),
    of("flip empty", ((0, 3),), lambda x: x, gradient=False, axis=0),
    of("roll", ((2, 5),), lambda x: np.roll(x, -7, 1), shift=-7, axis=1),
    of("roll whole", ((2, 5),), lambda x: x, shift=4, axis=0),
    of("roll empty", ((0, 5),), lambda x: x, gradient=False, shift=4, axis=0),
    of("tile", ((2, 3),), lambda x: np.tile(x, (2, 1, 3)), repeats=(2, 1, 3)),
    of("tile few", ((2, 3),), lambda x: np.tile(x, 2), repeats=[2]),
    of("tile mask", (MASK,), lambda x: np.tile(x, (0, 2)), gradient=False, repeats=(0, 2)),
    of("repeat_interleave repeat", ((2, 3),), lambda x: np.repeat(x, 2, 1), repeats=2, axis=1),
    of("repeat_interleave repeat each", ((2, 3),), lambda x: np.repeat(x, (2, 0, 1), 1), repeats=(2, 0, 1), axis=-1),
    of("repeat_interleave repeat flat", (INTS,), lambda x: np.repeat(x, 3), gradient=False, repeats=3),
    of("repeat_interleave repeat none", ((2,),), lambda x: x[:0], gradient=False, repeats=(0, 0)),
    of("moveaxis", ((2, 3, 4),), lambda x: np.moveaxis(x, 0, -1), source=0, target=-1),
    of("swapaxes", ((2, 3, 4),), lambda x: np.swapaxes(x, 0, -1), first=0, second=-1),
    of("chunk", ((5, 2),), lambda x: (x[:2], x[2:4], x[4:]), chunks=3),
    of("chunk fewer", ((2, 6),), lambda x: (x[:, :2], x[:, 2:4], x[:, 4:]), chunks=4, axis=1),
    of("unbind", ((2, 3),), lambda x: tuple(x.T), axis=1),
    of("tril", ((2, 3, 4),), lambda x: np.tril(x, 1), k=1),
    of("triu", ((4, 3),), lambda x: np.triu(x, -1), k=-1),
    of("triu of nan", (np.array([[1.0, 2.0], [np.nan, np.inf]]),), lambda x: np.array([[1.0, 2.0], [0.0, np.inf]]),
        gradient=False),
    of("tril mask", (MASK,), np.tril, gradient=False),
    Row("eye", ((2,),), lambda ops, x: (derived.eye(ops, 2, 4, k=1), derived.eye(ops, 0),
        derived.eye(ops, 2, dtype="bool")), lambda x: (np.eye(2, 4, 1), np.eye(0), np.eye(2, dtype=bool)),
        gradient=False),
    *(
        Row(f"diagonal {k}", ((3, 4, 2),), lambda ops, x, k=k: derived.diagonal(ops, x, k=k, first=1, second=0),
            lambda x, k=k: np.diagonal(x, k, 1, 0), gradient=abs(k) < 3)
        for k in (-3, -2, 0, 1, 7)
    ),
    Row("diag", ((3,),), lambda ops, x: (derived.diag(ops, x, k=1), derived.diag(ops, x, k=-2)),
        lambda x: (np.diag(x, 1), np.diag(x, -2))),
    of("diag of a matrix", ((3, 2),), lambda x: np.diag(x, -1), k=-1),
    of("trace", ((2, 3, 3),), lambda x: np.trace(x, 0, 1, 2)),
    of("masked_fill", ((2, 3), MASK), lambda x, m: np.where(m, -np.inf, x), gradient=False, value=-np.inf),
    of("masked_fill by columns", ((2, 3), MASK[0]), lambda x, m: np.where(m, 2.0, x), value=2.0),
    of("meshgrid", ((2,), (3,), (2,)), lambda *xs: tuple(np.meshgrid(*xs, indexing="ij"))),
    of("meshgrid xy", ((2,), (3,)), lambda *xs: tuple(np.meshgrid(*xs)), indexing="xy"),
    Row("arange", ((1,),), lambda ops, x: tuple(derived.arange(ops, *a, step=s) for *a, s in _STEPS),
        lambda x: tuple(np.array(range(*a), int) for a in _STEPS), gradient=False),
    Row("linspace", ((1,),), lambda ops, x: tuple(derived.linspace(ops, -1, 0.3, num=n) for n in (0, 1, 2, 7)),
        lambda x: tuple(np.linspace(-1, 0.3, n) for n in (0, 1, 2, 7)), gradient=False),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_is_numpys(row: Row) -> None:
    assert_row(row)


def shape(call: Any, *specs: str) -> str:
    report = opstage.check(call, *map(opstage.Spec, specs))
    assert report.ok and not report.conditions, report
    return " ".join(map(str, report.outputs.shape))


@pytest.mark.parametrize(
    ("call", "spec", "expected"),
    [
        (lambda ops, x: derived.flip(ops, x), "B N", "B N"),
        (lambda ops, x: derived.roll(ops, x, shift=5, axis=1), "B N", "B N"),
        (lambda ops, x: derived.tile(ops, x, repeats=(2, 3)), "B N", "2*B 3*N"),
        (lambda ops, x: derived.repeat_interleave(ops, x, repeats=2, axis=1), "B N", "B 2*N"),
        (lambda ops, x: derived.repeat_interleave(ops, x, repeats=2), "B N", "2*B*N"),
        (lambda ops, x: derived.tril(ops, x, k=-1), "B N M", "B N M"),
        (lambda ops, x: derived.diagonal(ops, x, first=1, second=2), "B N N", "B N"),
        (lambda ops, x: derived.trace(ops, x), "B N N", "B"),
        (lambda ops, x: derived.eye(ops, x.shape[0]), "N", "N N"),
        (lambda ops, x: derived.diag(ops, x, k=-2), "N", "N + 2 N + 2"),
        (lambda ops, x: derived.meshgrid(ops, x, x)[0], "N", "N N"),
        (lambda ops, x: derived.arange(ops, x.shape[0]), "N", "N"),
        (lambda ops, x: derived.swapaxes(ops, x, first=0, second=-1), "A B C", "C B A"),
    ],
)
def test_sizes_may_be_named(call: Any, spec: str, expected: str) -> None:
    assert shape(call, spec) == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops, x: derived.flip(ops, x, axis=2), r"^flip at .*axis 2 is out of range for a tensor of rank 2"),
        (lambda ops, x: derived.roll(ops, x, shift=x, axis=0), r"^roll at .*shift must be an integer but is "),
        (lambda ops, x: derived.tile(ops, x, repeats=(-1,)), r"^tile at .*a repeat must be at least 0 but is -1"),
        (lambda ops, x: derived.repeat_interleave(ops, x, repeats=(1,), axis=0), r"repeats has 1 entries but axis 0"),
        (lambda ops, x: derived.chunk(ops, x, chunks=0), r"^chunk at .*chunks must be at least 1 but is 0"),
        (lambda ops, x: derived.tril(ops, derived.trace(ops, x)), r"^tril at .*x must be a matrix, or a stack of them"),
        (lambda ops, x: derived.diagonal(ops, x, second=0), r"^diagonal at .*first and second are both axis 0 of x"),
        (lambda ops, x: derived.diag(ops, ops.unsqueeze(x, axis=0)), r"^diag at .*x must be a vector or a matrix"),
        (lambda ops, x: derived.meshgrid(ops, x), r"^meshgrid at .*must be a vector but one is \(2, 3\)"),
        (lambda ops, x: derived.meshgrid(ops, indexing="yx"), r"indexing must be 'ij' or 'xy' but is 'yx'"),
        (lambda ops, x: derived.arange(ops, 2.5), r"^arange at .*stop must be an integer or a size but is 2\.5"),
        (lambda ops, x: derived.arange(ops, 3, step=0), r"^arange at .*step must not be 0"),
        (lambda ops, x: derived.linspace(ops, 0, 1, num=-1), r"^linspace at .*num must be at least 0 but is -1"),
        (lambda ops, x: derived.linspace(ops, 0, 1, num=2**70), r"^linspace at .*num must be at most 16777216 but"),
    ],
)  # fmt: skip
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        opstage.run(call, np.ones((2, 3)), options=FLOAT64)


def test_an_unknown_number_of_tensors_is_refused() -> None:
    report = opstage.check(lambda ops, x: derived.unbind(ops, x), opstage.Spec("N 3"))
    assert "must be a number, not a named size" in str(report)


@pytest.mark.parametrize("index", [-1, 3])
def test_take_is_out_of_range_as_gather_rows(index: int) -> None:
    x, i = np.arange(6.0).reshape(2, 3), np.array([0, index])
    with pytest.raises(RangeError, match=f"index {index}"):
        opstage.run(lambda ops, x, i: derived.take(ops, x, i, axis=1), x, i)
    zeros = opstage.run(lambda ops, x, i: derived.take(ops, x, i, axis=1, mode="zero"), x, i)
    np.testing.assert_array_equal(zeros, [[0, 0], [3, 0]])


@pytest.mark.parametrize("dtype", ["float32", "exact"])
def test_numbers_made_from_nothing(dtype: Any) -> None:
    made = opstage.run(lambda ops: derived.linspace(ops, 0, 1, num=4), options=opstage.Options(dtype=dtype))
    if dtype == "exact":
        assert [str(v) for v in made] == ["0", "1/3", "2/3", "1"]
    else:
        assert made.dtype == np.float32
        np.testing.assert_array_equal(made, np.linspace(0, 1, 4).astype(np.float32))
