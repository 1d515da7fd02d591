"""Every op's samples, in float64 and float32: each result lies in the range found from those of the operands."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.analysis.ranges import ASSUMPTIONS, ValueRange
from opstage.facts.range_report import ranges_of
from tests.analysis.dependence.steps import STEPS, D, drawn, program_of
from tests.analysis.dependence.test_every_op import _operands
from tests.samples import SAMPLES
from tests.samples.parts import all_samples
from tests.samples.sample import Sample


def outside(fact: ValueRange, value: Any) -> str:
    """What of the values contradicts the range; empty where nothing does."""
    numbers = np.asarray(value).astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if np.isnan(numbers).any() and not fact.nan:
        return "nan"
    if (numbers == np.inf).any() and not fact.plus:
        return "inf"
    if (numbers == -np.inf).any() and not fact.minus:
        return "-inf"
    if finite.size and (finite.min() < fact.low or finite.max() > fact.high):
        return f"{finite.min()!r} … {finite.max()!r}"
    return "a fraction" if fact.integral and (finite != np.floor(finite)).any() else ""


def _bounds(array: Any) -> tuple[float, float] | None:
    numbers = np.asarray(array, np.float64)
    return (float(numbers.min()), float(numbers.max())) if numbers.size and np.isfinite(numbers).all() else None


def wrong(program: Any, arrays: Sequence[Any], dtype: str, specs: Sequence[Any] | None = None) -> list[str]:
    """Ranges of the outputs, for the bounds of these arrays, that the outputs contradict."""
    options = Options().replace(dtype=dtype)
    report = opstage.check(program, *(specs or [Spec(a.shape, a.dtype) for a in arrays]), options=options)
    if not report.ok:
        return []
    numeric = [a for a in arrays if a.dtype.kind in "iuf"]
    if any(_bounds(a) is None for a in numeric if a.size):
        return []
    inputs = [name for name in report.program.names if name][: len(arrays)]
    bounds = {name: b for name, a in zip(inputs, arrays) if a.dtype.kind in "iuf" and (b := _bounds(a)) is not None}
    found = ranges_of(report, bounds)
    with np.errstate(all="ignore"):
        outputs = opstage.run(program, *arrays, options=options)
    leaves = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    assert len(leaves) == len(found.outputs)
    if set(found.assumptions) - set(ASSUMPTIONS) and any(np.isnan(value).any() for value in leaves):
        return []  # a row is masked as a whole, or no label counts, which ranges say that they take for granted
    return [f"{fact}: {w}" for (_, fact), value in zip(found.outputs, leaves) if (w := outside(fact, value))]


@pytest.mark.parametrize("sample", all_samples(SAMPLES))
def test_a_result_lies_in_its_range(sample: Sample) -> None:
    arrays, program = _operands(sample, 0)
    if any(not a.flags["C_CONTIGUOUS"] for a in arrays):
        arrays = [np.ascontiguousarray(a) for a in arrays]
    assert wrong(program, [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays], "float64") == []


EXTREMES = {
    "float64": [0.0, -0.0, 1.0, -1.0, 5e-324, 1e-300, 745.0, -745.0, 1e154, -1e200, 1.7e308],
    "float32": [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-38, 88.0, 89.0, -104.0, 1e19, -1e30, 3.4e38],
}


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_a_result_of_extreme_numbers_lies_in_its_range(sample: Sample) -> None:
    """Where sums, products and exponentials overflow, and small numbers vanish."""
    arrays, program = _operands(sample, 0)
    for dtype, numbers in EXTREMES.items():
        rng = np.random.default_rng(7)
        for _ in range(3):
            chosen = rng.choice(numbers, 3)
            given = [rng.choice(chosen, a.shape).astype(dtype) if a.dtype.kind == "f" else a for a in arrays]
            if sum(a.size for a in given) <= 512:
                assert wrong(program, given, dtype) == [], chosen


SPEC = Spec(("B", "T", D), where=("B >= 1", "T >= 1"))


@pytest.mark.parametrize("name", STEPS)
def test_a_step_stays_in_its_range_at_every_size(name: str) -> None:
    for b, t in ((2, 4), (1, 1), (3, 2)):
        x = np.random.default_rng(b).normal(size=(b, t, D)) * 3
        assert wrong(partial(program_of, [name]), [x], "float64", [SPEC]) == []


def test_random_programs_stay_in_their_ranges() -> None:
    rng = random.Random(3)
    for _ in range(60):
        names = drawn(rng, 3)
        x = np.random.default_rng(rng.randrange(1000)).normal(size=(2, 3, D)) * rng.choice([0.1, 1, 30])
        assert wrong(partial(program_of, names), [x], "float64", [SPEC]) == [], names


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_random_programs_stay_in_their_ranges(seed: int) -> None:
    rng = random.Random(900 + seed)
    for _ in range(200):
        names = drawn(rng, rng.choice([2, 3, 4]))
        x = np.random.default_rng(rng.randrange(1000)).normal(size=(2, 3, D)) * rng.choice([0.01, 1, 100, 1e4])
        assert wrong(partial(program_of, names), [x], rng.choice(["float32", "float64"]), [SPEC]) == [], names


def test_subnormal_numbers_have_fewer_digits() -> None:
    """Half of three times the least number is a number of no float dtype, and is rounded up or down."""
    for dtype, least in (("float32", 2.0**-149), ("float64", 5e-324)):
        for count in (1, 3, 5, 7):
            x, half = np.full(2, count * least, dtype), np.full(2, 0.5, dtype)
            assert wrong(lambda ops, x, y: x * y, [x, half], dtype) == []
