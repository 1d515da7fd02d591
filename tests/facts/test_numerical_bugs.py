"""Numerical bugs, of public studies and others, are warned about, and their repairs are not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.facts import RangeReport, ranges_of
from tests.analysis.ranges.test_ranges_of_ops import outside
from tests.facts.numerical_bugs import BUGS as OF_STUDIES
from tests.facts.numerical_bugs import Bug
from tests.facts.numerical_pairs import PAIRS

BUGS = OF_STUDIES | PAIRS


def read(bug: Bug, program: Any) -> RangeReport:
    report = opstage.check(program, *bug.specs)
    assert report.ok, report
    return ranges_of(report, dtype=bug.dtype)


def warnings(report: RangeReport) -> list[str]:
    return [finding.rule for finding in report.findings if finding.severity == "warning"]


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_warned_about(name: str) -> None:
    bug = BUGS[name]
    found = read(bug, bug.buggy)
    assert warnings(found)[:1] == [bug.rule], found
    assert found.findings[0].source is not None and not found.safe


@pytest.mark.parametrize("name", BUGS)
def test_its_repair_is_not(name: str) -> None:
    bug = BUGS[name]
    found = read(bug, bug.fixed)
    assert warnings(found) == [], found


def test_warnings_are_true_and_soon_there() -> None:
    """Of each buggy program the warnings of its own rule are true, all others, and those of repairs, count as false."""
    true = false = 0
    for bug in BUGS.values():
        before = time.process_time()
        found, repaired = warnings(read(bug, bug.buggy)), warnings(read(bug, bug.fixed))
        seconds = time.process_time() - before
        true += sum(rule == bug.rule for rule in found)
        false += len(repaired) + sum(rule != bug.rule for rule in found)
        print(f"{seconds:.3f} s of processor time", found, repaired)
    print(f"{true} true, {false} false")
    assert true >= 0.8 * (true + false)


FLOAT32 = [name for name, bug in BUGS.items() if bug.dtype == "float32" and bug.rule != "index-out-of-range"]
RUN = [name for name in FLOAT32 if BUGS[name].rule not in ("cancellation", "nan-behind-select", "integer-overflow")]


def batches(bug: Bug) -> Iterator[list[Any]]:
    """Data as the Specs declare, zeros among them, and weights of any size."""
    rng = np.random.default_rng(4)
    for scale in (0.1, 10.0, 1e4):
        arrays = []
        for spec in bug.specs:
            low, high = spec.range or ((0, 1) if spec.dtype == "bool" else (-scale, scale))
            drawn = rng.uniform(low, high, [3 if size == "B" else int(size) for size in spec.entries])
            drawn[0] = low if low == 0 else 0
            drawn = np.where(rng.random(drawn.shape) < 0.2, 0, drawn)
            if drawn.size > 1:
                drawn.flat[-1] = high
            arrays.append((drawn > 0.5 if spec.dtype == "bool" else drawn).astype(spec.dtype or "float32"))
        yield arrays


def value(program: Any, arrays: list[Any]) -> Any:
    with np.errstate(all="ignore"):
        return opstage.run(program, *arrays, options=Options(dtype="float32"))


@pytest.mark.parametrize("name", FLOAT32)
def test_what_runs_lies_in_the_ranges(name: str) -> None:
    bug = BUGS[name]
    for arrays in batches(bug):
        for program in (bug.buggy, bug.fixed):
            assert outside(read(bug, program).outputs[0][1], value(program, arrays)) == ""


@pytest.mark.parametrize("name", RUN)
def test_a_bug_comes_true_in_a_run_and_its_repair_does_not(name: str) -> None:
    bug = BUGS[name]
    assert not all(np.isfinite(value(bug.buggy, arrays)).all() for arrays in batches(bug))
    assert all(np.isfinite(value(bug.fixed, arrays)).all() for arrays in batches(bug))
