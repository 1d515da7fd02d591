"""Schedules against their formulas and against rates worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opstage.ops.errors import UsageError
from opstage.optim import schedule


def rates(made: schedule.Schedule, steps: int) -> list[float]:
    return [made(step) for step in range(steps)]


def close(actual: list[float], expected: Any) -> None:
    np.testing.assert_allclose(actual, list(expected), rtol=1e-12, atol=1e-15)


def test_constant() -> None:
    assert rates(schedule.constant(0.3), 3) == [0.3, 0.3, 0.3]


def test_step() -> None:
    close(rates(schedule.step(0.8, 2, 0.5), 6), [0.8, 0.8, 0.4, 0.4, 0.2, 0.2])
    close(rates(schedule.step(1.0, 1), 3), [1.0, 0.1, 0.01])


def test_exponential() -> None:
    close(rates(schedule.exponential(0.8, 0.5), 4), [0.8, 0.4, 0.2, 0.1])


def test_cosine() -> None:
    close(rates(schedule.cosine(1.0, 4), 5), [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0.0])
    made = schedule.cosine(0.3, 13, eta_min=0.01)
    # PyTorch's recursive form, which is the same function
    expected = [0.3]
    for t in range(1, 30):
        if (t - 1 - 13) % 26 == 0:
            expected.append(expected[-1] + (0.3 - 0.01) * (1 - math.cos(math.pi / 13)) / 2)
        else:
            ratio = (1 + math.cos(math.pi * t / 13)) / (1 + math.cos(math.pi * (t - 1) / 13))
            expected.append(ratio * (expected[-1] - 0.01) + 0.01)
    np.testing.assert_allclose(rates(made, 30), expected, rtol=1e-9)


def test_linear_warmup() -> None:
    close(rates(schedule.linear_warmup(0.9, 4), 6), [0.3, 0.45, 0.6, 0.75, 0.9, 0.9])
    close(rates(schedule.linear_warmup(1.0, 2, start_factor=0.0), 4), [0.0, 0.5, 1.0, 1.0])


def test_warmup_cosine() -> None:
    made = schedule.warmup_cosine(1.0, warmup_steps=3, total_steps=7, eta_min=0.2)
    falling = [0.2 + 0.4 * (1 + math.cos(math.pi * k / 4)) for k in range(5)]
    close(rates(made, 10), [0.25, 0.5, 0.75, *falling, 0.2, 0.2])
    close(rates(schedule.warmup_cosine(1.0, 0, 2), 4), [1.0, 0.5, 0.0, 0.0])


def test_cyclic() -> None:
    up_and_down = [0.1, 0.2, 0.3, 0.4, 0.5, 0.4, 0.3, 0.2]
    close(rates(schedule.cyclic(0.1, 0.5, 4), 16), up_and_down * 2)
    close(rates(schedule.cyclic(0.0, 1.0, 1, 3), 8), [0, 1, 2 / 3, 1 / 3, 0, 1, 2 / 3, 1 / 3])
    halving = schedule.cyclic(0.1, 0.5, 4, mode="triangular2")
    close(rates(halving, 16), up_and_down + [0.1 + (r - 0.1) / 2 for r in up_and_down])
    shrinking = schedule.cyclic(0.1, 0.5, 4, mode="exp_range", gamma=0.9)
    close(rates(shrinking, 8), [0.1 + (r - 0.1) * 0.9**t for t, r in enumerate(up_and_down)])


_FAR = [
    # the schedule, and its rates at the steps 10^6 and 2^53
    (schedule.constant(0.3), 0.3, 0.3),
    (schedule.step(0.8, 2, 0.5), 0.0, 0.0),
    (schedule.step(0.8, 2, 1.5), math.inf, math.inf),
    (schedule.step(0.0, 2, 1.5), 0.0, 0.0),
    (schedule.exponential(0.8, 0.9), 0.0, 0.0),
    (schedule.exponential(1e-3, 1.01), math.inf, math.inf),
    (schedule.exponential(0.0, 2.0), 0.0, 0.0),
    (schedule.cosine(1.0, 3), 0.25, 0.25),  # 10^6 = 4 and 2^53 = 2 modulo 6
    (schedule.cosine(1.0, 4), 1.0, 1.0),
    (schedule.linear_warmup(0.9, 4), 0.9, 0.9),
    (schedule.warmup_cosine(1.0, 3, 7, eta_min=0.2), 0.2, 0.2),
    (schedule.cyclic(0.1, 0.5, 3), 0.1 + 0.4 * 2 / 3, 0.1 + 0.4 * 2 / 3),
    (schedule.cyclic(0.1, 0.5, 3, mode="triangular2"), 0.1, 0.1),
    (schedule.cyclic(0.1, 0.5, 3, mode="exp_range", gamma=0.9), 0.1, 0.1),
    (schedule.cyclic(0.1, 0.5, 3, mode="exp_range", gamma=1.1), math.inf, math.inf),
    (schedule.cyclic(0.1, 0.1, 3, mode="exp_range", gamma=1.1), 0.1, 0.1),
    (schedule.one_cycle(1.0, 20), 1 / 25e4, 1 / 25e4),
    (schedule.scaled(schedule.exponential(0.5, 1.01), 0.1), math.inf, math.inf),
]


@pytest.mark.parametrize(("made", "at_a_million", "at_the_end"), _FAR, ids=lambda x: type(x).__name__)
def test_far_steps_have_the_limit_of_the_formula(
    made: schedule.Schedule, at_a_million: float, at_the_end: float
) -> None:
    assert math.isfinite(made(0))
    close([made(10**6), made(2**53)], [at_a_million, at_the_end])


@pytest.mark.parametrize("three_phase", [False, True])
@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_one_cycle(strategy: str, three_phase: bool) -> None:
    made = schedule.one_cycle(1.0, 20, pct_start=0.25, anneal_strategy=strategy, three_phase=three_phase)
    start, low = 1 / 25, 1 / 25e4

    def anneal(a: float, b: float, done: float) -> float:
        return a + (b - a) * (done if strategy == "linear" else (1 - math.cos(math.pi * done)) / 2)

    expected = [anneal(start, 1.0, t / 4) for t in range(5)]
    if three_phase:
        expected += [anneal(1.0, start, t / 4) for t in range(1, 5)]
        expected += [anneal(start, low, t / 11) for t in range(1, 12)]
    else:
        expected += [anneal(1.0, low, t / 15) for t in range(1, 16)]
    close(rates(made, 22), [*expected, low, low])


def test_one_cycle_of_one_step_has_a_rate() -> None:
    assert schedule.one_cycle(1.0, 1)(0) == pytest.approx(1 / 25e4)
    assert schedule.one_cycle(1.0, 4, pct_start=0.25)(0) == 1.0


def test_schedules_are_values() -> None:
    assert schedule.cosine(0.1, 5) == schedule.cosine(0.1, 5) != schedule.cosine(0.1, 6)
    assert hash(schedule.constant(0.1)) == hash(schedule.constant(0.1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedule.constant(-1.0), "constant: lr must be a finite number that is at least 0 but is -1.0"),
        (lambda: schedule.step(0.1, 0), "step: step_size must be an int that is at least 1 but is 0"),
        (lambda: schedule.step(0.1, 2.0), "step: step_size .* 2.0"),  # type: ignore[arg-type]
        (lambda: schedule.exponential(0.1, math.nan), "exponential: gamma .* nan"),
        (lambda: schedule.cosine(0.1, 5, -0.1), "cosine: eta_min"),
        (lambda: schedule.linear_warmup(0.1, 5, 2.0), r"linear_warmup: start_factor must be a number in \[0, 1\]"),
        (lambda: schedule.warmup_cosine(0.1, 5, 5), "warmup_cosine: total_steps must be an int that is at least 6"),
        (lambda: schedule.cyclic(0.1, 0.5, mode="triangle"), "cyclic: mode .*did you mean 'triangular'"),
        (lambda: schedule.cyclic(0.1, 0.5, 4, 0), "cyclic: step_size_down"),
        (lambda: schedule.one_cycle(0.1, 10, anneal_strategy="line"), "anneal_strategy .*did you mean 'linear'"),
        (lambda: schedule.one_cycle(0.1, 10, div_factor=0.0), "div_factor must be a finite number above 0"),
    ],
)
def test_bad_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
