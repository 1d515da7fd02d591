"""Random programs on named sizes: what is said of them for every size holds when they run at some."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from tests.analysis.dependence.oracle import violations
from tests.analysis.dependence.steps import STEPS, D, drawn, program_of

SPEC = Spec(("B", "T", D), where=("B >= 1", "T >= 1"))
SIZES = [{"B": 2, "T": 4}, {"B": 1, "T": 1}, {"B": 3, "T": 2}]


def wrong(names: Sequence[str], sizes: Sequence[dict[str, int]] = SIZES, seed: int = 0, spec: Spec = SPEC) -> list[str]:
    """Facts about a program of these steps that a run shows to be wrong."""
    report = opstage.check(partial(program_of, names), spec, options=Options(dtype="float64"))
    assert report.ok, report
    symbolic = report.program.body
    found = []
    for at in sizes:
        if any(condition.holds is not None and not condition.holds(at) for condition in report.conditions):
            continue
        body = report.at(**at).program.body
        x = np.random.default_rng(seed).normal(size=(at["B"], at["T"], D))
        x[:1, :1, :1] = 0.0
        step = [np.asarray(3)] * (len(body.inputs) - 1)
        for axis, name in ((0, "B"), (1, "T")):
            dim = symbolic.types[symbolic.inputs[0]].shape[axis]
            more: dict[str, Any] = {"named": [(0, axis)], "types": symbolic, "sizes": at, "dim": dim, "seed": seed}
            found += [f"{name} at {at}: {each}" for each in violations(body, [x, *step], **more)]
    return found


@pytest.mark.parametrize("name", STEPS)
def test_a_step_reads_what_its_fact_says(name: str) -> None:
    assert wrong([name]) == []


SMALL = Spec(("B", "T", D), where=("B >= 0", "T >= 0"))
EMPTY = [{"B": 0, "T": 3}, {"B": 2, "T": 0}, {"B": 0, "T": 0}]


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_facts_hold_of_infinities_nans_and_nothing(name: str) -> None:
    """Of values that are not finite what takes nothing for granted, and all of it at sizes of 0."""
    report = opstage.check(partial(program_of, [name]), SPEC, options=Options(dtype="float64"))
    symbolic, at = report.program.body, {"B": 2, "T": 4}
    x = np.random.default_rng(2).normal(size=(2, 4, D))
    x[0, 1], x[1, 2, 0], x[1, 0] = np.inf, -np.inf, np.nan
    step = [np.asarray(3)] * (len(symbolic.inputs) - 1)
    for axis in (0, 1):
        dim = symbolic.types[symbolic.inputs[0]].shape[axis]
        more: dict[str, Any] = {"named": [(0, axis)], "types": symbolic, "sizes": at, "dim": dim}
        assert violations(report.at(**at).program.body, [x, *step], unconditional=True, **more) == []
    if opstage.check(partial(program_of, [name]), SMALL, options=Options(dtype="float64")).ok:
        assert wrong([name], EMPTY, spec=SMALL) == []


def test_few_random_programs_read_what_their_facts_say() -> None:
    rng = random.Random(1)
    for _ in range(40):
        names = drawn(rng, 2)
        assert wrong(names, SIZES[:1]) == [], names


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_programs_read_what_their_facts_say(seed: int) -> None:
    rng = random.Random(100 + seed)
    for _ in range(150):
        names = drawn(rng, rng.choice([2, 3]))
        assert wrong(names, [rng.choice(SIZES)], seed) == [], names
