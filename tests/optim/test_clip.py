"""Gradient clipping against its formulas in NumPy, finite and not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.ops.errors import UsageError
from opstage.optim import clip
from opstage.options import Options

GRADIENTS = {
    "large": [np.array([[3.0, -4.0], [0.5, 0.0]]), np.array([12.0])],
    "small": [np.array([0.01, -0.02]), np.array(0.03)],
    "zero": [np.zeros(3), np.zeros((2, 2))],
    "infinite": [np.array([np.inf, 1.0]), np.array([2.0])],
    "nan": [np.array([np.nan, 1.0]), np.array([2.0])],
}


def clipped(by: clip.Clip, gradients: list[Any]) -> list[Any]:
    result: list[Any] = opstage.run(lambda ops, *g: by(ops, g), *gradients, options=Options(dtype="float64"))
    return result


def norm(gradients: list[Any]) -> Any:
    return np.sqrt(sum(np.sum(g**2) for g in gradients))


def factor(total: Any, max_norm: float) -> Any:
    """PyTorch: clamp(max_norm/(norm + 1e-6), max=1), which keeps nan; here of an infinite norm too."""
    return np.minimum(max_norm / (total + 1e-6), 1.0) if np.isfinite(total) else np.nan


def same(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        np.testing.assert_allclose(a, e, rtol=1e-12, strict=True)


FORMULAS: dict[str, tuple[clip.Clip, Callable[[list[Any]], list[Any]]]] = {
    "by value": (clip.by_value(2.0), lambda gs: [np.where(g > 2.0, 2.0, np.where(g < -2.0, -2.0, g)) for g in gs]),
    "by norm": (clip.by_norm(2.0), lambda gs: [g * factor(norm([g]), 2.0) for g in gs]),
    "by global norm": (clip.by_global_norm(2.0), lambda gs: [g * factor(norm(gs), 2.0) for g in gs]),
}


@pytest.mark.parametrize("case", GRADIENTS)
@pytest.mark.parametrize("how", FORMULAS)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_clipping_follows_its_formula(how: str, case: str) -> None:
    by, formula = FORMULAS[how]
    same(clipped(by, GRADIENTS[case]), formula(GRADIENTS[case]))


def test_a_clipped_gradient_has_the_norm_that_was_asked_for() -> None:
    large = GRADIENTS["large"]
    assert norm(clipped(clip.by_global_norm(2.0), large)) == pytest.approx(2.0, rel=1e-6)
    assert all(norm([g]) == pytest.approx(2.0, rel=1e-6) for g in clipped(clip.by_norm(2.0), large))
    same(clipped(clip.by_global_norm(2.0), GRADIENTS["small"]), GRADIENTS["small"])


@pytest.mark.parametrize("options", [Options(), Options(backend="compiled")], ids=["eager", "compiled"])
def test_a_norm_that_is_no_number_spreads(options: Options) -> None:
    """Also that of numbers whose squares overflow: zeros would be a step lost without a word."""
    overflowing = [np.array([1e30, 1.0]), np.array([2.0])]
    for gradients in (GRADIENTS["infinite"], GRADIENTS["nan"], overflowing):
        program = lambda ops, *g: clip.by_global_norm(1.0)(ops, g)  # noqa: E731
        found = opstage.run(program, *[g.astype(np.float32) for g in gradients], options=options)
        assert all(np.all(np.isnan(g)) for g in found)


def test_no_gradients() -> None:
    assert clip.by_global_norm(1.0)(None, []) == []  # type: ignore[arg-type]


def test_global_norm() -> None:
    total = opstage.run(lambda ops, *g: clip.global_norm(ops, g), *GRADIENTS["large"], options=Options(dtype="float64"))
    np.testing.assert_allclose(total, math.sqrt(9 + 16 + 0.25 + 144))


@pytest.mark.parametrize("limit", [-1.0, math.nan, math.inf, "1"])
@pytest.mark.parametrize("by", [clip.by_value, clip.by_norm, clip.by_global_norm])
def test_bad_limits(by: Any, limit: Any) -> None:
    with pytest.raises(UsageError, match="must be a finite number that is at least 0"):
        by(limit)
