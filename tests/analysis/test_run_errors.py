"""How far runs in float32 may be off: sums in any order, and kernels of which relaxations know more than their ulps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import opstage
from opstage import Box, Options, bounds
from opstage.analysis.intervals import Interval
from opstage.analysis.intervals.elementwise import FACTOR_ERRORS
from opstage.analysis.relaxations import linear as linear
from opstage.analysis.relaxations.unary import of_sigmoid
from opstage.interpreters.registry import make_interpreter
from opstage.ops.primitive import Primitive

EPS = 2.0**-23
Array = npt.NDArray[Any]


def orders(terms: Array) -> Iterator[Array]:
    """Orders of a sum in which its partial sums are as large as they can be, and others."""
    yield terms
    yield terms[::-1]
    yield np.sort(terms)
    yield np.sort(terms)[::-1]
    yield terms[np.argsort(-np.abs(terms))]
    positive, negative = np.sort(terms[terms > 0])[::-1], np.sort(terms[terms <= 0])
    yield np.concatenate([positive, negative])
    yield np.concatenate([positive[::-1], negative[::-1]])
    for seed in range(4):
        yield np.random.default_rng(seed).permutation(terms)


def sums(terms: Array) -> Iterator[float]:
    """float32 sums of the terms: one after the other, products rounded before or with the sum, and in lanes."""
    for ordered in orders(terms):
        rounded = ordered.astype("f4")
        yield float(np.cumsum(rounded, dtype="f4")[-1])
        total = np.float32(0)
        for term in ordered:  # as by a fused multiply-add
            total = np.float32(float(total) + term)
        yield float(total)
        lanes = np.zeros(8, "f4")
        for start in range(0, len(rounded), 8):
            part = rounded[start : start + 8]
            lanes[: len(part)] += part
        yield float(np.cumsum(lanes, dtype="f4")[-1])


CANCELLING: dict[str, Callable[[np.random.Generator], Array]] = {
    "random signs": lambda rng: rng.standard_normal(300),
    "nothing is left": lambda rng: np.concatenate([x := rng.uniform(0.5, 1, 150), -x]),
    "all positive": lambda rng: rng.uniform(0.5, 1, 300),
    "one large term": lambda rng: np.concatenate([rng.standard_normal(299), [300.0]]),
    "many small ones after a large one": lambda rng: np.concatenate([[1.0], np.full(299, 0.6 * 2.0**-24)]),
    "ties that round up": lambda rng: np.concatenate([[1.0], np.full(299, 1.0001 * 2.0**-24)]),
    "a few": lambda rng: rng.standard_normal(3),
    "one": lambda rng: rng.standard_normal(1),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_a_sum_in_any_order_stays_inside_the_bounds_of_a_point(name: str) -> None:
    """Weights of 1 and few bits, so that float64 products of them are exact and nothing but the sum is off."""
    rng = np.random.default_rng(0)
    weights = CANCELLING[name](rng).astype("f4")
    x = np.round(rng.uniform(0.5, 1, len(weights)) * 1024).astype("f4") / 1024
    box: Any = bounds(
        lambda ops, x: ops.linear(ops.const(weights[None]), None, x), Box(x[None], x[None] + 0), method="crown"
    )
    lower, upper = float(box.lower[0, 0]), float(box.upper[0, 0])
    terms = weights.astype("f8") * x
    for value in [*sums(terms), float(terms.sum())]:
        assert lower <= value <= upper


def test_a_smaller_error_of_sums_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = linear._errors
    monkeypatch.setattr(linear, "_errors", lambda *given, **more: tuple([each / 4 for each in errors(*given, **more)]))
    with pytest.raises(AssertionError):
        test_a_sum_in_any_order_stays_inside_the_bounds_of_a_point("ties that round up")


def numbers() -> Array:
    rng = np.random.default_rng(0)
    small = rng.uniform(-1, 1, 20_000) * 10.0 ** rng.uniform(-10, 1.9, 20_000)
    return np.concatenate([rng.uniform(-20, 20, 40_000), rng.uniform(-3, 3, 60_000), small]).astype("f4")


RUNS = [Options(), Options(fast_kernels=False), Options(backend="compiled")]
FORMS: dict[str, tuple[Primitive, dict[str, Any]]] = {
    f"{primitive.name} {static.get('approximate', '')}".strip(): (primitive, static)
    for primitive in FACTOR_ERRORS
    for static in ([{"approximate": form} for form in ("tanh", "none")] if primitive.name == "gelu" else [{}])
}


@pytest.mark.parametrize("name", FORMS)
def test_kernels_of_factors_are_as_accurate_as_the_table_says(name: str) -> None:
    primitive, static = FORMS[name]
    x = numbers()

    def program(ops: Any, x: Any) -> Any:
        return ops.bind(primitive, (x,), static)[0]

    exact = np.asarray(opstage.run(program, x.astype("f8"), options=Options(dtype="float64")))
    for options in RUNS:
        off = np.abs(np.asarray(opstage.run(program, x, options=options)).astype("f8") - exact)
        assert (off <= FACTOR_ERRORS[primitive] * EPS * np.abs(x.astype("f8")) + 2.0**-124).all(), options


def test_sigmoid_is_as_accurate_as_its_exponential_makes_it() -> None:
    x = numbers()
    exact = np.asarray(opstage.run(lambda ops, x: ops.sigmoid(x), x.astype("f8"), options=Options(dtype="float64")))
    ops: Any = make_interpreter(Options(dtype="float64"))
    allowed = ops.get(of_sigmoid(ops, Interval(exact, exact, ops)))
    for options in RUNS:
        found = np.asarray(opstage.run(lambda ops, x: ops.sigmoid(x), x, options=options)).astype("f8")
        assert (np.abs(found - exact) <= EPS * allowed + 2.0**-124).all(), options
