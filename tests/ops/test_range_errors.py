"""An index or label that is out of range, on eager_cpu: which one, where, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.ops.errors import RangeError

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
    def loss(ops: Any, logits: Any, labels: Any) -> Any:
        return ops.cross_entropy(logits, labels)

    args = (X, np.array([0, 1, 2]))
    with pytest.raises(RangeError, match=r"index 2 at position \(2,\).* 0 … 1"):
        opstage.hvp(loss, args, (X, None))


def test_an_ignored_label_may_be_anything() -> None:
    labels = np.array([0, 1, 77])
    value = opstage.run(lambda ops, x, y: ops.cross_entropy(x, y, ignore_index=77), X, labels)
    assert value == pytest.approx(np.mean([np.log(1 + np.e), np.log(1 + np.exp(-1))]), rel=1e-6)
