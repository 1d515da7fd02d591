"""How exact results and gradients are where numbers are large, offset or cancelling: on every interpreter alike."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from opstage.options import Options
from opstage.transforms.interpreter import BaseInterpreter
from tests.conformance.harness import EXECUTING
from tests.numbers.accuracy import LEVELS, LONG, LONGER, ULP, WINNERS, Program
from tests.numbers.evaluate import SEED, evaluate, ones_for


def errors(program: Program, base: BaseInterpreter[Any]) -> list[tuple[str, float]]:
    """Of each result and gradient of `base`, in float32: what it is and its error in units of the last place."""
    args = program.arrays(np.random.default_rng([SEED, zlib.crc32(program.name.encode())]))
    wide = tuple(x.astype(np.float64) if x.dtype == np.float32 else x for x in args)
    exact = EXECUTING["eager, decomposed"](Options(dtype="float64"))
    cotangents = [c.astype(np.float32) for c in ones_for(evaluate(exact, program.call, wide, None).values)]
    expected = evaluate(exact, program.call, wide, [c.astype(np.float64) for c in cotangents])
    actual = evaluate(base, program.call, args, cotangents)
    found = []
    for (name, a), (_, e) in zip(actual.named(), expected.named(), strict=True):
        assert a.dtype == np.float32 and a.shape == e.shape
        greatest = float(np.max(np.abs(e), initial=program.scale)) or 1.0
        found.append((name, float(np.max(np.abs(a - e), initial=0)) / greatest / ULP))
    return found


def assert_exact(programs: list[Program], base: BaseInterpreter[Any]) -> None:
    wrong = [
        f"{program.name}: {name} is {error:.1f} ulp off, not {program.within}"
        for program in programs
        for name, error in errors(program, base)
        if not error <= program.within
    ]
    assert not wrong, "\n".join(wrong)


COMPILED = {"compiled"}
"""Takes a kernel for each program; of those that are alike, some are left to the slow tests."""


def few(programs: list[Program], interpreter: str, every: int) -> list[Program]:
    return programs[::every] if interpreter in COMPILED else programs


@pytest.mark.parametrize("interpreter", EXECUTING)
def test_large_and_cancelling(interpreter: str) -> None:
    assert_exact(few(LEVELS, interpreter, 19) + WINNERS, EXECUTING[interpreter](Options(dtype="float32")))


@pytest.mark.parametrize("interpreter", EXECUTING)
def test_long_sums(interpreter: str) -> None:
    assert_exact(few(LONG, interpreter, 5), EXECUTING[interpreter](Options(dtype="float32")))


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", EXECUTING)
def test_longer_sums(interpreter: str) -> None:
    assert_exact(LONGER, EXECUTING[interpreter](Options(dtype="float32")))


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", sorted(COMPILED))
def test_all_programs(interpreter: str) -> None:
    assert_exact([*LEVELS, *LONG], EXECUTING[interpreter](Options(dtype="float32")))
