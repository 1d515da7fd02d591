"""Every op's samples: perturbing an operand along an axis moves what dependence allows, and nothing else, bitwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.api import vjp_base
from tests.analysis.dependence.oracle import FLOAT64, violations
from tests.samples import SAMPLES
from tests.samples.sample import Sample


def _operands(sample: Sample, seed: int) -> tuple[list[Any], Any]:
    """The arrays present, and how to call the op on as many refs."""
    given = [
        [np.asarray(a) for a in x] if isinstance(x, (list, tuple)) else None if x is None else np.asarray(x)
        for x in sample.arrays(np.random.default_rng(seed))
    ]
    flat = [a for x in given for a in (x if isinstance(x, list) else [x]) if a is not None]

    def program(ops: Any, *refs: Any) -> Any:
        rest = iter(refs)
        return sample.apply(
            ops, *[[next(rest) for _ in x] if isinstance(x, list) else None if x is None else next(rest) for x in given]
        )

    return flat, program


def _of(program: Any, arrays: list[Any]) -> Any:
    """The body of a program of arrays of these types."""
    report = opstage.check(program, *[Spec(a.shape, a.dtype) for a in arrays], options=FLOAT64)
    return report.program.body if report.ok else None


def _wrong(sample: Sample, seed: int = 0) -> list[str]:
    arrays, program = _operands(sample, seed)
    arrays = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    body = _of(program, arrays)
    if body is None:
        return []
    found = []
    for operand, array in enumerate(arrays):
        for axis in range(array.ndim):
            if 0 < array.shape[axis] <= 8:
                found += violations(body, arrays, operand=operand, axis=axis, seed=seed)
    return found


EVERY_OP = {sample.op: sample for sample in SAMPLES}
OTHERS = [pytest.param(s, marks=pytest.mark.slow) for s in SAMPLES if s is not EVERY_OP[s.op]]


@pytest.mark.parametrize("sample", [*EVERY_OP.values(), *OTHERS], ids=lambda s: s.id)
def test_an_op_reads_what_its_fact_says(sample: Sample) -> None:
    assert _wrong(sample) == []


FIRST = {sample.op: sample for sample in reversed(SAMPLES) if sample.order}


@pytest.mark.slow
@pytest.mark.parametrize("sample", FIRST.values(), ids=lambda s: s.id)
def test_a_gradient_reads_what_its_fact_says(sample: Sample) -> None:
    arrays, program = _operands(sample, 0)
    floats = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    out = opstage.run(program, *arrays, options=Options(dtype="float64"))
    if not isinstance(out, np.ndarray):
        pytest.skip("several results")

    def backward(ops: Any, cotangent: Any, *refs: Any) -> Any:
        grads = vjp_base(program)(ops, refs, cotangent)
        return [grads[i] for i in floats]

    from opstage.interpreters.shape_check.check import check_base_program

    every = [np.ones_like(out), *arrays]
    report = check_base_program(
        backward, [Spec(a.shape, a.dtype) for a in every], [f"a{i}" for i in range(len(every))], FLOAT64
    )
    if not report.ok or out.dtype.kind != "f":
        pytest.skip("nothing to pull back")
    for operand, array in enumerate(every):
        for axis in range(array.ndim):
            if 0 < array.shape[axis] <= 8:
                assert violations(report.program.body, every, operand=operand, axis=axis) == []
