"""The list of long tests names tests that exist, and the quick suite's part of the samples has every op everywhere."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.harness import EXECUTING
from tests.conformance.test_derivatives import FIRST, SECOND
from tests.conformance.test_values import COLUMNS, DTYPES, QUICK
from tests.eager_cpu.test_fast_kernels import CASES, parameters
from tests.long import STAY, long_tests
from tests.samples import SAMPLES
from tests.samples.parts import all_samples, by_op
from tests.samples.sample import Sample

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_names_tests_that_exist() -> None:
    named: dict[str, set[str]] = defaultdict(set)
    for test in long_tests():
        file, _, name = test.partition("::")
        named[file].add(name.partition("[")[0])
    for file, functions in named.items():
        assert not file.startswith(STAY), file
        tree = ast.parse((ROOT / file).read_text())
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert functions <= defined, f"{file}: {sorted(functions - defined)}; see tests/long.py"


# The part of the samples that the quick suite runs has every op, on every interpreter, in every dtype -----------------


def test_values_of_every_op_on_every_interpreter_in_every_dtype() -> None:
    met = {(sample.op, *column) for sample, column in QUICK}
    for op in {sample.op for sample in SAMPLES}:
        assert {interpreter for of, interpreter, _ in met if of == op} == set(EXECUTING), op
        assert {dtype for of, _, dtype in met if of == op} == set(DTYPES), op
    assert {column for _, column in QUICK} == set(COLUMNS)
    assert {sample.id for sample, _ in QUICK} == {sample.id for sample in SAMPLES}


@pytest.mark.parametrize("samples", [SAMPLES, FIRST, SECOND], ids=["all", "first order", "second order"])
def test_what_takes_some_samples_takes_some_of_every_op(samples: list[Sample]) -> None:
    given = all_samples(samples)
    assert [parameter.values[0] for parameter in given] == samples
    kept = [sample for parameter in given for sample in parameter.values if not parameter.marks]
    counts = {op: len(of_op) for op, of_op in by_op(kept).items()}  # type: ignore[arg-type]
    assert counts == {op: min(len(of), max(2, len(of) // 4)) for op, of in by_op(samples).items()}


def test_fast_kernels_of_every_op_in_both_dtypes() -> None:
    of: dict[str, set[Any]] = {case.op: set() for case in CASES}
    for parameter in parameters():
        case, dtype = parameter.values
        of[case.op] |= {dtype} if not parameter.marks else set()
    quick = [case.op for case in CASES if case.is_quick]
    assert {op: len(dtypes) for op, dtypes in of.items()} == {op: min(2, quick.count(op)) for op in of}
