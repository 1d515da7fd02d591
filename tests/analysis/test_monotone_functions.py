"""The table of monotone functions, which bounds and ranges read, against what the ops compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.analysis.monotone_functions import MONOTONE
from opstage.ops.primitive import Primitive

STATICS: dict[str, list[dict[str, Any]]] = {
    "clamp": [{"lo": -1.5, "hi": 2.0}],
    "scale": [{"c": 1.5}, {"c": -0.5}],
    "safe_log": [{"eps": 1e-3}],
    "leaky_relu": [{"negative_slope": 0.1}],
    "elu": [{"alpha": 1.5}],
    "celu": [{"alpha": 0.7}],
    "softshrink": [{"width": 0.5}],
    "hardtanh": [{"lo": -1.0, "hi": 1.0}],
}
"""Of those that have parameters."""
DOMAINS = {
    **dict.fromkeys(("sqrt", "log", "log2", "log10"), (0.0, 1e6)),
    **dict.fromkeys(("asin", "acos", "atanh"), (-1.0, 1.0)),
    "log1p": (-1.0, 1e6),
    "acosh": (1.0, 1e6),
}
CASES = [(primitive, static) for primitive in MONOTONE for static in STATICS.get(primitive.name, [{}])]


def points(primitive: Primitive, dtype: Any, count: int) -> Any:
    """Numbers of the op's domain in order: dense near 0 and where functions level off, and far out."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-20, 20, count), rng.uniform(-1, 1, count) * 10.0 ** rng.uniform(-30, 3, count)])
    low, high = DOMAINS.get(primitive.name, (-np.inf, np.inf))
    return np.unique(x[(x > low) & (x < high)].astype(dtype))


@pytest.mark.parametrize(("primitive", "static"), CASES, ids=lambda each: str(getattr(each, "name", each)))
def test_functions_go_as_the_table_says(primitive: Primitive, static: dict[str, Any]) -> None:
    """In float64 up to what its kernels round; never beyond a limit."""
    kind = MONOTONE[primitive]
    x = points(primitive, "float64", 2000)
    with np.errstate(over="ignore"):
        y = opstage.run(lambda ops, x: ops.bind(primitive, (x,), static)[0], x, options=Options(dtype="float64"))
    y = np.asarray(y)[np.isfinite(y)]
    room = 40 * 2.0**-52 * np.maximum(np.maximum(np.abs(y[1:]), np.abs(x[: len(y)][1:])), 1)
    steps = np.diff(y) if kind.rises(static) else -np.diff(y)
    assert (steps >= -room).all()
    assert kind.least <= y.min()
    assert y.max() <= kind.greatest


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_kernels_stay_within_the_limits_of_the_table(backend: Any) -> None:
    """Of float32, all in one program; a limit that float32 does not hold is rounded to it."""
    bounded = [each for each in CASES if np.isfinite([MONOTONE[each[0]].least, MONOTONE[each[0]].greatest]).any()]

    def program(ops: Any, *xs: Any) -> Any:
        return [ops.bind(primitive, (x,), static)[0] for (primitive, static), x in zip(bounded, xs)]

    xs = [points(primitive, "float32", 20_000) for primitive, _ in bounded]
    with np.errstate(over="ignore"):
        found = opstage.run(program, *xs, options=Options(backend=backend))
    for (primitive, _), y in zip(bounded, found):
        assert np.float32(MONOTONE[primitive].least) <= y.min(), primitive.name
        assert y.max() <= np.float32(MONOTONE[primitive].greatest), primitive.name
