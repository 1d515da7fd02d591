"""Values and gradients of every op against PyTorch, in float64 and in float32, on every interpreter that executes."""

from __future__ import annotations

import pytest

from tests.conformance.harness import EXECUTING
from tests.parity.compare import DTYPES, assert_equal_outcomes, on_opstage, on_torch, operands
from tests.parity.twin import Case, Twin
from tests.parity.twins import TWINS

CASES = [(twin, case) for twin in TWINS for case in twin.cases]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("twin, case", CASES, ids=[f"{twin.op}-{case.name}" for twin, case in CASES])
def test_agrees_with_pytorch(twin: Twin, case: Case, dtype: str) -> None:
    args = operands(twin, case, dtype)
    expected, seeds = on_torch(twin, case, args, dtype)
    for interpreter in EXECUTING:
        actual = on_opstage(interpreter, twin, case, args, seeds, dtype)
        try:
            assert_equal_outcomes(actual, expected, case, dtype)
        except AssertionError as error:
            raise AssertionError(f"{twin.op}, {case.name}, on {interpreter} in {dtype}: {error}") from None
