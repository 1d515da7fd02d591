"""The conformance suite's samples on simulated CUDA: values against the references, derivatives against float64."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import opstage
from opstage.interpreters.registry import make_interpreter
from opstage.ops.catalogue import FAMILIES
from opstage.ops.errors import LocatedError, UnsupportedError
from opstage.ops.primitive import Primitive
from opstage.ops.trees import flatten, unflatten
from opstage.options import Options
from tests.conformance.harness import SEED, assert_close, cast_tree, inputs, leaves, program_of, random_like
from tests.conformance.test_derivatives import scalarised
from tests.conformance.test_values import upcast
from tests.samples import BAD_CALLS, SAMPLES
from tests.samples.sample import BadCall, Sample

CUDA = Options(device="cuda")
BACKENDS = ("eager", "compiled")
FLOAT64 = Options(dtype="float64")

UNSUPPORTED = {
    "cast-up": "float64 has no form on a device",
    "iota-floats": "float64 has no form on a device",
}
"""Samples that must be refused, and why."""


def samples(order: int) -> list[Sample]:
    return [s for s in SAMPLES if s.order >= order and s.id not in UNSUPPORTED]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sample", samples(0), ids=lambda s: s.id)
def test_values(sample: Sample, backend: str) -> None:
    args = inputs(sample, "float32")
    actual = opstage.run(program_of(sample), *args, options=CUDA.replace(backend=backend))
    expected = opstage.run(program_of(sample), *args)
    for a, e in zip(leaves(actual), leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
    if sample.reference is None:
        assert_close(actual, expected, sample.float32, f"{sample.id} against eager_cpu")
    else:
        reference = sample.reference(*upcast(args), **sample.static)
        assert_close(actual, reference, sample.float32, sample.id)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sample", samples(1), ids=lambda s: s.id)
def test_first_derivatives(sample: Sample, backend: str) -> None:
    """The gradient of <weights, op> and the tangent along a direction, beside those of eager_cpu in float64."""
    rng = np.random.default_rng(SEED)
    args = inputs(sample, "float32")
    outputs = [out for out in leaves(opstage.run(program_of(sample), *args)) if out.dtype.kind == "f"]
    program = scalarised(sample, [rng.standard_normal(out.shape).astype(np.float32) for out in outputs])
    everything = tuple(range(len(args)))
    _, actual = opstage.value_and_grad(program, *args, wrt=everything, options=CUDA.replace(backend=backend))
    _, expected = opstage.value_and_grad(program, *upcast(args), wrt=everything, options=FLOAT64)
    tolerance = (1e-4, 1e-4)  # products of matrices and sums in float32
    assert_close(leaves(actual), leaves(expected), tolerance, f"gradient of {sample.id}")

    v = random_like(rng, args)
    _, moved = opstage.jvp(program_of(sample), args, v, options=CUDA.replace(backend=backend))
    _, exact = opstage.jvp(program_of(sample), upcast(args), v, options=FLOAT64)
    assert_close(leaves(moved), leaves(exact), tolerance, f"tangent of {sample.id}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sample", samples(2)[::5], ids=lambda s: s.id)
def test_second_derivatives(sample: Sample, backend: str) -> None:
    """Every fifth sample: a Hessian-vector product, forward over reverse."""
    rng = np.random.default_rng(SEED)
    args = inputs(sample, "float32")
    v = random_like(rng, args)
    outputs = [out for out in leaves(opstage.run(program_of(sample), *args)) if out.dtype.kind == "f"]
    program = scalarised(sample, [rng.standard_normal(out.shape).astype(np.float32) for out in outputs])
    actual = opstage.hvp(program, args, v, options=CUDA.replace(backend=backend))
    expected = opstage.hvp(program, upcast(args), v, options=FLOAT64)
    for a, e in zip(leaves(actual), leaves(expected), strict=True):
        scale = 1 + float(np.max(np.abs(e), initial=0))
        assert_close(a / scale, e / scale, (2e-4, 2e-4), f"hvp of {sample.id}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", BAD_CALLS, ids=lambda b: b.id)
def test_bad_call(bad: BadCall, backend: str) -> None:
    """The same message as on the CPU."""
    args = cast_tree(bad.arrays(), "float32")
    reasons = []
    for options in (Options(), CUDA.replace(backend=backend)):
        with pytest.raises(LocatedError) as caught:
            opstage.run(lambda ops, *refs: bad.apply(ops, *refs), *args, options=options)
        reasons.append((caught.value.op, caught.value.reason))
    assert reasons[0] == reasons[1]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_a_device_has_not_is_refused(name: str) -> None:
    (sample,) = [s for s in SAMPLES if s.id == name]
    with pytest.raises(UnsupportedError, match=sample.op):
        opstage.run(program_of(sample), *inputs(sample, "float32"), options=CUDA)


def test_every_core_op_has_a_kernel() -> None:
    every = {
        value
        for family in FAMILIES
        for value in vars(import_module(f"opstage.ops.{family}")).values()
        if isinstance(value, Primitive)
    }
    interpreter = make_interpreter(CUDA)
    assert len(every) > 100
    assert [p.name for p in every if p.core and not interpreter.has_kernel(p)] == []


def test_an_interpreter_keeps_its_device() -> None:
    values, structure = flatten((np.ones((2, 3), np.float32), np.arange(3)))
    interpreter = make_interpreter(CUDA)
    refs = [interpreter.put(value) for value in values]
    back = unflatten(structure, [interpreter.get(ref) for ref in refs])
    assert [(a.shape, a.dtype) for a in back] == [((2, 3), np.float32), ((3,), np.int64)]


def test_the_last_of_several_nan_takes_the_gradient_of_a_maximum() -> None:
    x = np.array([[1, np.nan, np.nan, 2, np.nan, 3, np.nan, np.nan]], np.float32)
    found = [
        opstage.value_and_grad(lambda ops, x: ops.sum(ops.max_pool(x, kernel=4)), x, options=options)[1]
        for options in (CUDA, Options())
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], [[0, 0, 1, 0, 0, 0, 0, 1]])
