"""Constants and arguments: a number that the wanted dtype does not hold is an error, as it is of ops.full."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.ops.errors import DtypeError, UsageError
from tests.conformance.harness import EXECUTING

BAD: dict[str, tuple[Any, str | None, type[Exception], str]] = {
    "too large": ([1, 2**40], "int32", DtypeError, f"value {2**40} is not a value of int32"),
    "too small": (np.array([-(2**31) - 1]), "int32", DtypeError, "is not a value of int32"),
    "half": ([1.0, 1.5], "int32", DtypeError, "value 1.5 is not a value of int32"),
    "a fraction": ([Fraction(3, 2)], "int64", DtypeError, "is not a value of int64"),
    "nan": (np.nan, "int64", DtypeError, "value nan is not a value of int64"),
    "infinite": (-np.inf, "int32", DtypeError, "value -inf is not a value of int32"),
    "2⁶³ unsigned": (np.array([1, 2**63], np.uint64), "int64", DtypeError, f"value {2**63} is not a value of int64"),
    "2⁶³ as a float": (2.0**63, "int64", DtypeError, "is not a value of int64"),
    "2⁷⁰": (2**70, "int64", DtypeError, "is not a value of int64"),
    "2⁷⁰, no dtype": ([1, 2**70], None, UsageError, "integers are at most"),
    "masked": (np.ma.array([1.0, 2.0], mask=[False, True]), None, UsageError, "fill them first"),
}
GOOD: dict[str, tuple[Any, str | None, Any]] = {
    "whole floats": ([1.0, -2.0], "int32", np.array([1, -2], np.int32)),
    "the ends": ([-(2**31), 2**31 - 1], "int32", np.array([-(2**31), 2**31 - 1], np.int32)),
    "unsigned": (np.array([2**63 - 1], np.uint64), "int64", np.array([2**63 - 1])),
    "booleans": ([True, False], "int64", np.array([1, 0])),
    "truth": ([2, 0], "bool", np.array([True, False])),
    "nothing": (np.zeros(0), "int32", np.zeros(0, np.int32)),
    "fractions": ([Fraction(4, 2)], "int64", np.array([2])),
    "small integers as objects": (np.array([1, 2], object), None, np.array([1.0, 2.0])),
    "masked nowhere": (np.ma.array([1.0, 2.0]), None, np.array([1.0, 2.0])),
}


@pytest.mark.parametrize("interpreter", EXECUTING)
@pytest.mark.parametrize("name", BAD)
def test_values_that_a_dtype_does_not_hold(interpreter: str, name: str) -> None:
    value, dtype, kind, message = BAD[name]
    ops = EXECUTING[interpreter](Options(dtype="float64"))
    with pytest.raises(kind, match=message):
        ops.const(value) if dtype is None else ops.const(value, dtype=dtype)


@pytest.mark.parametrize("interpreter", EXECUTING)
@pytest.mark.parametrize("name", GOOD)
def test_values_that_it_holds(interpreter: str, name: str) -> None:
    value, dtype, right = GOOD[name]
    ops = EXECUTING[interpreter](Options(dtype="float64"))
    found = ops.get(ops.const(value) if dtype is None else ops.const(value, dtype=dtype))
    assert found.dtype == right.dtype
    np.testing.assert_array_equal(found, right)


def test_a_check_says_so_too() -> None:
    report = opstage.check(lambda ops: ops.const([1.5], dtype="int32"))
    assert not report.ok and "value 1.5 is not a value of int32" in str(report)


def test_masked_arguments_are_refused() -> None:
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    with pytest.raises(UsageError, match="argument x: a masked array has entries that are masked"):
        opstage.run(lambda ops, x: x, masked)
