"""Elements at places given by tensors: against NumPy, and errors of indices and labels that are out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import derived
from opstage.ops.errors import DtypeError, RangeError, ShapeError
from tests.ops.functions import COMPILED, FLOAT64, Row, assert_row, of

IDX = np.array([[2, 0, 2], [1, 1, 1]])
ND = np.array([[[0, 2], [1, 0]], [[0, 2], [0, 2]]])
MASK = np.array([[True, False, True], [False, False, True]])
_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": np.maximum,
    "min": np.minimum,
}


def _put(x: Any, idx: Any, v: Any, axis: int, reduce: str) -> Any:
    out = x.copy()
    for at in np.ndindex(idx.shape):
        place = (*at[:axis], idx[at], *at[axis + 1 :])
        if 0 <= idx[at] < x.shape[axis]:
            out[place] = _COMBINE[reduce](out[place], v[at])
    return out


def _scatter(x: Any, idx: Any, v: Any, reduce: str) -> Any:
    out = x.copy()
    for at in np.ndindex(idx.shape[:-1]):
        out[tuple(idx[at])] = _COMBINE[reduce](out[tuple(idx[at])], v[at])
    return out


ROWS = [
    of("take_along_axis along", ((2, 3), IDX), lambda x, i: np.take_along_axis(x, i, 1), axis=1),
    of("take_along_axis along the first", ((2, 3, 2), np.array([[[1, 0], [0, 0], [1, 1]]])), lambda x,
        i: np.take_along_axis(x, i, 0), axis=-3),
    of("take_along_axis along, zeros", ((2, 3), np.array([[-1, 3, 1], [2, 9, -7]])), lambda x,
        i: np.where((i >= 0) & (i < 3), np.take_along_axis(x, i.clip(0, 2), 1), 0), axis=1, mode="zero"),
    of("take_along_axis along of nothing", ((2, 0), np.zeros((2, 0), int)), lambda x, i: x, gradient=False, axis=1),
    *(
        Row(f"put {reduce}", ((2, 3), IDX, (2, 3)),
            lambda ops, x, i, v, r=reduce: derived.put_along_axis(ops, x, i, v, axis=1, reduce=r),
            lambda x, i, v, r=reduce: _put(x, i, v, 1, r))
        for reduce in _COMBINE
    ),
    of("put_along_axis put, beyond", ((2, 3), np.array([[-1, 5, 1]]), (1, 3)), lambda x, i, v: _put(x, i, v, 0, "set"),
        axis=0, mode="zero"),
    Row("put no updates", ((2, 3), np.zeros((2, 0), int), (2, 0)),
        lambda ops, x, i, v: tuple(derived.put_along_axis(ops, x, i, v, axis=1, reduce=r) for r in _COMBINE),
        lambda x, i, v: (x,) * 5, gradient=False),
    of("put_along_axis put integers", (np.arange(6).reshape(2, 3), IDX, np.array([[7, -8, 9], [4, -5, -6]])), lambda x,
        i, v: _put(x, i, v, 1, "min"), gradient=False, axis=1, reduce="min"),
    of("put_along_axis put a mask", (MASK, IDX, ~MASK), lambda x, i, v: _put(x, i, v, 1, "set"), gradient=False,
        axis=1),
    Row("put edges",
        (np.array([1.0, np.nan, 2.0, -0.0]), np.array([0, 2, 3, 0]), np.array([np.nan, np.inf, -0.0, -0.0])),
        lambda ops, x, i, v: tuple(derived.put_along_axis(ops, x, i, v, axis=0, reduce=r) for r in ("set", "max")),
        lambda x, i, v: (np.array([-0.0, np.nan, np.inf, -0.0]), np.array([np.nan, np.nan, np.inf, -0.0])),
        gradient=False),
    of("gather_nd", ((2, 3, 2), ND), lambda x, i: x[i[..., 0], i[..., 1]]),
    of("gather_nd in a batch", ((2, 3, 2), np.array([[[2]], [[0]]])), lambda x,
        i: np.stack([x[b][i[b, :, 0]] for b in range(2)]), batch=1),
    *(
        Row(f"scatter_nd {reduce}", ((2, 3, 2), ND, (2, 2, 2)),
            lambda ops, x, i, v, r=reduce: derived.scatter_nd(ops, x, i, v, reduce=r),
            lambda x, i, v, r=reduce: _scatter(x, i, v, r))
        for reduce in _COMBINE
    ),
    of("index_add", ((2, 3), np.array([2, 0, 2]), (2, 3)), lambda x, i, v: _put(x, np.stack([i, i]), v, 1, "add"),
        axis=1),
    of("nonzero", (MASK,), lambda m: (np.concatenate([np.argwhere(m), [[-1, -1]]]), np.array(3)), gradient=False,
        size=4),
    of("nonzero of none", (MASK & False,), lambda m: (np.zeros((0, 2), int), np.array(0)), gradient=False, size=0),
    Row("masked_select", ((2, 3), MASK), lambda ops, x, m: derived.masked_select(ops, x, m, size=3)[0],
        lambda x, m: x[m]),
    of("masked_select, filled", (np.arange(3), np.array([True, False, True])), lambda x,
        m: (np.array([0, 2, 7, 7]), np.array(2)), gradient=False, size=4, fill=7),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_is_as_numpys_loop(row: Row) -> None:
    assert_row(row)


@pytest.mark.parametrize("options", [FLOAT64, COMPILED], ids=["eager", "compiled"])
@pytest.mark.parametrize("wrong", [-1, 3])
@pytest.mark.parametrize(
    "call",
    [
        lambda ops, x, i: derived.take_along_axis(ops, x, i, axis=1),
        lambda ops, x, i: derived.put_along_axis(ops, x, i, x, axis=1),
        lambda ops, x, i: derived.put_along_axis(ops, x, i, x, axis=1, reduce="add"),
        lambda ops, x, i: derived.put_along_axis(ops, x, i, x, axis=1, reduce="mul"),
        lambda ops, x, i: derived.gather_nd(ops, x, ops.stack([i * 0, i], axis=-1)),
    ],
)
def test_a_place_out_of_range_is_an_error(call: Any, wrong: int, options: Any) -> None:
    """Also where its number among all elements would be in range: the last of one row, the first of the next."""
    x, i = np.ones((2, 3)), np.array([[0, 1, 2], [0, 1, 1]])
    i[1 if wrong < 0 else 0, 1] = wrong
    with pytest.raises(RangeError, match=f"index {wrong}"):
        opstage.run(call, x, i, options=options)


@pytest.mark.parametrize("options", [FLOAT64, COMPILED], ids=["eager", "compiled"])
def test_too_many_are_an_error(options: Any) -> None:
    for call in (derived.nonzero, lambda ops, m, size: derived.masked_select(ops, m, m, size=size)):
        with pytest.raises(RangeError):
            opstage.run(lambda ops, m, call=call: call(ops, m, size=2), MASK, options=options)


def test_the_last_update_takes_the_gradient() -> None:
    def total(ops: Any, x: Any, v: Any) -> Any:
        return ops.sum(derived.put_along_axis(ops, x, ops.const(np.array([1, 0, 1])), v, axis=0))

    _, (dx, dv) = opstage.value_and_grad(total, np.ones(3), np.ones(3), wrt=(0, 1), options=FLOAT64)
    np.testing.assert_array_equal(dx, [0, 0, 1])
    np.testing.assert_array_equal(dv, [0, 1, 1])


@pytest.mark.parametrize(
    ("call", "specs", "expected"),
    [
        (lambda ops, x, i: derived.take_along_axis(ops, x, i, axis=1), ("B N", "B K"), "B K"),
        (lambda ops, x, i: derived.put_along_axis(ops, x, i, x, axis=1), ("B N", "B N"), "B N"),
        (lambda ops, x, i: derived.gather_nd(ops, x, i), ("A B C", "K 2"), "K C"),
        (lambda ops, x, i: derived.gather_nd(ops, x, i, batch=1), ("A B C", "A K 1"), "A K C"),
        (lambda ops, x, i: derived.nonzero(ops, x > 0, size=5)[0], ("A B", "A"), "5 2"),
    ],
)
def test_sizes_may_be_named(call: Any, specs: Any, expected: str) -> None:
    report = opstage.check(call, opstage.Spec(specs[0]), opstage.Spec(specs[1], dtype="int64"))
    assert report.ok, report
    assert " ".join(map(str, report.outputs.shape)) == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops, x, i: derived.take_along_axis(ops, x, i[0], axis=0), "they must have one rank"),
        (lambda ops, x, i: derived.take_along_axis(ops, x, i[:1], axis=1), "axis 0 differs, and only axis 1 may"),
        (lambda ops, x, i: derived.take_along_axis(ops, x, x, axis=1), "idx must be a tensor of integers"),
        (lambda ops, x, i: derived.take_along_axis(ops, x, i, axis=1, mode="clip"), "mode must be one of"),
        (lambda ops, x, i: derived.put_along_axis(ops, x, i, x[:1], axis=1), r"\(2, 3\) is needed but it is \(1, 3\)"),
        (lambda ops, x, i: derived.put_along_axis(ops, x, i, x, axis=1, reduce="sum"), "reduce must be one of"),
        (lambda ops, x, i: derived.put_along_axis(ops, x, i, i, axis=1), "x and v must have one dtype"),
        (lambda ops, x, i: derived.gather_nd(ops, x, i), "3 indices behind 0 axes of the batch are too many"),
        (lambda ops, x, i: derived.index_add(ops, x, i, x, axis=0), "^index_add at .*idx must be a vector"),
        (lambda ops, x, i: derived.nonzero(ops, x, size=3), "the mask must be of dtype bool"),
    ],
)  # fmt: skip
def test_errors(call: Any, message: str) -> None:
    error = DtypeError if "of integers" in message or "dtype" in message else ShapeError
    with pytest.raises(error, match=message):
        opstage.run(call, np.ones((2, 3)), IDX, options=FLOAT64)


# An index or label that is out of range, on eager_cpu: which one, where, and what is allowed --------------------------

X = np.arange(6.0).reshape(3, 2)


def fails(program: Callable[..., Any], *args: Any, match: str) -> None:
    """Both a plain run and a gradient raise; the error names this file."""
    with pytest.raises(RangeError, match=match) as caught:
        opstage.run(program, *args)
    assert caught.value.source is not None and caught.value.source.file == __file__
    with pytest.raises(RangeError, match=match):
        opstage.value_and_grad(lambda ops, *refs: ops.sum(program(ops, *refs)), *args)


@pytest.mark.parametrize(
    ("idx", "where"),
    [
        (np.array([0, 3, 7]), r"index 3 at position \(1,\)"),
        (np.array([[0, 1], [2, -1]]), r"index -1 at position \(1, 1\)"),
        (np.array(99, np.int32), "index 99 is"),
    ],
)
def test_gather_rows(idx: Any, where: str) -> None:
    allowed = r"out of range: x is \(3, 2\), so indices are 0 … 2, and negative ones are out of range"
    fails(lambda ops, x, i: ops.gather_rows(x, i), X, idx, match=f"^gather_rows at .*{where}.*{allowed}")


def test_gather_vec() -> None:
    fails(lambda ops, x, i: ops.gather_vec(x, i), X[0], np.array([2]), match="^gather_vec at .*index 2 at .* 0 … 1")


def test_gather_from_nothing() -> None:
    fails(lambda ops, x, i: ops.gather_rows(x, i), X[:0], np.array([0]), match="index 0 .*without a row")


def test_scatter_add() -> None:
    idx = np.array([1, 3])
    fails(lambda ops, x, v, i: ops.scatter_add_row(x, v, i), X, X[:2], idx, match="^scatter_add_row at .*index 3 at")
    vec, v = X[:, 0], np.ones(2)
    fails(lambda ops, x, v, i: ops.scatter_add_vec(x, v, i), vec, v, idx, match="^scatter_add_vec at .*index 3 at")


@pytest.mark.parametrize("index", [6, 11, -1, -7])
def test_positions_of_a_pool_in_the_next_plane_or_before_the_first(index: int) -> None:
    places = np.array([[[0, 2, index], [0, 2, 4]]])
    window = {"kernel": (2,), "stride": 2, "padding": 0}
    match = rf"index {index} at position \(0, 0, 2\) is out of range: planes are \(6,\), so indices are 0 … 5"
    x = np.arange(12.0).reshape(1, 2, 6)
    fails(lambda ops, x, i: ops.max_pool_gather(x, i, **window), x, places, match=f"^max_pool_gather at .*{match}")
    fails(
        lambda ops, g, i: ops.max_pool_scatter(g, i, shape=(6,), **window),
        x[:, :, :3],
        places,
        match=f"^max_pool_scatter at .*{match}",
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_labels(reduction: str) -> None:
    def program(ops: Any, logits: Any, labels: Any) -> Any:
        return ops.cross_entropy(logits, labels, reduction=reduction)

    match = (
        r"^cross_entropy at .*label {} at position {} .* 2 classes on axis 1, so labels are 0 … 1, or ignore_index=-100"
    )
    fails(program, X, np.array([0, 2, 5]), match=match.format(2, r"\(1,\)"))
    fails(program, X, np.array([-1, 0, -100]), match=match.format(-1, r"\(0,\)"))


def test_labels_are_checked_when_cross_entropy_is_expanded() -> None:
    args = (X, np.array([0, 1, 2]))
    with pytest.raises(RangeError, match=r"index 2 at position \(2,\).* 0 … 1"):
        opstage.hvp(lambda ops, logits, labels: ops.cross_entropy(logits, labels), args, (X, None))


def test_an_ignored_label_may_be_anything() -> None:
    labels = np.array([0, 1, 77])
    value = opstage.run(lambda ops, x, y: ops.cross_entropy(x, y, ignore_index=77), X, labels)
    assert value == pytest.approx(np.mean([np.log(1 + np.e), np.log(1 + np.exp(-1))]), rel=1e-6)
