"""Jacobians, Hessians and gradients of each sample, against formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.ops.errors import ShapeError, UsageError

BOTH = pytest.mark.parametrize("backend", ["eager", "compiled"])
RNG = np.random.default_rng(0)
A, X, Y = RNG.normal(size=(2, 3)), RNG.normal(size=3), RNG.normal(size=(4, 3))


@BOTH
def test_jacobian_of_trees(backend: str) -> None:
    def program(ops: Any, p: Any, y: Any) -> Any:
        return {"sin": ops.sin(p["x"]), "product": p["a"] @ p["x"]}

    found = opstage.jacobian(program, {"a": A, "x": X}, Y, options=Options(dtype="float64", backend=backend))
    np.testing.assert_allclose(found["sin"]["x"], np.diag(np.cos(X)))
    np.testing.assert_array_equal(found["sin"]["a"], np.zeros((3, 2, 3)))
    np.testing.assert_allclose(found["product"]["x"], A)
    np.testing.assert_allclose(found["product"]["a"], np.einsum("ij,k->ijk", np.eye(2), X))


@BOTH
def test_hessian_of_trees(backend: str) -> None:
    def program(ops: Any, y: Any, p: Any) -> Any:
        return ops.sum(ops.exp(p["x"])) * p["s"]

    args = (Y, {"x": X, "s": np.array(2.0)})
    found = opstage.hessian(program, *args, wrt=1, options=Options(dtype="float64", backend=backend))
    np.testing.assert_allclose(found["x"]["x"], np.diag(2 * np.exp(X)))
    np.testing.assert_allclose(found["x"]["s"], np.exp(X))
    np.testing.assert_allclose(found["s"]["x"], np.exp(X))
    assert found["s"]["s"] == 0.0


@BOTH
def test_gradient_of_each_sample(backend: str) -> None:
    def program(ops: Any, w: Any, y: Any) -> Any:
        return ops.reduce_mean(ops.pow(y @ w, exponent=2))

    options = Options(dtype="float64", backend=backend)
    found = opstage.per_sample_gradients(program, X, Y, options=options)
    np.testing.assert_allclose(found, 2 * (Y @ X)[:, None] * Y)
    np.testing.assert_allclose(found.mean(0), opstage.value_and_grad(program, X, Y, options=options)[1])
    assert opstage.per_sample_gradients(program, X, Y[:0], options=options).shape == (0, 3)


def test_what_is_refused() -> None:
    def program(ops: Any, x: Any, *rest: Any) -> Any:
        return ops.sum(x)

    with pytest.raises(UsageError, match="wrt is the position"):
        opstage.jacobian(program, X, wrt=1)
    with pytest.raises(UsageError, match="a leaf of int64"):
        opstage.hessian(program, np.arange(3))
    with pytest.raises(ShapeError, match="share their leading size"):
        opstage.per_sample_gradients(program, X, Y, X)
