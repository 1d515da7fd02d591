"""Every op on every interpreter gives what an independent reference gives, in the type that its shape rule promised."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.ops.trees import flatten, unflatten
from opstage.options import Options
from opstage.transforms.derivatives import run_on_tape
from tests.conformance.harness import EXECUTING, assert_close, inputs, leaves, program_of
from tests.samples import SAMPLES
from tests.samples.parts import all_samples, dealt
from tests.samples.sample import Sample

BY_NAME = {sample.id: sample for sample in SAMPLES}


def execute(interpreter: str, sample: Sample, options: Options, args: tuple[Any, ...]) -> Any:
    """The sample through the registry's factory (or a test's own), as `opstage.run` does it."""
    base = EXECUTING[interpreter](options)
    values, structure = flatten(args)
    outcome: list[Any] = []

    def program(ops: Any, *refs: Any) -> tuple[Any, ...]:
        arguments = unflatten(structure, refs)
        _, _, outputs, result = run_on_tape(ops, program_of(sample), arguments, (False,) * len(arguments))
        outcome.append(result)
        return tuple(node.value for node in outputs)

    results = base.execute(program, tuple(base.put(v) for v in values))
    return unflatten(outcome[0], [base.get(r) for r in results])


DTYPES = ("float64", "float32")
COLUMNS = [(name, DTYPES[(turn + i) % 2]) for turn in range(2) for i, name in enumerate(EXECUTING)]
"""Every interpreter with one dtype or the other in turn, then with the other one: as many in a row as there are
interpreters have all of these, and both dtypes."""
QUICK = dealt(SAMPLES, COLUMNS, least=len(EXECUTING))
DONE = {(sample.id, column) for sample, column in QUICK}


@pytest.mark.parametrize(
    ("sample", "interpreter", "dtype"),
    [pytest.param(s, *column, id=f"{s.id}-{'-'.join(column)}") for s, column in QUICK],
)
def test_values(sample: Sample, interpreter: str, dtype: str) -> None:
    require_values(sample, interpreter, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_values_on_all_others(sample: Sample) -> None:
    for column in COLUMNS:
        if (sample.id, column) not in DONE:
            require_values(sample, *column)


def require_values(sample: Sample, interpreter: str, dtype: str) -> None:
    """Raise AssertionError where they are not the reference's, or of other types than were promised."""
    actual = execute(interpreter, sample, Options(dtype=dtype), inputs(sample, dtype))
    for leaf in leaves(actual):
        assert isinstance(leaf, np.ndarray)
        assert leaf.dtype.kind != "f" or sample.op == "cast" or leaf.dtype == np.dtype(dtype), leaf.dtype
    if dtype == "float32":
        assert [(v.shape, v.dtype) for v in leaves(actual)] == promised(sample.id)
    if sample.reference is not None:
        expected = referred(sample.id, dtype)
        assert_close(actual, expected, getattr(sample, dtype), f"{sample.id} on {interpreter} in {dtype}")


@lru_cache(maxsize=2)  # one sample's, which is run on every interpreter in turn
def referred(name: str, dtype: str) -> Any:
    """What the reference gives in float64, on the very numbers that an interpreter of this dtype sees."""
    sample = BY_NAME[name]
    assert sample.reference is not None
    given = inputs(sample, "float64") if dtype == "float64" else upcast(inputs(sample, "float32"))
    return sample.reference(*given, **sample.static)


@cache
def promised(name: str) -> list[tuple[Any, Any]]:
    """The shapes and dtypes that the shape checker says a sample's results have, which it finds right."""
    sample = BY_NAME[name]
    report = opstage.check(program_of(sample), *inputs(sample, "float32"), options=Options(dtype="float32"))
    assert report.ok, report
    assert not report.conditions, report
    return [(t.shape, t.dtype) for t in flatten_types(report.outputs)]


def upcast(args: Any) -> Any:
    values, structure = flatten(args)
    return unflatten(structure, [v.astype(np.float64) if v.dtype == np.float32 else v for v in values])


def flatten_types(tree: Any) -> list[Any]:
    from opstage.ops.types import TensorType

    if isinstance(tree, TensorType):
        return [tree]
    return [t for branch in tree for t in flatten_types(branch)]


@pytest.mark.parametrize("sample", all_samples([s for s in SAMPLES if s.exact]))
def test_exact(sample: Sample) -> None:
    """Rational programs on fractions give what float64 gives, without its rounding."""
    from fractions import Fraction

    for interpreter in EXECUTING:
        actual = execute(interpreter, sample, Options(dtype="exact"), inputs(sample, "exact"))
        for leaf in leaves(actual):
            assert leaf.dtype.kind != "O" or all(isinstance(v, Fraction) for v in leaf.flat), sample.id
        assert_close(
            actual, execute(interpreter, sample, Options(dtype="float64"), inputs(sample)), (1e-12, 1e-13), sample.id
        )
