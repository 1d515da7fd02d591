"""Interval bounds of whole programs: nesting with derivatives, loops and branches, nan and infinities, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Box, Options, bounds, transform
from opstage.ops.errors import ShapeError, UnsupportedError, UsageError
from tests.analysis.inside import check_inside, outside

RNG = np.random.default_rng(5)
W1, B1, W2, B2 = (RNG.standard_normal(shape).astype("float32") for shape in ((5, 4), (5,), (3, 5), (3,)))


def network(ops: Any, x: Any) -> Any:
    hidden = ops.tanh(ops.linear(ops.const(W1), ops.const(B1), x))
    return ops.linear(ops.const(W2), ops.const(B2), hidden)


def scalar(ops: Any, x: Any) -> Any:
    return ops.sum(ops.mul(network(ops, x), network(ops, x)))


def gradient(ops: Any, x: Any) -> Any:
    return transform.grad(ops, scalar, x)


def second(ops: Any, x: Any) -> Any:
    return transform.jvp(ops, gradient, (x,), (ops.full(shape=x.shape, value=1.0),))[1]


def looped(ops: Any, x: Any) -> Any:
    def step(ops: Any, h: Any, row: Any) -> Any:
        h = ops.tanh(ops.add(ops.scale(h, c=0.5), row))
        return h, ops.mul(h, h)

    return ops.scan(step, ops.full(shape=(4,), value=0.0), x)


def gradient_of_loop(ops: Any, x: Any) -> Any:
    return transform.grad(ops, lambda ops, x: ops.sum(looped(ops, x)[1]), x)


def branched(ops: Any, x: Any) -> Any:
    above = ops.less(ops.full(shape=(), value=0.0), ops.reduce_mean(x))
    return ops.cond(above, lambda ops, x: ops.exp(x), lambda ops, x: ops.scale(x, c=-2.0), x)


def relu_gradient(ops: Any, x: Any) -> Any:
    return transform.grad(ops, lambda ops, x: ops.sum(ops.relu(ops.linear(ops.const(W1), None, x))), x)


def falling_relu_gradient(ops: Any, x: Any) -> Any:
    return ops.relu_grad(x, ops.neg(x))


def attended(ops: Any, x: Any) -> Any:
    mask = ops.less(ops.iota(shape=(3, 3), axis=1), ops.iota(shape=(3, 3), axis=0))
    return ops.scaled_dot_product_attention(x, ops.neg(x), x, mask)


PROGRAMS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(network, scalar, gradient, second, looped, gradient_of_loop, branched, relu_gradient),
        *(falling_relu_gradient, attended),
    )
}


@pytest.mark.parametrize("backend", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("radius", [0.0, pytest.param(0.01, marks=pytest.mark.slow), 0.5])
@pytest.mark.parametrize("method", ["interval", "crown"])
def test_programs_stay_inside(name: str, method: Any, radius: float, backend: Any) -> None:
    x = RNG.standard_normal((3, 4)).astype("float32")
    box = Box.around(x, radius)
    options = Options(backend=backend)
    found = bounds(PROGRAMS[name], box, method=method, options=options)
    check_inside(PROGRAMS[name], found, [box.lower], [box.upper], np.random.default_rng(0), options, 4)


def test_a_narrow_box_has_narrow_bounds() -> None:
    x = RNG.standard_normal((3, 4))
    box = bounds(gradient, Box.around(x, 1e-9), options=Options(dtype="float64"))
    assert float(np.max(box.upper - box.lower)) < 1e-5


def test_bounds_are_differentiated_as_any_program() -> None:
    """The gradient of a loss of bounds, against central differences."""
    x = RNG.standard_normal((3, 4))

    def loss(ops: Any, w: Any, low: Any, high: Any) -> Any:
        box = transform.bounds(ops, lambda ops, w, x: ops.relu(ops.linear(w, None, x)), w, Box(low, high))
        return ops.sum(ops.mul(box.upper, box.upper))

    options = Options(dtype="float64")
    w = W1.astype("float64")
    value, grad = opstage.value_and_grad(loss, w, x - 0.1, x + 0.1, options=options)
    step = np.zeros_like(w)
    step[2, 3] = 1e-6
    ahead = opstage.run(loss, w + step, x - 0.1, x + 0.1, options=options)
    behind = opstage.run(loss, w - step, x - 0.1, x + 0.1, options=options)
    assert value > 0
    assert grad[2, 3] == pytest.approx((ahead - behind) / 2e-6, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "lower", "upper"),
    [
        ("log", -1.0, 2.0),
        ("sqrt", -1.0, 2.0),
        ("inv", -1.0, 2.0),
        ("inv", 0.0, 2.0),
        ("sin", -np.inf, 2.0),
        ("exp", 80.0, 100.0),
        ("exp", -np.inf, np.inf),
        ("relu", -np.inf, np.inf),
        ("silu", -np.inf, 1.0),
        ("square", -3e38, 3e38),
    ],
)
def test_ends_are_never_nan(name: str, lower: float, upper: float) -> None:
    def program(ops: Any, x: Any) -> Any:
        return getattr(ops, name)(x)

    low, high = np.full((2,), lower, "float32"), np.full((2,), upper, "float32")
    box = bounds(program, Box(low, high))
    for value in opstage.run(program, low), opstage.run(program, high), opstage.run(program, (low + high) / 2):
        assert outside(box, value) is None


def test_what_may_be_nan_is_unbounded() -> None:
    box = bounds(lambda ops, x: ops.relu(ops.log(x)), Box(np.array([-1.0, 1.0]), np.array([1.0, 2.0])))
    assert (box.lower[0], box.upper[0]) == (-np.inf, np.inf)
    assert 0 <= box.lower[1] <= box.upper[1] < 0.7


def test_zero_times_infinity_is_unbounded() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.linear(ops.full(shape=(1, 2), value=0.0), None, x)

    box = bounds(program, Box(np.zeros(2), np.array([1.0, np.inf])))
    assert (box.lower[0], box.upper[0]) == (-np.inf, np.inf)


def test_an_exact_argument_of_nan_is_unbounded() -> None:
    box = bounds(lambda ops, x: ops.relu(x), np.array([np.nan, 1.0]))
    assert (box.lower[0], box.upper[0], box.lower[1], box.upper[1]) == (-np.inf, np.inf, 1.0, 1.0)


def test_masks_and_integers_have_bounds() -> None:
    box = bounds(lambda ops, x: ops.less(x, 0.0), Box(np.array([-1.0, -1.0, 1.0]), np.array([-0.5, 1.0, 2.0])))
    assert box.lower.tolist() == [True, False, False]
    assert box.upper.tolist() == [True, True, False]
    box = bounds(lambda ops, x: ops.argmax(x), Box(np.zeros(3), np.ones(3)))
    assert (box.lower, box.upper) == (0, 2)


@pytest.mark.parametrize("size", [0, 1])
def test_small_sizes(size: int) -> None:
    box = bounds(lambda ops, x: ops.softmax(ops.linear(ops.const(W1), None, x)), Box.around(np.ones((size, 4)), 0.1))
    assert box.lower.shape == (size, 5)


@pytest.mark.parametrize("method", ["interval", "crown"])
def test_softmax_of_a_wide_box_is_between_0_and_1(method: Any) -> None:
    """Exponentials of both ends underflow beside the greatest."""
    low, high = np.full((2, 3), -1500, "float32"), np.array([[1484, 1197, 1955], [-700, 3, 1500]], "float32")
    box = bounds(lambda ops, x: ops.softmax(x), Box(low, high), method=method)
    assert (box.lower >= 0).all()
    assert (box.upper <= 1.00001).all()
    check_inside(lambda ops, x: ops.softmax(x), box, [low], [high], np.random.default_rng(0), Options(), 8)


def test_an_op_without_bounds_is_named_with_its_line() -> None:

    with pytest.raises(UnsupportedError, match=r"cholesky at .*test_intervals.py:\d+: bounds of cholesky are not"):
        bounds(lambda ops, x: ops.cholesky(x), Box.around(np.eye(2), 0.1))


def test_an_open_index_is_refused() -> None:

    with pytest.raises(UnsupportedError, match="an operand of dtype int64 that the box leaves open"):
        bounds(lambda ops, x: ops.gather_rows(x, ops.argmax(x, axis=0)), Box.around(np.ones((3, 2)), 0.1))


@pytest.mark.parametrize(
    ("box", "message"),
    [
        (Box(np.ones(2), np.zeros(2)), r"lower <= upper everywhere in a box, got 1.0 and 0.0 at \(0,\)"),
        (Box(np.array([np.nan]), np.ones(1)), "lower <= upper everywhere"),
        (Box(np.ones(2), np.ones(3)), "with one shape"),
    ],
)
def test_bad_boxes_are_refused(box: Box, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bounds(lambda ops, x: x, box)


def test_a_box_is_rounded_outward() -> None:
    box = bounds(lambda ops, x: x, Box(np.array([0.1]), np.array([0.1])))
    assert float(box.lower[0]) < 0.1 < float(box.upper[0])


def test_other_precisions_and_methods_are_refused() -> None:
    with pytest.raises(UsageError, match="matmul_precision='fp32'"):
        bounds(lambda ops, x: x, np.ones(2), options=Options(device="cuda", matmul_precision="tf32"))
    with pytest.raises(UsageError, match="argument method: expected one of"):
        bounds(lambda ops, x: x, np.ones(2), method="zonotope")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="float32 or float64"):
        bounds(lambda ops, x: x, np.ones(2), options=Options(dtype="exact"))


def test_ends_of_different_types_are_refused_in_a_program() -> None:

    with pytest.raises(ShapeError, match="expected ends of a box with one type"):
        opstage.run(lambda ops, x: transform.bounds(ops, lambda ops, x: x, Box(x, ops.sum(x))).lower, np.ones(2))


@pytest.mark.parametrize("method", ["interval", pytest.param("crown", marks=pytest.mark.slow)])
def test_compiled_bounds_hold(method: Any) -> None:
    x = RNG.standard_normal((3, 4)).astype("float32")
    box = Box.around(x, 0.1)
    options = Options(backend="compiled")
    found = bounds(gradient, box, method=method, options=options)
    check_inside(gradient, found, [box.lower], [box.upper], np.random.default_rng(0), options, 4)


def test_large_integers_are_rounded_as_floats() -> None:
    box = bounds(lambda ops, x: ops.cast(x, dtype="float32"), np.array([3, 2**24 + 1]))
    assert (box.lower[0], box.upper[0]) == (3, 3)
    assert float(box.lower[1]) < 2**24 + 1 < float(box.upper[1])
