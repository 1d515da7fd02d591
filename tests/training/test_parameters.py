"""Trees of parameters: casts, and SGD steps that are equal bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage.ops.errors import ShapeError, UsageError
from opstage.options import Options
from opstage.training.parameters import cast, get_values, make_params, set_values, sgd_step, sgd_step_fast


def values(dtype: str = "float32") -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"a": {"w": rng.standard_normal((37, 5)).astype(dtype)}, "b": rng.standard_normal(1000).astype(dtype)}


def gradients(dtype: str = "float32") -> dict[str, Any]:
    rng = np.random.default_rng(2)
    return {"a": {"w": rng.standard_normal((37, 5)).astype(dtype)}, "b": rng.standard_normal(1000).astype(dtype)}


@pytest.mark.parametrize("fast_kernels", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_fused_step_equals_the_definition_bit_for_bit(dtype: str, fast_kernels: bool) -> None:
    options = Options(dtype=dtype, fast_kernels=fast_kernels)
    plain, fused = (make_params(values(dtype), options=options) for _ in range(2))
    for lr in (0.1, 1e-3, 0.0, 3.7):
        sgd_step(plain, lr, gradients(dtype), options=options)
        sgd_step_fast(fused, lr, gradients(dtype), options=options)
        for p, f in ((plain["a"]["w"], fused["a"]["w"]), (plain["b"], fused["b"])):
            assert p.value.tobytes() == f.value.tobytes()
    expected = values(dtype)["b"]
    for lr in (0.1, 1e-3, 0.0, 3.7):
        expected = expected - np.asarray(lr, dtype) * gradients(dtype)["b"]
    assert plain["b"].value.tobytes() == expected.tobytes()


@pytest.mark.parametrize("step", [sgd_step, sgd_step_fast])
def test_gradients_are_checked_before_anything_is_touched(step: Any) -> None:
    params = make_params(values())
    for grads, message in [
        ({"a": {"w": np.ones((37, 5))}}, "gradients are not built like the parameters"),
        (
            {"a": {"w": np.ones((37, 4))}, "b": np.ones(1000)},
            r"gradient of a\.w is \(37, 4\) but the parameter is \(37, 5\)",
        ),
        ({"a": {"w": np.ones((37, 5))}, "b": None}, "parameter b requires a gradient but is given None"),
    ]:
        with pytest.raises((UsageError, ShapeError), match=message):
            step(params, 0.1, grads)
    for lr in (-1.0, float("nan")):
        with pytest.raises(UsageError, match="lr"):
            step(params, lr, gradients())
    assert np.array_equal(params["b"].value, values()["b"])


@pytest.mark.parametrize("step", [sgd_step, sgd_step_fast])
def test_frozen_parameters_are_not_touched(step: Any) -> None:
    params = make_params(values(), requires_grad={"a": {"w": False}, "b": True})
    step(params, 0.5, {"a": {"w": None}, "b": np.ones(1000)})
    assert params["a"]["w"].version == 0
    np.testing.assert_allclose(params["b"].value, values()["b"] - 0.5, rtol=1e-6)


def test_cast_changes_floats_alone() -> None:
    tree = {"w": np.ones(3, np.float32), "n": np.arange(3), "m": np.array([True])}
    wide = cast(tree, "float64")
    assert (wide["w"].dtype, wide["n"].dtype, wide["m"].dtype) == (np.float64, np.int64, np.bool_)
    params = cast(make_params(values()), "float64")
    assert params["b"].dtype == np.float64 and params["b"].name == "b"
    np.testing.assert_array_equal(params["b"].value, values()["b"].astype(np.float64))
    exact = cast({"w": np.array([0.5, 0.25])}, "exact")["w"]
    assert [str(v) for v in exact] == ["1/2", "1/4"]
    with pytest.raises(UsageError, match=r"unknown dtype 'float46' \(did you mean 'float64'\?\)"):
        cast(tree, "float46")


def test_reading_and_writing_a_tree() -> None:
    params = make_params(values())
    taken = get_values(params)
    taken["b"][...] = 0
    assert np.array_equal(params["b"].value, values()["b"])
    with pytest.raises(ShapeError):
        set_values(params, {"a": {"w": np.zeros((37, 5))}, "b": np.zeros(3)})
    assert np.array_equal(params["a"]["w"].value, values()["a"]["w"])
    set_values(params, taken)
    assert not params["b"].value.any()
