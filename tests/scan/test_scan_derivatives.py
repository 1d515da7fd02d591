"""The derivatives of scan: those of the unrolled loop, and central differences, to second order, however nested."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage.options import Options
from tests.conformance.harness import SEED, assert_close, central_difference, dot, is_float, leaves, random_like
from tests.scan.scan_programs import CASES, Case, scanned, unrolled

FLOAT64 = Options(dtype="float64")
TIGHT = (1e-12, 1e-12)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def floats(tree: Any) -> list[Any]:
    return [x for x in leaves(tree) if is_float(x)]


def scalar(case: Case, loop: Any) -> Any:
    """The case as a scalar program: a fixed weighted sum of all its float outputs."""

    def program(ops: Any, *args: Any) -> Any:
        total = ops.full(shape=(), value=0.0)
        rng = np.random.default_rng(SEED)
        for out in optree.tree_leaves(case.program(ops, loop, *args)):
            if out.dtype.kind == "f":
                total = ops.add(total, ops.sum(ops.mul(out, ops.const(rng.standard_normal(out.shape)))))
        return total

    return program


@each_case
def test_value_and_types_are_those_of_the_unrolled_loop(case: Case) -> None:
    for dtype in ("float64", "float32"):
        options = Options(dtype=dtype)
        loop = opstage.run(case.of(scanned), *case.args, options=options)
        plain = opstage.run(case.of(unrolled), *case.args, options=options)
        assert optree.tree_structure(loop) == optree.tree_structure(plain)
        assert [x.dtype for x in leaves(loop)] == [x.dtype for x in leaves(plain)]
        assert_close(loop, plain, (0.0, 0.0), case.name)


@each_case
def test_vjp(case: Case) -> None:
    rng = np.random.default_rng(SEED)
    value, pullback = opstage.vjp(case.of(scanned), *case.args, options=FLOAT64)
    _, plain = opstage.vjp(case.of(unrolled), *case.args, options=FLOAT64)
    cotangent = random_like(rng, value)
    pulled = pullback(cotangent)
    assert_close(pulled, plain(cotangent), TIGHT, f"vjp of {case.name}")
    for x, g in zip(leaves(case.args), optree.tree_leaves(pulled, none_is_leaf=True)):
        assert (g is None) == (not is_float(x))

    direction = random_like(rng, case.args)
    _, tangent = opstage.jvp(case.of(scanned), case.args, direction, options=FLOAT64)
    assert dot(cotangent, tangent) == pytest.approx(dot(pulled, direction), rel=1e-11, abs=1e-11)


@each_case
def test_jvp(case: Case) -> None:
    rng = np.random.default_rng(SEED)
    direction = random_like(rng, case.args)
    value, tangent = opstage.jvp(case.of(scanned), case.args, direction, options=FLOAT64)
    plain_value, plain = opstage.jvp(case.of(unrolled), case.args, direction, options=FLOAT64)
    assert_close(value, plain_value, TIGHT, case.name)
    assert_close(tangent, plain, TIGHT, f"jvp of {case.name}")
    difference = central_difference(
        lambda args: opstage.run(case.of(scanned), *args, options=FLOAT64), case.args, direction
    )
    assert_close(floats(tangent), difference, (1e-6, 1e-7), f"jvp of {case.name}")


@each_case
def test_second_derivatives(case: Case) -> None:
    """Forward over reverse, reverse over reverse, reverse over forward."""
    rng = np.random.default_rng(SEED)
    v = random_like(rng, case.args)
    everything = tuple(range(len(case.args)))
    program = scalar(case, scanned)

    def gradient(args: Any) -> Any:
        return opstage.value_and_grad(program, *args, wrt=everything, options=FLOAT64)[1]

    hvp = opstage.hvp(program, case.args, v, options=FLOAT64)
    assert_close(hvp, opstage.hvp(scalar(case, unrolled), case.args, v, options=FLOAT64), TIGHT, case.name)
    assert_close(floats(hvp), central_difference(gradient, case.args, v), (1e-6, 1e-6), f"hvp of {case.name}")

    def slope_by_reverse(ops: Any, args: Any, v: Any) -> Any:
        """<gradient, v>, whose gradient is H v."""
        _, pullback = opstage.transform.vjp(ops, program, *args)
        grads = pullback(ops.full(shape=(), value=1.0))
        total = ops.full(shape=(), value=0.0)
        for g, d in zip(optree.tree_leaves(grads), optree.tree_leaves(v)):
            total = ops.add(total, ops.sum(ops.mul(g, d)))
        return total

    def slope_by_forward(ops: Any, args: Any, v: Any) -> Any:
        return opstage.transform.jvp(ops, program, tuple(args), tuple(v))[1]

    for slope in (slope_by_reverse, slope_by_forward):
        _, found = opstage.value_and_grad(slope, case.args, v, options=FLOAT64)
        assert_close(floats(found), floats(hvp), (1e-11, 1e-11), f"{slope.__name__} of {case.name}")


@each_case
def test_a_gradient_that_passes_through_tangents_alone(case: Case) -> None:
    """The gradient of the directional derivative J v in v is the gradient; the primals want none here."""
    program = scalar(case, scanned)
    everything = tuple(range(len(case.args)))

    def slope(ops: Any, args: Any, v: Any) -> Any:
        return opstage.transform.jvp(ops, program, tuple(args), tuple(v))[1]

    v = random_like(np.random.default_rng(SEED), case.args)
    _, found = opstage.value_and_grad(slope, case.args, v, wrt=1, options=FLOAT64)
    _, gradient = opstage.value_and_grad(program, *case.args, wrt=everything, options=FLOAT64)
    assert_close(floats(found), floats(gradient), (1e-11, 1e-11), case.name)


@pytest.mark.parametrize("loop", [scanned, unrolled])
def test_third_derivative(loop: Any) -> None:
    """x -> (((x·w)·w)·w…) eight times, in w: every derivative of w^8 x by nesting gradients."""

    def power(ops: Any, w: Any) -> Any:
        return loop(ops, lambda ops, c, _: (ops.mul(c, w), None), ops.const(1.0), None, length=8)[0]

    def thrice(ops: Any, w: Any) -> Any:
        grad = opstage.transform.grad
        return grad(ops, lambda ops, w: grad(ops, lambda ops, w: grad(ops, power, w), w), w)

    assert opstage.run(thrice, np.array(1.5), options=FLOAT64) == pytest.approx(8 * 7 * 6 * 1.5**5, rel=1e-13)


def test_perturbations_are_not_confused() -> None:
    """d/dx [x · d/dy Σᵢ sin(x yⁱ)]: refs of the outer tape are constants to the inner one, and have derivatives."""
    n = 3

    def inner(ops: Any, x: Any, y: Any) -> Any:
        def step(ops: Any, power: Any, _: Any) -> Any:
            power = ops.mul(power, y)
            return power, ops.sin(ops.mul(x, power))

        return ops.sum(ops.scan(step, ops.const(1.0), None, length=n)[1])

    def outer(ops: Any, x: Any, y: Any) -> Any:
        return ops.mul(x, opstage.transform.grad(ops, lambda ops, y: inner(ops, x, y), y))

    x, y = 0.8, 1.1
    k = np.arange(1, n + 1)
    slope = np.sum(np.cos(x * y**k) * x * k * y ** (k - 1))
    mixed = np.sum(k * y ** (k - 1) * (np.cos(x * y**k) - np.sin(x * y**k) * x * y**k))
    value, grad = opstage.value_and_grad(outer, np.array(x), np.array(y), options=FLOAT64)
    assert value == pytest.approx(x * slope, rel=1e-13)
    assert grad == pytest.approx(slope + x * mixed, rel=1e-12)


def test_a_gradient_in_the_body_of_what_the_body_captures() -> None:
    """The body differentiates for x; its carry and a captured w are constants there, and have gradients outside."""

    def program(ops: Any, w: Any, xs: Any) -> Any:
        def step(ops: Any, c: Any, x: Any) -> Any:
            cubed = lambda ops, x: ops.mul(ops.mul(c, w), ops.pow(x, exponent=3.0))  # noqa: E731
            return opstage.transform.grad(ops, cubed, x), None

        return ops.scan(step, ops.const(1.0), xs)[0]

    xs = np.array([0.5, 0.7, 0.9])
    value, (dw, dxs) = opstage.value_and_grad(program, np.array(2.0), xs, wrt=(0, 1), options=FLOAT64)
    expected = np.prod(3 * 2.0 * xs**2)
    assert value == pytest.approx(expected, rel=1e-13)
    assert dw == pytest.approx(3 * expected / 2.0, rel=1e-13)
    np.testing.assert_allclose(dxs, 2 * expected / xs, rtol=1e-13)


def test_exact_gradients_of_a_rational_loop() -> None:
    """Horner's rule in fractions."""

    def horner(ops: Any, coefficients: Any, x: Any) -> Any:
        zero = ops.full(shape=(), value=0)
        return ops.scan(lambda ops, c, a: (ops.add(ops.mul(c, x), a), None), zero, coefficients)[0]

    a, x = [Fraction(1, 3), Fraction(2), Fraction(-1, 7)], Fraction(3, 5)
    value, (da, dx) = opstage.value_and_grad(
        horner, np.array(a, dtype=object), np.array(x, dtype=object), wrt=(0, 1), options=Options(dtype="exact")
    )
    assert value.item() == a[0] * x**2 + a[1] * x + a[2]
    assert list(da) == [x**2, x, 1]
    assert dx.item() == 2 * a[0] * x + a[1]
