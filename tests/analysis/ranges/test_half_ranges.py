"""Ranges read in float16 and bfloat16, held against runs whose every result is rounded to those dtypes."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec
from opstage.facts.range_report import ranges_of
from tests.analysis.dependence.steps import D, drawn, program_of
from tests.analysis.dependence.test_every_op import EVERY_OP, OTHERS, _operands
from tests.analysis.ranges.half import half, wrong
from tests.samples.sample import Sample

DTYPES = ("float16", "bfloat16")
EXTREMES = [0.0, -0.0, 1.0, -1.0, 6e-8, 1e-5, 11.0, -17.0, 300.0, -3e4, 6.5e4, 0.1, 2049.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sample", [*EVERY_OP.values(), *OTHERS], ids=lambda s: s.id)
def test_a_result_of_16_bits_lies_in_its_range(sample: Sample, dtype: str) -> None:
    arrays, program = _operands(sample, 0)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        given = [np.ascontiguousarray(a) for a in arrays]
        if sum(a.size for a in given) > 512:
            return
        for i, a in enumerate(given):
            if a.dtype.kind == "f":
                given[i] = (rng.choice(rng.choice(EXTREMES, 3), a.shape) if seed else a).astype(np.float32)
        assert wrong(program, given, dtype) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_programs_stay_in_their_ranges_of_16_bits(dtype: str) -> None:
    rng = random.Random(3)
    for seed in range(60):
        names = drawn(rng, 3)
        x = np.random.default_rng(seed).normal(size=(2, 3, D)) * rng.choice([0.1, 1, 30, 1000])
        assert wrong(partial(program_of, names), [x.astype(np.float32)], dtype) == [], names


def test_the_oracle_rounds_as_the_dtypes_do() -> None:
    given = np.array([1 + 2**-8, 1 + 3 * 2**-8, 2**-133, 2**-135, 3.4e38, np.inf, -np.inf, np.nan], np.float32)
    rounded = np.array([1, 1 + 2**-6, 2**-133, 0, np.inf, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(half(given, "bfloat16"), rounded)
    np.testing.assert_array_equal(half(np.float32([65519, 65520, 1e-8]), "float16"), np.float32([65504, np.inf, 0]))


MASK = Spec("T T", dtype="bool", where=("T <= 128",))
SCORES = Spec("T T", range=(-10, 10), where=("T <= 128",))


def _masked(value: float, ops: Any, scores: Any, mask: Any) -> Any:
    added = ops.select(mask, ops.full(shape=mask.shape, value=0.0), ops.full(shape=mask.shape, value=value))
    return ops.softmax(scores + added, axis=1)


def test_a_mask_that_float16_does_not_hold_is_minus_infinity() -> None:
    """A row masked as a whole is then nan, where float32 weighs all of it alike; the assumption excludes it."""
    report = opstage.check(partial(_masked, -1e9), SCORES, MASK)
    found = ranges_of(report, dtype="float16")
    (finding,) = found.findings
    assert finding.rule == "overflow" and "-1e+09 is infinite in float16" in finding.reason
    assert any("entirely -inf" in text for text in found.assumptions)
    for dtype in ("float32", "bfloat16"):
        assert ranges_of(report, dtype=dtype).safe


def test_the_least_float16_masks_in_float16() -> None:
    report = opstage.check(partial(_masked, -65504.0), SCORES, MASK)
    assert ranges_of(report, dtype="float32").safe
    assert [finding.rule for finding in ranges_of(report, dtype="float16").findings] == [
        "overflow"
    ]  # less 10 it is not
    assert ranges_of(opstage.check(partial(_masked, -3e4), SCORES, MASK), dtype="float16").safe
