"""CROWN: lines stay below and above functions, values of networks inside their bounds, and boxes of a batch apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Box, Options, bounds
from tests.analysis.inside import check_inside, outside

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "relu": lambda ops, x: ops.relu(x),
    "leaky_relu": lambda ops, x: ops.leaky_relu(x, negative_slope=0.1),
    "leaky_relu that falls": lambda ops, x: ops.leaky_relu(x, negative_slope=-0.5),
    "tanh": lambda ops, x: ops.tanh(x),
    "sigmoid": lambda ops, x: ops.sigmoid(x),
    "erf": lambda ops, x: ops.erf(x),
    "atan": lambda ops, x: ops.atan(x),
    "gelu": lambda ops, x: ops.gelu(x, approximate="none"),
    "gelu by tanh": lambda ops, x: ops.gelu(x, approximate="tanh"),
    "silu": lambda ops, x: ops.silu(x),
    "mish": lambda ops, x: ops.mish(x),
    "softplus": lambda ops, x: ops.softplus(x),
    "exp": lambda ops, x: ops.exp(x),
    "sin": lambda ops, x: ops.sin(x),
    "cos": lambda ops, x: ops.cos(x),
    "square": lambda ops, x: ops.square(x),
    "fourth power": lambda ops, x: ops.pow(x, exponent=4),
    "cube": lambda ops, x: ops.pow(x, exponent=3),
    "log": lambda ops, x: ops.log(ops.add(ops.square(x), 0.1)),
    "sqrt": lambda ops, x: ops.sqrt(ops.add(ops.square(x), 0.1)),
    "inv": lambda ops, x: ops.inv(ops.add(ops.square(x), 0.1)),
    "quotient": lambda ops, x: ops.div(x, ops.add(ops.square(x), 1.0)),
    "clamp": lambda ops, x: ops.clamp(x, lo=-0.5, hi=0.75),
    "abs": lambda ops, x: ops.abs(x),
}


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_stay_between_their_lines(name: str, dtype: Any) -> None:
    """3·f(x) - 2·x, whose bounds use both lines, at points of intervals from 1e-6 to 20 wide, each a box of its own."""
    rng = np.random.default_rng(0)
    f = FUNCTIONS[name]
    low = np.concatenate([rng.uniform(-6, 4, 300), [-1, 0, 0, -1e-30, -9, 5.0]])
    high = low + np.concatenate([10.0 ** rng.uniform(-6, 1.3, 300), [1, 1, 0, 1e-30, 18, 1e-7]])
    low, high = low.astype(dtype)[:, None], high.astype(dtype)[:, None]

    def program(ops: Any, x: Any) -> Any:
        return ops.sub(ops.scale(f(ops, x), c=3.0), ops.scale(x, c=2.0))

    options = Options(dtype=dtype)
    box = bounds(program, Box(low, high), method="crown", options=options)
    for share in np.concatenate([np.linspace(0, 1, 9), rng.random(4)]):
        x = np.clip(low + (high - low) * np.asarray(share, dtype), low, high)
        for at, slack in ((dtype, 0.0), ("float64", 1e-13)):
            problem = outside(box, opstage.run(program, x, options=Options(dtype=at)), slack)
            assert problem is None, problem
    plain = bounds(program, Box(low, high), options=options)
    assert (box.lower >= plain.lower).all()
    assert (box.upper <= plain.upper).all()
    assert np.isfinite(box.lower).all()


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "erf", "atan"])
def test_lines_of_s_shaped_functions_hold_where_these_are_flat(name: str) -> None:
    """There a slope has lost its digits; exact values are the C library's in float64."""
    rng = np.random.default_rng(0)
    low = np.concatenate([rng.uniform(-100, 9, 60), rng.uniform(-10, -5, 60), rng.uniform(5, 10, 60)])
    high = low + np.concatenate([rng.uniform(0, 100, 60), 10.0 ** rng.uniform(-5, 1, 120)])
    low, high = low.astype("f4")[:, None], high.astype("f4")[:, None]
    exact: Any = {"sigmoid": lambda x: 1 / (1 + math.exp(-x))}.get(name) or getattr(math, name)

    def program(ops: Any, x: Any) -> Any:
        return ops.sub(ops.scale(FUNCTIONS[name](ops, x), c=4.0), ops.scale(x, c=0.5))

    box = bounds(program, Box(low, high), method="crown")
    for share in np.linspace(0, 1, 5, dtype="f4"):
        x = np.clip(low + (high - low) * share, low, high)
        assert outside(box, opstage.run(program, x)) is None
        for i, at in enumerate(x[:, 0]):
            value = 4 * exact(float(at)) - float(at) / 2
            assert float(box.lower[i, 0]) <= value <= float(box.upper[i, 0]), (low[i], high[i], at)


def weights(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:])) for shape in shapes]


def mlp(ops: Any, p: Any, x: Any) -> Any:
    for weight in p[:-1]:
        x = ops.relu(ops.linear(weight, None, x))
    return ops.linear(p[-1], None, x)


def cnn(ops: Any, p: Any, x: Any) -> Any:
    x = ops.max_pool(ops.relu(ops.conv(p[0], None, x, padding=1)), kernel=(2, 2))
    x = ops.avg_pool(ops.tanh(ops.conv(p[1], None, x, stride=2)), kernel=(2, 2), stride=1)
    return ops.linear(p[2], None, ops.reshape(x, shape=(x.shape[0], -1)))


def transformer(ops: Any, p: Any, x: Any) -> Any:
    q, k, v = (ops.linear(w, None, x) for w in p[:3])
    x = ops.add(x, ops.scaled_dot_product_attention(q, k, v, causal=True))
    return ops.softmax(ops.linear(p[3], None, ops.layer_norm(x, None, None)))


NETWORKS: dict[str, tuple[Callable[..., Any], list[Any], tuple[int, ...]]] = {
    "mlp": (mlp, weights((30, 8), (30, 30), (4, 30)), (3, 8)),
    "cnn": (cnn, weights((2, 1, 3, 3), (3, 2, 2, 2), (3, 3)), (2, 1, 8, 8)),
    "transformer": (transformer, weights((4, 4), (4, 4), (4, 4), (3, 4)), (2, 2, 4)),
}


@pytest.mark.parametrize("radius", [0.0, pytest.param(0.02, marks=pytest.mark.slow), 0.3])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_stay_inside(name: str, radius: float) -> None:
    network, params, shape = NETWORKS[name]
    options = Options(dtype="float32")
    box = Box.around(np.random.default_rng(1).standard_normal(shape).astype("float32"), np.float32(radius))
    found = bounds(network, params, box, method="crown", options=options)
    held = [np.asarray(p, "float32") for p in params]
    check_inside(
        lambda ops, x: network(ops, [ops.const(p) for p in held], x),
        found,
        [box.lower],
        [box.upper],
        np.random.default_rng(2),
        options,
        8,
        exactly=True,
    )
    plain = bounds(network, params, box, options=options)
    assert (found.lower >= plain.lower).all()
    assert (found.upper <= plain.upper).all()
    if name == "mlp" and radius == 0.3:
        assert np.mean(found.upper - found.lower) < 0.5 * np.mean(plain.upper - plain.lower)


@pytest.mark.parametrize("name", NETWORKS)
def test_boxes_of_a_batch_are_bounded_one_by_one(name: str) -> None:
    network, params, shape = NETWORKS[name]
    options = Options(dtype="float64")
    x = np.random.default_rng(1).standard_normal(shape)
    together = bounds(network, params, Box.around(x, 0.1), method="crown", options=options)
    for i in range(len(x)):
        alone = bounds(network, params, Box.around(x[i : i + 1], 0.1), method="crown", options=options)
        np.testing.assert_allclose(together.lower[i], alone.lower[0], atol=1e-10)
        np.testing.assert_allclose(together.upper[i], alone.upper[0], atol=1e-10)


@pytest.mark.parametrize(
    "mix",
    [
        lambda ops, x: ops.reduce_sum(x, axis=0),
        lambda ops, x: ops.permute(x, axes=(1, 0)),
        lambda ops, x: ops.softmax(x, axis=0),
        lambda ops, x: ops.concat([x, x], axis=0),
        lambda ops, x: ops.matmul(ops.const(np.ones((4, 4))), x),
        lambda ops, x: ops.slice(x, axis=0, start=0, length=2),
        lambda ops, x: ops.cumsum(x, axis=0),
        lambda ops, x: ops.gather_rows(x, ops.const(np.array([1, 0, 3, 2]))),
    ],
)
def test_boxes_that_a_program_mixes_are_one_box(mix: Callable[..., Any]) -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.tanh(ops.scale(mix(ops, ops.tanh(x)), c=1.5))

    x = np.random.default_rng(1).standard_normal((4, 3)).astype("float32")
    box = Box.around(x, np.float32(0.2))
    found = bounds(program, box, method="crown")
    check_inside(program, found, [box.lower], [box.upper], np.random.default_rng(2), Options(), 8)


@pytest.mark.parametrize("name", ["gelu", "gelu by tanh", "silu", "mish"])
def test_curvature_is_no_more_than_the_rule_says(name: str) -> None:
    from opstage.analysis.relaxations.unary import CURVATURES

    x = np.linspace(-12, 12, 200_001)
    y = opstage.run(FUNCTIONS[name], x, options=Options(dtype="float64"))
    second = np.abs(np.diff(y, 2)).max() / (x[1] - x[0]) ** 2
    assert second < next(value for primitive, value in CURVATURES.items() if primitive.name == name.split()[0])
