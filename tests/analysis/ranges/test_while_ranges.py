"""Ranges of what a while loop carries: the test bounds what the body reads, and what is left behind the loop."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.facts.range_report import ranges_of
from tests.analysis.ranges.test_ranges_of_ops import outside

Program = Callable[..., Any]
INT, FLOAT = Spec((), "int32"), Spec(())


def number(ops: Any, value: float, dtype: str = "float32") -> Any:
    return ops.full(shape=(), value=value, dtype=dtype)


def counted(ops: Any, n: Any) -> Any:
    return ops.while_loop(lambda ops, c: ops.less(c, n), lambda ops, c: c + 1, number(ops, 0, "int32"))


def counted_with_a_sum(ops: Any, n: Any) -> Any:
    first = (number(ops, 0, "int32"), number(ops, 0.0))
    return ops.while_loop(lambda ops, c: ops.less(c[0], n), lambda ops, c: (c[0] + 1, c[1] + 0.5), first)


def by_two(ops: Any, n: Any) -> Any:
    return ops.while_loop(lambda ops, c: ops.less(number(ops, 0, "int32"), c), lambda ops, c: c - 2, n)


def doubled(ops: Any, x: Any) -> Any:
    return ops.while_loop(lambda ops, c: ops.less(c, number(ops, 1000.0)), lambda ops, c: c * 2 + 1, x)


def between(ops: Any, x: Any) -> Any:
    def test(ops: Any, c: Any) -> Any:
        return ops.logical_and(ops.less(number(ops, -8.0), c), ops.less_equal(c, number(ops, 8.0)))

    return ops.while_loop(test, lambda ops, c: c * -1.5 + 0.25, x)


def by_roots(ops: Any, x: Any) -> Any:
    """A test that nan fails, though it is not below the number."""
    return ops.while_loop(lambda ops, c: ops.less(c, number(ops, 3.0)), lambda ops, c: ops.sqrt(c - 1) + 2, x)


def adding(step: Callable[[Any, Any, Any], Any], count: Callable[[Any, Any], Any], first: int = 0) -> Program:
    """A sum that grows by a step (ops, sum, counter), as long as the counter is below n."""

    def program(ops: Any, n: Any) -> Any:
        start = (number(ops, first, "int32"), number(ops, 1.0))
        return ops.while_loop(
            lambda ops, c: ops.less(c[0], n), lambda ops, c: (count(ops, c[0]), step(ops, c[1], c[0])), start
        )

    return program


def plus(k: int) -> Callable[[Any, Any], Any]:
    return lambda ops, c: c + k


def changing(ops: Any, n: Any) -> Any:
    """Two counters of which each is the other one, and more, so that the first is greater in every second iteration."""
    first = (number(ops, 0, "int32"), number(ops, 0, "int32"), number(ops, 0.0))
    return ops.while_loop(lambda ops, c: ops.less(c[0], n), lambda ops, c: (c[1] + 1, c[0], c[2] + 1.0), first)


def capped(ops: Any, x: Any) -> Any:
    """A loop whose number of iterations is declared: a sum of what is at least 1 is soon above 5."""
    first = (ops.sin(x) * 0, x)
    return ops.while_loop(
        lambda ops, c: ops.less(c[0], number(ops, 5.0)),
        lambda ops, c: (c[0] + 2.0 + ops.sin(c[1]), c[1] + 3.0),
        first,
        max_iterations=10,
    )[1]


LOOPS: dict[str, tuple[Program, Spec, tuple[float, float], list[tuple[float, float]]]] = {
    # program, its argument and the range of that, ranges that are worked out by hand
    "counted": (counted, INT, (0, 100), [(0, 100)]),
    "counted with a sum": (counted_with_a_sum, INT, (0, 100), [(0, 100), (0, 50.01)]),
    "a sum by threes": (adding(lambda ops, s, c: s + 0.5, plus(3)), INT, (0, 100), [(0, 102), (1, 18.1)]),
    "a factor": (adding(lambda ops, s, c: s * 1.5, plus(1)), INT, (0, 10), [(0, 10), (1, 57.7)]),
    "a sum of the counter": (
        adding(lambda ops, s, c: s + ops.cast(c, dtype="float32"), plus(1)),
        INT,
        (0, 10),
        [(0, 10), (-101.1, 101.1)],
    ),
    "a sum from below 0": (adding(lambda ops, s, c: s + 1.0, plus(2), -9), INT, (-5, 10), [(-9, 11), (1, 11.1)]),
    "no iteration": (adding(lambda ops, s, c: s + 1.0, plus(2), 20), INT, (-5, 10), [(-5, 20), (1, 1.01)]),
    "a counter that is doubled": (
        adding(lambda ops, s, c: s + 1.0, lambda ops, c: c * 2 + 1),
        INT,
        (0, 10),
        [(0, 19), (1, np.inf)],
    ),
    "carries that change places": (changing, INT, (0, 10), [(-np.inf, np.inf), (-np.inf, np.inf), (0, np.inf)]),
    "a declared number": (capped, FLOAT, (0, 10), [(0, 40.1)]),
    "by two": (by_two, INT, (-5, 100), [(-5, 0)]),
    "doubled": (doubled, FLOAT, (-0.5, 1), [(1000, 2001.01)]),
    "between": (between, FLOAT, (-1, 1), [(-12.26, 12.26)]),
    "by roots": (by_roots, FLOAT, (0, 2), [(-np.inf, np.inf)]),
    "never": (by_two, INT, (-9, -3), [(-9, 0)]),
}


def wrong(program: Program, spec: Spec, ends: tuple[float, float], rng: np.random.Generator) -> list[str]:
    """Runs at both ends and in between that leave the ranges."""
    found = ranges_of(opstage.check(program, spec), {"*": ends}).outputs
    given = [*ends, *rng.uniform(*ends, 6)]
    dtype = np.int32 if spec.dtype is not None else np.float32
    wrong = []
    for each in given:
        with np.errstate(all="ignore"):
            out = opstage.run(program, np.asarray(each).astype(dtype), options=Options(dtype="float32"))
        leaves = out if isinstance(out, tuple) else (out,)
        wrong += [f"{known}: {w}" for (_, known), value in zip(found, leaves) if (w := outside(known, value))]
    return wrong


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_has_the_range_that_is_worked_out_by_hand(name: str) -> None:
    program, spec, ends, expected = LOOPS[name]
    assert wrong(program, spec, ends, np.random.default_rng(0)) == []
    found = ranges_of(opstage.check(program, spec), {"*": ends}).outputs
    for (_, known), (low, high) in zip(found, expected, strict=True):
        assert low <= known.low and known.high <= high, known


def test_random_loops_stay_in_their_ranges() -> None:
    rng = random.Random(4)
    for seed in range(40):
        limit, factor, step = rng.choice([3.0, 10.0]), rng.choice([-1.5, 0.5, 1.5, 2.0]), rng.choice([0.25, 1.0, 2.0])
        strict, turned = rng.random() < 0.5, rng.random() < 0.3

        def program(
            ops: Any, x: Any, bound: float = limit, f: float = factor, s: float = step, strict: bool = strict,
            turned: bool = turned,
        ) -> Any:  # fmt: skip
            def test(ops: Any, c: Any) -> Any:
                value, count = c
                order = ops.less if strict else ops.less_equal
                small = order(value, number(ops, bound))
                small = ops.logical_not(order(number(ops, bound), value)) if turned else small
                return ops.logical_and(small, ops.less(count, number(ops, 30, "int32")))

            return ops.while_loop(test, lambda ops, c: (c[0] * f + s, c[1] + 1), (x, number(ops, 0, "int32")))

        assert wrong(program, FLOAT, (-2.0, 4.0), np.random.default_rng(seed)) == [], seed


def test_random_counters_stay_in_their_ranges() -> None:
    rng = random.Random(5)
    for seed in range(30):
        step, first, grows = rng.choice([-3, -1, 1, 2, 5]), rng.randint(-6, 6), rng.choice([0.5, 1.0, -2.0])
        factor, strict = rng.choice([1.0, 1.25, -1.0]), rng.random() < 0.5

        def program(
            ops: Any, n: Any, step: int = step, first: int = first, grows: float = grows, factor: float = factor,
            strict: bool = strict,
        ) -> Any:  # fmt: skip
            def test(ops: Any, c: Any) -> Any:
                order = ops.less if strict else ops.less_equal
                return order(c[0], n) if step > 0 else order(n, c[0])

            start = (number(ops, first, "int32"), number(ops, 1.0))
            return ops.while_loop(test, lambda ops, c: (c[0] + step, c[1] * factor + grows), start)

        assert wrong(program, INT, (-7, 9), np.random.default_rng(seed)) == [], seed
