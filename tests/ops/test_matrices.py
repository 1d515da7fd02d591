"""Functions of matrices, against NumPy; and gradients where a matrix has no inverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage import derived
from opstage.ops.errors import ShapeError
from tests.ops.functions import FLOAT64, Row, assert_row, of

REGULAR = np.array(
    [[[0.0, 2.0, 1.0], [1.0, -1.0, 0.5], [3.0, 0.5, 1.0]], [[2.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 4.0]]]
)

ROWS = [
    of("inverse", (REGULAR,), np.linalg.inv),
    of("inverse of one", (REGULAR[0],), np.linalg.inv),
    of("inverse of none", ((0, 2, 2),), lambda x: x, gradient=False),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_function(row: Row) -> None:
    assert_row(row)


def test_the_inverse_of_a_singular_matrix_is_nan_and_its_own_alone() -> None:
    stack = np.stack([np.ones((2, 2)), 2 * np.eye(2)])
    out: Any = opstage.run(lambda ops, x: derived.inverse(ops, x), stack, options=FLOAT64)
    assert np.isnan(out[0]).all()
    np.testing.assert_array_equal(out[1], np.eye(2) / 2)


def test_inverse_of_a_matrix_that_is_not_square() -> None:
    with pytest.raises(ShapeError, match=r"inverse.* 2 rows and 3 columns"):
        opstage.run(lambda ops, x: derived.inverse(ops, x), np.ones((2, 3)), options=FLOAT64)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_gradient_of_a_determinant_at_every_rank(rank: int) -> None:
    """By minors; where the rank is less than n - 1 it is 0."""
    rng = np.random.default_rng(rank)
    x = rng.standard_normal((4, rank)) @ rng.standard_normal((rank, 4))
    expected = np.array(
        [[(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(x, i, 0), j, 1)) for j in range(4)] for i in range(4)]
    )
    _, found = opstage.value_and_grad(lambda ops, p: ops.det(p["x"]), {"x": x}, options=FLOAT64)
    np.testing.assert_allclose(found["x"], expected, rtol=1e-9, atol=1e-12)
    assert (np.abs(expected) > 1e-3).any() == (rank == 3)


def test_determinants_of_named_sizes() -> None:
    report = opstage.check(lambda ops, x: (ops.det(x), ops.cofactor(x), *ops.slogdet(x)), opstage.Spec(("b", "n", "n")))
    assert report.ok, report


def test_eigenvectors_of_named_sizes() -> None:
    def program(ops: Any, p: Any) -> Any:
        values, vectors = ops.eigh(p["x"])
        return ops.add(ops.sum(ops.mul(values, values)), ops.sum(vectors))

    assert opstage.check(program, {"x": opstage.Spec(("b", "n", "n"))}).ok


@pytest.mark.parametrize("shape", [("b", "m", "n"), ("n + 1", "n"), ("n", "n + 1"), ("n", "n")])
def test_factors_of_named_sizes(shape: tuple[str, ...]) -> None:
    def program(ops: Any, p: Any) -> Any:
        q, r = ops.qr(p["x"])
        u, s, vh = ops.svd(ops.sub(ops.bmm(q, r), p["x"]))
        return ops.add(ops.add(ops.sum(u), ops.sum(vh)), ops.sum(s))

    assert opstage.check(program, {"x": opstage.Spec(shape)}).ok


def test_gradient_of_equal_eigenvalues() -> None:
    """Of the values alone it is right: that of the sum of their squares is 2x. Of vectors it is none."""
    point = {"x": np.diag([2.0, 2.0, 1.0])}
    _, found = opstage.value_and_grad(lambda ops, p: ops.sum(ops.square(ops.eigh(p["x"])[0])), point, options=FLOAT64)
    np.testing.assert_allclose(found["x"], 2 * point["x"], atol=1e-12)
    _, found = opstage.value_and_grad(lambda ops, p: ops.sum(ops.eigh(p["x"])[1]), point, options=FLOAT64)
    assert not np.isfinite(found["x"]).all()


@pytest.mark.parametrize("size", [-3.0, 2.0])
def test_factors_of_one_number(size: float) -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.eigh(x), ops.qr(x), ops.svd(x)

    one, sign = np.ones((1, 1)), np.sign(size) * np.ones((1, 1))
    found: Any = opstage.run(program, np.array([[size]]), options=FLOAT64)
    expected = (size * one[0], one), (sign, abs(size) * one), (one, abs(size) * one[0], sign)
    assert optree.tree_all(optree.tree_map(np.array_equal, found, expected))


def test_a_matrix_that_does_not_converge_is_nan_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.linalg.svd

    def svd(x: Any, full_matrices: bool) -> Any:
        if (x == 7).any():
            raise np.linalg.LinAlgError("no convergence")
        return whole(x, full_matrices=full_matrices)

    monkeypatch.setattr(np.linalg, "svd", svd)
    stack = np.stack([np.diag([3.0, 7.0]), np.diag([2.0, 1.0])])
    for out in opstage.run(lambda ops, x: ops.svd(x), stack, options=FLOAT64):
        assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()


@pytest.mark.parametrize("x", [np.eye(3), np.zeros((3, 3)), np.ones((4, 4)), np.diag([1e-20, 1.0, 1e20])])
def test_eigenvectors_of_equal_values_are_orthonormal(x: Any) -> None:
    values, vectors = opstage.run(lambda ops, x: ops.eigh(x), x, options=FLOAT64)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(x)), atol=1e-12)
    np.testing.assert_allclose(vectors * values @ vectors.T, x, atol=1e-12 * np.abs(x).max())
