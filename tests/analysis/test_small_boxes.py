"""CROWN in float32 over boxes so small that rounding decides: values stay inside, and the bounds are not far apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opstage import Box, Options, bounds
from opstage.analysis.relaxations import linear as linear
from opstage.analysis.relaxations import unary as unary
from tests.analysis import test_relaxations
from tests.analysis.inside import check_inside
from tests.analysis.test_relaxations import FUNCTIONS

RADII = [0.0, 1e-8, 1e-6, 1e-4, 1e-2]
Program = Callable[..., Any]


def weights(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [(rng.standard_normal(shape) / np.sqrt(shape[-1])).astype("f4") for shape in shapes]


def two_layers(name: str) -> Program:
    """Weights that cancel, and large offsets: what moves is small beside what is added up."""
    first, second, bias = weights((16, 8), (4, 16), (16,))

    def program(ops: Any, x: Any) -> Any:
        h = FUNCTIONS[name](ops, ops.linear(ops.const(first), ops.const(bias), x))
        return ops.linear(ops.const(second - second.mean(axis=1, keepdims=True)), None, h)

    return program


def product(make: Callable[..., Any], *shapes: tuple[int, ...]) -> Program:
    held = weights(*shapes)
    return lambda ops, x: make(ops, *[ops.const(each) for each in held], x)


PROGRAMS: dict[str, tuple[Program, tuple[int, ...]]] = {
    **{name: (two_layers(name), (2, 8)) for name in FUNCTIONS if name not in ("leaky_relu that falls", "log")},
    "linear of open weights": (product(lambda ops, x, b, w: ops.linear(w, b, x), (3, 5), (7,)), (7, 5)),
    "linear of an open bias": (product(lambda ops, w, x, b: ops.linear(w, b, x), (7, 5), (3, 5)), (7,)),
    "matmul from the left": (product(lambda ops, w, x: ops.matmul(w, x), (6, 5)), (5, 3)),
    "matmul from the right": (product(lambda ops, w, x: ops.matmul(x, w), (5, 6)), (3, 5)),
    "a stack of products": (product(lambda ops, w, x: ops.bmm(x, w), (2, 5, 6)), (2, 3, 5)),
    "convolution": (
        product(lambda ops, k, b, x: ops.conv(k, b, x, stride=2, padding=1), (4, 2, 3, 3), (4,)),
        (1, 2, 6, 6),
    ),
    "transposed convolution": (
        product(lambda ops, k, x: ops.conv_transpose(k, None, x, stride=2), (2, 3, 3, 3)),
        (1, 2, 4, 4),
    ),
    "two products in turn": (
        product(lambda ops, v, w, x: ops.sub(ops.linear(v, None, ops.linear(w, None, x)), x), (5, 9), (9, 5)),
        (3, 5),
    ),
}


def check(name: str, radius: float, offset: float, backend: Any = "eager") -> None:
    program, shape = PROGRAMS[name]
    rng = np.random.default_rng(5)
    centre = (rng.standard_normal(shape) + offset).astype("f4")
    box = Box.around(centre, np.float32(radius))
    options = Options(dtype="float32", backend=backend)
    found = bounds(program, box, method="crown", options=options)
    check_inside(program, found, [box.lower], [box.upper], rng, options, 12)


@pytest.mark.parametrize(
    ("name", "radius", "far"),
    [
        pytest.param(name, radius, far, marks=() if (i + k) % 2 == far else pytest.mark.slow)
        for i, name in enumerate(PROGRAMS)
        for k, radius in enumerate(RADII)
        for far in (False, True)
    ],
)
def test_values_stay_inside_small_boxes(name: str, radius: float, far: bool) -> None:
    """About 0, and far from it."""
    check(name, radius, 0.0 if not far else 30.0 if name not in ("exp", "fourth power") else 3.0)


@pytest.mark.parametrize(
    "name",
    [
        "sigmoid",
        "convolution",
        *[pytest.param(name, marks=pytest.mark.slow) for name in ("softplus", "exp", "two products in turn")],
    ],
)
def test_values_stay_inside_small_boxes_compiled(name: str) -> None:
    check(name, 1e-6, 1.0, "compiled")


def test_what_overflows_in_float32_alone_is_not_bounded() -> None:
    """exp of 89 is a number of float64."""
    box = Box(np.full((1, 2), 88, "f4"), np.full((1, 2), 89, "f4"))
    found = bounds(lambda ops, x: ops.exp(x), box, method="crown")
    assert np.isinf(found.upper).all()


@pytest.mark.parametrize(
    ("name", "radius", "looser"),
    [
        ("relu", 1e-3, 1.02),
        ("tanh", 1e-3, 1.02),
        ("exp", 1e-3, 1.01),
        ("gelu", 1e-3, 1.02),
        ("softplus", 1e-3, 1.04),
        ("sigmoid", 1e-3, 1.05),
        *[(name, 0.01, 1.05) for name in ("relu", "tanh", "sigmoid")],
        ("sigmoid", 0.05, 1.05),
    ],
)
def test_small_boxes_in_float32_are_hardly_looser_than_in_float64(name: str, radius: float, looser: float) -> None:
    """Two hidden layers of 30. What is left is the error of a run, of which nothing but gamma is known."""
    rng = np.random.default_rng(0)
    shapes = [(30, 8), (30, 30), (3, 30)]
    layers = [(rng.standard_normal(s) / np.sqrt(s[1]), 0.1 * rng.standard_normal(s[0])) for s in shapes]
    box = Box.around(rng.standard_normal((4, 8)).astype("f4"), np.float32(radius))

    def network(ops: Any, layers: Any, x: Any) -> Any:
        for weight, bias in layers[:-1]:
            x = FUNCTIONS[name](ops, ops.linear(weight, bias, x))
        return ops.linear(*layers[-1], x)

    widths = []
    for dtype in ("f4", "f8"):
        held = [(w.astype("f4").astype(dtype), b.astype("f4").astype(dtype)) for w, b in layers]
        given = Box(box.lower.astype(dtype), box.upper.astype(dtype))
        options = Options(dtype="float32" if dtype == "f4" else "float64")
        found = bounds(network, held, given, method="crown", options=options)
        widths.append(np.mean(found.upper.astype("f8") - found.lower))
    assert widths[0] <= looser * widths[1]


# Rules made wrong -----------------------------------------------------------------------------------------------------


def test_runs_that_round_nothing_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_errors", lambda *given, **more: (0.0, 0.0))
    monkeypatch.setattr(linear, "epsilon", lambda dtype: 0.0)
    with pytest.raises(AssertionError):
        check("linear of open weights", 0.0, 30.0)


def test_slopes_of_other_lines_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unary, "_round_slope", lambda ops, slope, dtype: ops.scale(slope, c=1.01))
    with pytest.raises(AssertionError):
        test_relaxations.test_functions_stay_between_their_lines("softplus", "float32")


def test_a_centre_that_is_not_taken_off_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = linear._centred
    monkeypatch.setattr(linear, "_centred", lambda *more: (*right(*more)[:2], None))
    with pytest.raises(AssertionError):
        check("two products in turn", 1e-2, 1.0)
