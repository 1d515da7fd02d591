"""Programs made to break ranges: each runs at values at which a rule could be wrong, and stays in what is claimed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Spec, derived
from opstage.analysis import ranges as ranges
from tests.analysis.ranges.half import wrong as in_half
from tests.analysis.ranges.test_ranges_of_ops import wrong


class Enemy(NamedTuple):
    """A program, and the arrays that it runs at."""

    program: Callable[..., Any]
    arrays: list[Any]


INT32, INT64 = np.iinfo(np.int32), np.iinfo(np.int64)


def f32(*values: Any) -> Any:
    return np.array(values, np.float32)


def ints(*values: int, dtype: str = "int32") -> Any:
    return np.array(values, dtype)


def f64(*values: Any) -> Any:
    return np.array(values, np.float64)


def drawn(ops: Any, x: Any) -> Any:
    return ops.rand_uniform(shape=x.shape)


doubled = opstage.custom_op(
    "doubled_without_rules", operands=("x",), shape=lambda x: x, kernels={"cpu": lambda x: 2 * x}, differentiable=False
)


@opstage.custom_vjp
def steep(ops: Any, x: Any) -> Any:
    return ops.minimum(x, ops.full(shape=x.shape, value=1.0))


@steep.defvjp
def _(ops: Any, inputs: Any, outputs: Any, cotangents: Any) -> Any:
    return cotangents[0] * 1e38 * 10.0


def by_maximum(turn: Callable[[Any, Any], Any], ops: Any, x: Any) -> Any:
    """exp(x - m), for a maximum of rows that stands beside other elements than those it is the maximum of."""
    return ops.exp(x - ops.broadcast_to(turn(ops, x), shape=x.shape))


def by_norm(turn: Callable[[Any, Any], Any], ops: Any, x: Any) -> Any:
    """x over a root that is of other rows than its own."""
    squares = ops.reduce_mean(x * x, axis=1, keepdims=True) + 1e-6
    return x / ops.broadcast_to(ops.sqrt(turn(ops, squares)), shape=x.shape)


def recurring(step: Callable[[Any, Any, Any], Any], **more: Any) -> Callable[..., Any]:
    def program(ops: Any, x: Any) -> Any:
        last, each = ops.scan(lambda ops, c, e: (step(ops, c, e), c), ops.full(shape=(), value=0.0), x, **more)
        return [last, each]

    return program


SQUARE = f32([1, 200], [3, 4])
PROBABILITIES = np.random.default_rng(0).normal(size=30000).astype(np.float32)
ENEMIES: dict[str, Enemy] = {
    # Integers that wrap around
    "the least integer has no negative": Enemy(lambda ops, x: -x, [ints(INT32.min, 5)]),
    "nor has that of 64 bits": Enemy(lambda ops, x: -x, [ints(INT64.min, 5, dtype="int64")]),
    "the least integer has no size": Enemy(lambda ops, x: ops.abs(x), [ints(INT32.min, 5)]),
    "negatives of the rest": Enemy(lambda ops, x: [-x, ops.abs(x)], [ints(INT32.min + 1, 5)]),
    "a product": Enemy(lambda ops, x: x * x, [ints(2**20, 5)]),
    "a difference": Enemy(lambda ops, x, y: x - y, [ints(INT32.min, 5), ints(1, 1)]),
    "a sum": Enemy(lambda ops, x: ops.reduce_sum(x, axis=0), [np.full(3, 2**30, "int32")]),
    "a running sum": Enemy(lambda ops, x: ops.cumsum(x, axis=0), [np.full(3, 2**30, "int32")]),
    "a quotient": Enemy(lambda ops, x, y: x // y, [ints(INT32.min, 7), ints(-1, -1)]),
    "an integer of 53 bits": Enemy(lambda ops, x: x + 1, [ints(2**53, 1, dtype="int64")]),
    # Casts
    "a cast that rounds up": Enemy(
        lambda ops, x: ops.cast(x, dtype="float32"), [ints(16777217, 2**53 - 1, dtype="int64")]
    ),
    "a cast that keeps some bits": Enemy(
        lambda ops, x: ops.cast(x, dtype="int32"), [ints(2**33 + 5, -3, dtype="int64")]
    ),
    "a cast of what is too large": Enemy(lambda ops, x: ops.cast(x, dtype="int32"), [f32(3e9, -1.5)]),
    # Rounding of sums
    "probabilities add up to more than 1": Enemy(
        lambda ops, x: ops.reduce_sum(ops.softmax(x, axis=0), axis=0), [PROBABILITIES]
    ),
    "so do those before one": Enemy(lambda ops, x: ops.cumsum(ops.softmax(x, axis=0), axis=0), [PROBABILITIES]),
    "1 less all of them has a root": Enemy(
        lambda ops, x: ops.sqrt(1 - ops.reduce_sum(ops.softmax(x, axis=0), axis=0)), [PROBABILITIES]
    ),
    "a mean of one number": Enemy(lambda ops, x: ops.reduce_mean(x, axis=0), [np.full(100003, 0.1, np.float32)]),
    "a deviation of one number": Enemy(lambda ops, x: derived.std(ops, x, axis=0), [np.full(1000, 0.1, np.float32)]),
    # Zeros and nans
    "1 over -0": Enemy(lambda ops, x: 1 / x, [f32(-0.0, 1)]),
    "1 over relu of -0": Enemy(lambda ops, x: 1 / ops.relu(x), [f32(-0.0, 1)]),
    "0 over 0": Enemy(lambda ops, x: x / x, [f32(0)]),
    "a nan decides nothing": Enemy(
        lambda ops, x: ops.select(ops.less_equal(ops.sqrt(x), ops.full(shape=(2,), value=1.0)), x, ops.sqrt(x)),
        [f32(-4, 2)],
    ),
    "nor does its negation": Enemy(
        lambda ops, x: ops.select(
            ops.logical_not(ops.less(ops.sqrt(x), ops.full(shape=(2,), value=1.0))),
            ops.sqrt(x),
            ops.full(shape=(2,), value=1.0),
        ),
        [f32(-4, 2)],
    ),
    "a nan is the maximum": Enemy(lambda ops, x: ops.maximum(ops.sqrt(x), ops.full(shape=(1,), value=0.0)), [f32(-1)]),
    "a root as a power": Enemy(lambda ops, x: ops.power(x, ops.full(shape=(2,), value=0.5)), [f32(-4, 2)]),
    "what is left of -1e-20": Enemy(lambda ops, x, y: ops.mod(x, y), [f32(-1e-20), f32(3)]),
    # Maxima and norms of other rows, in squares where no shape tells them apart
    "a maximum turned by permute": Enemy(
        partial(by_maximum, lambda ops, x: ops.permute(ops.reduce_max(x, axis=1, keepdims=True), axes=(1, 0))), [SQUARE]
    ),
    "a maximum turned by reshape": Enemy(
        partial(by_maximum, lambda ops, x: ops.reshape(ops.reduce_max(x, axis=1), shape=(1, 2))), [SQUARE]
    ),
    "a maximum of columns over rows": Enemy(
        partial(by_maximum, lambda ops, x: ops.reshape(ops.reduce_max(x, axis=0), shape=(2, 1))), [SQUARE]
    ),
    "a norm turned by permute": Enemy(partial(by_norm, lambda ops, s: ops.permute(s, axes=(1, 0))), [SQUARE]),
    "a norm turned by reshape": Enemy(partial(by_norm, lambda ops, s: ops.reshape(s, shape=(1, 2))), [SQUARE]),
    "a norm of another tensor": Enemy(
        lambda ops, x, y: y / ops.sqrt(ops.reduce_mean(x * x, axis=1, keepdims=True) + 1e-6),
        [f32([1e-3, 1e-3]), f32([100, 100])],
    ),
    "a norm of one feature": Enemy(lambda ops, x: ops.rms_norm(x, None), [f32([1e10, *[0] * 63])]),
    "a norm of squares that vanish": Enemy(
        lambda ops, x: x / ops.sqrt(ops.reduce_mean(x * x, axis=1, keepdims=True) + 1e-44), [f32([3e-23, *[0] * 63])]
    ),
    "a norm that takes 1 off": Enemy(
        lambda ops, x: x / ops.sqrt(ops.abs(ops.reduce_mean(x * x, axis=1, keepdims=True) - 1) + 1e-6),
        [f32([1, 1, 1, 1])],
    ),
    # Loops
    "a loop in reverse": Enemy(recurring(lambda ops, c, e: 0.5 * c + e, reverse=True), [np.full(100, 2, np.float32)]),
    "a loop that divides": Enemy(recurring(lambda ops, c, e: 1 / (c + e)), [np.full(40, 0.01, np.float32)]),
    "a loop that counts to a bound": Enemy(
        recurring(lambda ops, c, e: ops.select(ops.less(c, e), c + 1, c * 0.5)), [np.full(60, 20, np.float32)]
    ),
    "a loop that overflows": Enemy(recurring(lambda ops, c, e: 2 * c + e), [np.full(200, 1e37, np.float32)]),
    "a loop that never runs": Enemy(
        lambda ops, x: ops.while_loop(
            lambda ops, c: ops.less(c, ops.full(shape=(), value=-5.0)), lambda ops, c: c * 0 + 100, x
        ),
        [np.array(1.0, np.float32)],
    ),
    "a loop that runs 10 times": Enemy(
        lambda ops, x: ops.while_loop(
            lambda ops, c: ops.less(c, ops.full(shape=(), value=1000.0)), lambda ops, c: c * 2, x
        ),
        [np.array(1.0, np.float32)],
    ),
}


FLOAT64_ENEMIES: dict[str, Enemy] = {
    # Tensors of a dtype that is narrower than the program's
    "a cast to float32 of what is too large": Enemy(lambda ops, x: ops.cast(x, dtype="float32"), [f64(1e39, 1)]),
    "an exponential in float32": Enemy(lambda ops, x: ops.exp(ops.cast(x, dtype="float32")), [f64(100, 1)]),
    "a product in float32": Enemy(
        lambda ops, x: ops.cast(x, dtype="float32") * ops.cast(x, dtype="float32"), [f64(0.1, 0.3)]
    ),
    "a tenth in float32": Enemy(lambda ops, x: ops.full(shape=(2,), value=0.1, dtype="float32"), [f64(1)]),
}
STATISTICS = f32([0, 5, 1], [1e-20, 5, -1e30])
CONDITIONAL = [np.array(True), f32(90, 1)]
ENEMIES |= {
    # Integers that floats do not tell apart
    "a number above 2**53 that the program holds": Enemy(
        lambda ops, x: ops.less(x, ops.const(ints(2**53 + 1, dtype="int64"), dtype="int64")),
        [ints(2**53, dtype="int64")],
    ),
    "one that fills a tensor": Enemy(
        lambda ops, x: ops.less(x, ops.full(shape=(1,), value=2**53 + 1, dtype="int64")), [ints(2**53, dtype="int64")]
    ),
    "and one that comes in": Enemy(
        lambda ops, x, y: ops.less(x, y), [ints(n, dtype="int64") for n in (2**53, 2**53 + 1)]
    ),
    "indices of which float32 holds every second": Enemy(
        lambda ops, x: ops.iota(shape=(2**24 + 4,), axis=0, dtype="float32"), [f32(1)]
    ),
    # Sums of many terms
    "many rows added to one": Enemy(
        lambda ops, x, v, at: ops.scatter_add_row(x, v, at),
        [np.zeros((2, 1), np.float32), np.full((1 << 16, 1), 1e34, np.float32), np.zeros(1 << 16, np.int64)],
    ),
    "rows of integers added to one": Enemy(
        lambda ops, x, v, at: ops.scatter_add_row(x, v, at),
        [np.zeros((2, 1), np.int32), np.full((1 << 12, 1), 1 << 20, np.int32), np.zeros(1 << 12, np.int64)],
    ),
    "a spectrum that overflows": Enemy(lambda ops, x: ops.rfft(x, axis=0), [np.full(1 << 16, 1e34, np.float32)]),
    "a bias that overflows with the scores": Enemy(
        lambda ops, q, v, b: ops.scaled_dot_product_attention(q, q, v, None, b),
        [np.full((1, 1, 2, 4), s, np.float32) for s in (5e18, 1)] + [np.full((1, 1, 2, 2), 3.2e38, np.float32)],
    ),
    "a recurrence that overflows": Enemy(
        lambda ops, a, b: ops.linear_recurrence(a, b, axis=0),
        [np.full(200, 2, np.float32), np.full(200, 1e30, np.float32)],
    ),
    "a product of all before one": Enemy(
        lambda ops, x: ops.cumprod(x, axis=0, exclusive=True, reverse=True), [np.full(100, 10, np.float32)]
    ),
    # Groups, some without a row
    "products of groups": Enemy(
        lambda ops, x, w, ends: ops.grouped_matmul(x, w, ends),
        [np.full((4, 3), 2, np.float32), np.ones((2, 3, 2), np.float32), ints(0, 2)],
    ),
    "outer products of groups": Enemy(
        lambda ops, x, g, ends: ops.grouped_outer(x, g, ends),
        [np.full((4, 3), 2, np.float32), np.ones((4, 2), np.float32), ints(0, 4)],
    ),
    "statistics of a batch": Enemy(lambda ops, x: list(ops.batch_norm(x, None, None)), [STATISTICS]),
    "statistics of equal numbers": Enemy(
        lambda ops, x: list(ops.batch_norm(x, None, None)), [np.full((300, 1), 0.1, np.float32)]
    ),
    # Choices, with draws and with ops of one's own in their branches
    "a choice of an exponential": Enemy(
        lambda ops, p, x: ops.cond(p, lambda ops, x: ops.exp(x), lambda ops, x: -x, x), CONDITIONAL
    ),
    "a choice less its operand": Enemy(
        lambda ops, p, x: ops.cond(p, lambda ops, x: x + 1, lambda ops, x: x, x) - x, CONDITIONAL
    ),
    "a choice of draws": Enemy(
        lambda ops, p, x: ops.cond(p, drawn, drawn, x) - ops.rand_uniform(shape=x.shape), CONDITIONAL
    ),
    "two draws are two": Enemy(lambda ops, x: drawn(ops, x) - drawn(ops, x), [f32(1, 2)]),
    "each iteration draws": Enemy(recurring(lambda ops, c, e: ops.rand_uniform(shape=()) - c), [f32(1, 2, 3, 4)]),
    "an op without rules": Enemy(lambda ops, x: doubled(ops, x), [f32(1, 2)]),
    "an op without rules in a branch": Enemy(lambda ops, p, x: ops.cond(p, doubled, drawn, x), CONDITIONAL),
    "a derivative of one's own": Enemy(
        lambda ops, x: opstage.transform.grad(ops, lambda ops, x: ops.sum(steep(ops, x)), x), [f32(1, 2)]
    ),
    "a loop of integers that wrap around": Enemy(
        lambda ops, x: ops.while_loop(
            lambda ops, c: ops.less(c, ops.full(shape=(), value=2**30 + 5, dtype="int32")), lambda ops, c: c * 3, x
        ),
        [np.array(7, np.int32)],
    ),
}


def test_a_softmax_of_one_class_is_1_where_exponentials_round_coarsely() -> None:
    x = np.full((2, 1), 3, np.float32)
    assert in_half(lambda ops, x: [ops.log_softmax(x, axis=1), ops.softmax(x, axis=1)], [x], "bfloat16") == []


@pytest.mark.parametrize("name", FLOAT64_ENEMIES)
def test_an_enemy_of_float64_stays_in_its_range(name: str) -> None:
    program, arrays = FLOAT64_ENEMIES[name]
    assert wrong(program, arrays, "float64") == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ENEMIES)
def test_an_enemy_stays_in_its_range_of_16_bits(name: str, dtype: str) -> None:
    assert in_half(*ENEMIES[name], dtype) == []


@pytest.mark.parametrize("name", ENEMIES)
def test_an_enemy_stays_in_its_range(name: str) -> None:
    program, arrays = ENEMIES[name]
    report = opstage.check(program, *[Spec(each.shape, str(each.dtype)) for each in arrays])
    assert report.ok, report
    assert wrong(program, arrays, "float32") == []
