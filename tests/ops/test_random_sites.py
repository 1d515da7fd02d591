"""Where draws are made decides their bits: by region path and ordinal within the region, and by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.ops.derived import dropout
from opstage.ops.splitmix import site_of
from opstage.options import Options
from opstage.transforms.tape import Tape
from tests.samples.random import uniform

FLOAT64 = Options(dtype="float64")


def draw(ops: Any, *_: Any) -> Any:
    return ops.rand_uniform(shape=(4,))


def bits(path: tuple[tuple[str, int], ...], ordinal: int, *, seed: int = 0, step: int = 0) -> Any:
    """What the draw of that ordinal in that region must be, by the plain reference."""
    return uniform((4,), seed, site_of(path, ordinal), step)


def run(program: Callable[..., Any], *args: Any, options: Options = FLOAT64) -> Any:
    return opstage.run(program, *args, options=options)


def test_draws_are_numbered_within_their_region() -> None:
    def program(ops: Any) -> Any:
        first = draw(ops)
        inside = ops.region("block", lambda ops: [draw(ops), draw(ops)])
        return [first, *inside, draw(ops)]

    block = (("block", 0),)
    expected = [bits((), 0), bits(block, 0), bits(block, 1), bits((), 1)]
    for actual, wanted in zip(run(program), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_occurrences_and_nesting_are_told_apart() -> None:
    def program(ops: Any) -> Any:
        nested = lambda ops: ops.region("inner", draw)  # noqa: E731
        return [ops.region("block", nested), ops.region("block", nested), ops.region("inner", draw)]

    paths = [(("block", 0), ("inner", 0)), (("block", 1), ("inner", 0)), (("inner", 0),)]
    for actual, path in zip(run(program), paths, strict=True):
        np.testing.assert_array_equal(actual, bits(path, 0))


def test_a_draw_keeps_its_bits_when_another_region_gains_ops() -> None:
    def program(ops: Any, x: Any, more: bool) -> Any:
        def first(ops: Any) -> Any:
            return [draw(ops), draw(ops), ops.exp(x)] if more else ops.exp(x)

        ops.region("first", first)
        if more:
            x = ops.relu(ops.mul(x, x))
        return [ops.region("second", draw), draw(ops)]

    before = run(lambda ops, x: program(ops, x, False), np.ones(3))
    after = run(lambda ops, x: program(ops, x, True), np.ones(3))
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_site_that_is_given_takes_no_number() -> None:
    def program(ops: Any) -> Any:
        return [ops.rand_uniform(shape=(4,), site=77), draw(ops)]

    given, numbered = run(program)
    np.testing.assert_array_equal(given, uniform((4,), 0, 77))
    np.testing.assert_array_equal(numbered, bits((), 0))


def test_composites_draw_at_the_site_of_their_call() -> None:
    def program(ops: Any) -> Any:
        ops.rand_normal(shape=(4,))  # two uniform draws inside, one number outside
        mask = ops.bernoulli_mask(ops.full(shape=(), value=0.5), shape=(4,))
        return [mask, draw(ops)]

    mask, after = run(program)
    np.testing.assert_array_equal(mask, bits((), 1) < 0.5)
    np.testing.assert_array_equal(after, bits((), 2))


def test_the_seed_is_the_draws_own_or_the_options() -> None:
    def program(ops: Any) -> Any:
        return [draw(ops), ops.rand_uniform(shape=(4,), seed=5)]

    default, own = run(program, options=FLOAT64.replace(seed=9))
    np.testing.assert_array_equal(default, bits((), 0, seed=9))
    np.testing.assert_array_equal(own, bits((), 1, seed=5))


@pytest.mark.parametrize("step", [0, 1, 10**12])
def test_each_step_draws_afresh(step: int) -> None:
    (drawn,) = NumpyOps(FLOAT64).execute(lambda ops: (draw(ops),), (), step=step)
    np.testing.assert_array_equal(drawn, bits((), 0, step=step))


def test_float32_and_exact_have_the_same_bits() -> None:
    for dtype in ("float32", "exact"):
        drawn = run(draw, options=Options(dtype=dtype))
        np.testing.assert_array_equal(drawn.astype(np.float64), bits((), 0))


def test_derivatives_do_not_renumber_draws() -> None:
    """Under a tape, forward mode and both, the same masks are drawn as in a plain run."""

    def noisy(ops: Any, x: Any) -> Any:
        y = ops.region("layer", lambda ops: dropout(ops, ops.softmax(x), 0.5, True))
        return ops.sum(ops.mul(y, draw(ops)))

    x = np.linspace(-1, 1, 4)
    value = run(noisy, x)
    assert opstage.value_and_grad(noisy, x, options=FLOAT64)[0] == pytest.approx(value, rel=1e-14)
    assert opstage.jvp(noisy, (x,), (np.ones(4),), options=FLOAT64)[0] == pytest.approx(value, rel=1e-14)

    def nested(ops: Any, x: Any) -> Any:
        inner = Tape(Tape(ops))
        return inner.region("layer", lambda ops: ops.rand_uniform(shape=(4,))).value.value

    np.testing.assert_array_equal(run(nested, x), bits((("layer", 0),), 0))
    after_gradient = run(lambda ops, x: [ops.vjp_of(noisy, x)[0], draw(ops)][1], x)
    np.testing.assert_array_equal(after_gradient, bits((), 1))


def test_two_draws_of_one_program_differ() -> None:
    first, second = run(lambda ops: [draw(ops), draw(ops)])
    assert (first != second).any()
