"""Random programs: the kernels, the checker, both modes of differentiation and central differences all agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import opstage
from opstage import Options
from opstage.ops.trees import flatten
from opstage.transforms.derivatives import value_and_grad
from tests.conformance.harness import EXECUTING, central_difference, dot, random_like
from tests.property.ops import MAKERS
from tests.property.programs import RandomProgram, programs
from tests.searches import share

FLOAT64 = Options(dtype="float64")
DRAWN = programs(MAKERS)
SMOOTH = programs(MAKERS, smooth=True)


def floats(values: list[Any]) -> list[Any]:
    return [v for v in values if v.dtype.kind == "f"]


def weights(program: RandomProgram) -> list[Any]:
    """A number for each element of each float result, which make the program scalar."""
    rng = np.random.default_rng(program.seed + 1)
    return [rng.standard_normal(t.shape) for t in program.types if t.kind == "float"]


def scalar(program: RandomProgram) -> Any:
    """(<weights, results>, results)"""
    given = weights(program)

    def f(ops: Any, *refs: Any) -> Any:
        results = program(ops, *refs)
        total = ops.full(shape=(), value=0.0)
        for result, w in zip(floats(results), given):
            total = ops.add(total, ops.sum(ops.mul(result, ops.const(w))))
        return total, results

    return f


def results_and_gradients(interpreter: str, program: RandomProgram) -> tuple[list[Any], list[Any]]:
    base = EXECUTING[interpreter](FLOAT64)
    args = tuple(base.put(array) for array in program.arrays())
    count = 0

    def run(ops: Any, *refs: Any) -> tuple[Any, ...]:
        nonlocal count
        f, everything = scalar(program), tuple(range(len(refs)))
        (_, results), grads = value_and_grad(ops, f, *refs, wrt=everything, has_aux=True)
        count = len(results)
        return (*results, *flatten(grads)[0])

    values = [np.array(base.get(ref)) for ref in base.execute(run, args)]
    return values[:count], values[count:]


def assert_equal(actual: list[Any], expected: list[Any], tolerance: float, what: str) -> None:
    assert len(actual) == len(expected), what
    for a, e in zip(actual, expected):
        assert a.shape == e.shape and a.dtype == e.dtype, what
        if e.dtype.kind != "f":
            np.testing.assert_array_equal(a, e, err_msg=what)
        else:
            scale = 1 + np.max(np.abs(e), initial=0.0)
            np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance * scale, err_msg=what)


def kernels_agree(program: RandomProgram) -> None:
    """Compiled, NumPy and decomposed kernels give the same values and gradients, of the types that were promised."""
    results, grads = results_and_gradients("eager", program)
    assert [(r.shape, r.dtype) for r in results] == [(t.shape, t.dtype) for t in program.types]
    assert all(np.isfinite(v).all() for v in (*results, *grads)), "the generator is to keep numbers finite"
    for other in ("eager, plain NumPy", "eager, decomposed"):
        others, other_grads = results_and_gradients(other, program)
        assert_equal(others, results, 1e-10, f"results of {other}")
        assert_equal(other_grads, grads, 1e-10, f"gradients of {other}")


def checker_agrees(program: RandomProgram) -> None:
    """The checker promises the types that the generator knows; so does its dry run of the gradient."""
    report = opstage.check(program, *program.arrays(), options=FLOAT64)
    assert report.ok and not report.conditions, report
    assert [(t.shape, t.dtype) for t in report.outputs] == [(t.shape, t.dtype) for t in program.types]
    everything = tuple(range(len(program.arrays())))
    dry = Options(backend="shape_check", dtype="float64")

    def loss(ops: Any, *refs: Any) -> Any:
        return scalar(program)(ops, *refs)[0]

    _, grads = opstage.value_and_grad(loss, *program.arrays(), wrt=everything, options=dry)
    for grad, array in zip(grads, program.arrays()):
        assert (grad is None) == (array.dtype.kind != "f")
        assert grad is None or (grad.shape, grad.dtype) == (array.shape, array.dtype)


def modes_agree(program: RandomProgram) -> None:
    """<u, J v> = <Jᵀ u, v>"""
    rng = np.random.default_rng(program.seed + 2)
    args = program.arrays()
    v = random_like(rng, args)
    value, tangent = opstage.jvp(program, args, v, options=FLOAT64)
    u = random_like(rng, value)
    _, pullback = opstage.vjp(program, *args, options=FLOAT64)
    pulled = pullback(u)
    forward, reverse = dot(u, tangent), dot(pulled, v)
    magnitude = sum(float(np.sum(np.abs(a * b))) for a, b in zip(u, tangent) if a is not None)
    magnitude += sum(float(np.sum(np.abs(a * b))) for a, b in zip(pulled, v) if b is not None)
    assert abs(forward - reverse) <= 1e-11 * (1 + magnitude)


def gradient_is_the_slope(program: RandomProgram) -> None:
    """The gradient along a direction is the central difference along it."""
    args = program.arrays()
    direction = random_like(np.random.default_rng(program.seed + 3), args)
    _, tangent = opstage.jvp(program, args, direction, options=FLOAT64)
    expected = central_difference(lambda at: opstage.run(program, *at, options=FLOAT64), args, direction)
    for t, e in zip(floats([t for t in tangent if t is not None]), expected):
        scale = 1 + np.max(np.abs(e), initial=0.0)
        np.testing.assert_allclose(t, e, rtol=1e-6, atol=1e-6 * scale)


def hessians_agree(program: RandomProgram) -> None:
    """Forward over reverse is symmetric, <u, H v> = <v, H u>, and is what reverse over reverse gives."""
    rng = np.random.default_rng(program.seed + 4)
    args = program.arrays()
    u, v = random_like(rng, args), random_like(rng, args)

    def loss(ops: Any, *refs: Any) -> Any:
        return scalar(program)(ops, *refs)[0]

    def slope(ops: Any, point: Any, direction: Any) -> Any:
        _, pullback = opstage.transform.vjp(ops, loss, *point)
        pairs = zip(pullback(ops.full(shape=(), value=1.0)), direction)
        total = ops.full(shape=(), value=0.0)
        for g, d in pairs:
            total = total if g is None else ops.add(total, ops.sum(ops.mul(g, d)))
        return total

    hv = opstage.hvp(loss, args, v, options=FLOAT64)
    hu = opstage.hvp(loss, args, u, options=FLOAT64)
    magnitude = sum(float(np.sum(np.abs(a * b))) for a, b in zip(u, hv) if b is not None)
    assert abs(dot(u, hv) - dot(v, hu)) <= 1e-9 * (1 + magnitude)
    again = opstage.value_and_grad(slope, args, v, options=FLOAT64)[1]
    assert_equal([g for g in again if g is not None], [g for g in hv if g is not None], 1e-9, "reverse over reverse")


@settings(max_examples=60)
@given(DRAWN)
def test_kernels_agree(program: RandomProgram) -> None:
    kernels_agree(program)


@settings(max_examples=60)
@given(DRAWN)
def test_the_checker_agrees(program: RandomProgram) -> None:
    checker_agrees(program)


@settings(max_examples=60)
@given(DRAWN)
def test_forward_and_reverse_mode_agree(program: RandomProgram) -> None:
    modes_agree(program)


@settings(max_examples=60)
@given(SMOOTH)
def test_the_gradient_is_the_slope(program: RandomProgram) -> None:
    gradient_is_the_slope(program)


@settings(max_examples=30)
@given(DRAWN)
def test_second_derivatives_agree(program: RandomProgram) -> None:
    hessians_agree(program)


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=share(3000))
@given(DRAWN)
def test_many_more_programs(program: RandomProgram) -> None:
    kernels_agree(program)
    checker_agrees(program)
    modes_agree(program)
    hessians_agree(program)
    if program.smooth:
        gradient_is_the_slope(program)


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=share(3000))
@given(SMOOTH)
def test_many_more_smooth_programs(program: RandomProgram) -> None:
    gradient_is_the_slope(program)
    modes_agree(program)
