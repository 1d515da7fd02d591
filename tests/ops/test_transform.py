"""Derivatives inside programs, Jacobians, Hessians and gradients of each sample, against formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage import Options, Spec, transform
from opstage.ops.errors import ProgramError, ShapeError, UsageError, ValidationError

FLOAT64 = Options(dtype="float64")


def run(program: Callable[..., Any], *args: Any, options: Options = FLOAT64) -> Any:
    return opstage.run(program, *args, options=options)


def derivative_by(mode: str) -> Callable[[Any, Callable[..., Any], Any], Any]:
    """d f(x)/dx of a scalar function of a scalar, in forward or reverse mode."""

    def forward(ops: Any, f: Callable[..., Any], x: Any) -> Any:
        return transform.jvp(ops, f, (x,), (ops.const(1.0),))[1]

    return forward if mode == "forward" else transform.grad


MODES = ["forward", "reverse"]

# Perturbation confusion ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", MODES)
@pytest.mark.parametrize("inner", MODES)
def test_inner_and_outer_perturbations_are_told_apart(outer: str, inner: str) -> None:
    """d/dx (x · d/dy (x + y)) = 1; a differentiator that confuses the two perturbations says 2.

    Source: Siskind and Pearlmutter, "Perturbation confusion and referential transparency", 2005.
    """
    d_outer, d_inner = derivative_by(outer), derivative_by(inner)

    def program(ops: Any, x: Any) -> Any:
        return d_outer(ops, lambda ops1, x1: x1 * d_inner(ops1, lambda ops2, y: x1 + y, ops1.const(1.0)), x)

    assert float(run(program, 1.0)) == 1.0


@pytest.mark.parametrize("outer", MODES)
@pytest.mark.parametrize("inner", MODES)
def test_mixed_second_derivative(outer: str, inner: str) -> None:
    """d/dx d/dy x²·y³ = 6·x·y², with x a constant of the inner derivative and a variable of the outer one."""
    d_outer, d_inner = derivative_by(outer), derivative_by(inner)

    def program(ops: Any, x: Any, y: Any) -> Any:
        return d_outer(ops, lambda a, x1: d_inner(a, lambda b, y1: x1 * x1 * y1**3, y), x)

    assert float(run(program, 3.0, 2.0)) == 6 * 3.0 * 4.0


@pytest.mark.parametrize("modes", [(a, b, c) for a in MODES for b in MODES for c in MODES], ids="-".join)
def test_three_levels_see_their_own_variable(modes: tuple[str, str, str]) -> None:
    """d/dx (x · d/dy (y · d/dz (x·y·z²))) at z = 5: d/dz = 10·x·y, y·10·x·y -> d/dy = 20·x·y, x·20·x·y -> 40·x·y."""
    d1, d2, d3 = (derivative_by(mode) for mode in modes)

    def program(ops: Any, x: Any, y: Any, z: Any) -> Any:
        return d1(ops, lambda a, x1: x1 * d2(a, lambda b, y1: y1 * d3(b, lambda c, z1: x1 * y1 * z1 * z1, z), y), x)

    assert float(run(program, 2.0, 3.0, 5.0)) == 40 * 2.0 * 3.0


def test_a_derivative_that_does_not_depend_on_its_variable_is_zero() -> None:
    for mode in MODES:
        d = derivative_by(mode)
        assert float(run(lambda ops, x: d(ops, lambda inner, y: x * x, x), 3.0)) == 0.0


@pytest.mark.parametrize("outer", MODES)
def test_detach_ends_one_level_alone(outer: str) -> None:
    """detach inside the inner derivative does not stop the outer one from seeing its own x."""
    d = derivative_by(outer)

    def program(ops: Any, x: Any) -> Any:
        def f(a: Any, x1: Any) -> Any:
            return transform.grad(a, lambda b, y: b.detach(y) * y * x1, x1)  # y·x1 at y = x1

        return d(ops, f, x)

    # detach cuts every level through which its operand moves: d/dx (detach(x)·x) = x at the outer level
    assert float(run(program, 3.0)) == 3.0


# Higher orders ------------------------------------------------------------------------------------------------------


def tanh_derivatives(x: float) -> list[float]:
    t = math.tanh(x)
    s = 1 - t * t
    return [t, s, -2 * t * s, s * (6 * t * t - 2), 8 * t * s * (2 - 3 * t * t)]


def sin_derivatives(x: float) -> list[float]:
    return [math.sin(x), math.cos(x), -math.sin(x), -math.cos(x), math.sin(x)]


@pytest.mark.parametrize("pattern", ["reverse", "forward", "alternating"])
@pytest.mark.parametrize(("op", "expected"), [("tanh", tanh_derivatives), ("sin", sin_derivatives)])
def test_derivatives_to_order_four(op: str, expected: Any, pattern: str) -> None:
    modes = {"reverse": ["reverse"] * 4, "forward": ["forward"] * 4, "alternating": ["forward", "reverse"] * 2}[pattern]

    def nest(order: int) -> Callable[[Any, Any], Any]:
        if order == 0:
            return lambda ops, x: getattr(ops, op)(x)
        below = nest(order - 1)
        d = derivative_by(modes[order - 1])
        return lambda ops, x: d(ops, below, x)

    for order, value in enumerate(expected(0.7)):
        assert float(run(nest(order), 0.7)) == pytest.approx(value, rel=1e-12), order


def test_exact_derivatives_of_a_rational_function() -> None:
    def third(ops: Any, x: Any) -> Any:
        f = lambda o, v: o.inv(v)  # noqa: E731
        for _ in range(3):
            f = (lambda g: lambda o, v: transform.grad(o, g, v))(f)
        return f(ops, x)

    assert run(third, Fraction(1, 2), options=Options(dtype="exact")).item() == -6 * 2**4


def test_jacobian_of_a_gradient_is_the_hessian() -> None:
    rng = np.random.default_rng(2)
    a, x, v = rng.standard_normal((3, 3)), rng.standard_normal(3), rng.standard_normal(3)
    a = a + a.T

    def program(ops: Any, x: Any, v: Any) -> Any:
        def energy(inner: Any, y: Any) -> Any:
            return 0.5 * inner.sum(y * (a @ y)) + inner.sum(inner.sin(y))

        return transform.jvp(ops, lambda inner, y: transform.grad(inner, energy, y), (x,), (v,))[1]

    np.testing.assert_allclose(run(program, x, v), a @ v - np.sin(x) * v, rtol=1e-12)


def test_vjp_of_trees_inside_a_program() -> None:
    def program(ops: Any, p: Any, i: Any) -> Any:
        value, pullback = transform.vjp(ops, lambda inner, q, j: {"out": inner.gather_vec(q["a"] * q["b"], j)}, p, i)
        first, indices = pullback({"out": ops.const(np.array([1.0, 10.0]))})
        assert indices is None
        again, _ = pullback({"out": None})
        return value["out"], first, again

    a, b = np.array([2.0, 3.0, 4.0]), np.array([5.0, 6.0, 7.0])
    out, first, again = run(program, {"a": a, "b": b}, np.array([2, 0]))
    assert out.tolist() == [28.0, 10.0]
    assert first["a"].tolist() == [50.0, 0.0, 7.0] and first["b"].tolist() == [20.0, 0.0, 4.0]
    assert again["a"].tolist() == [0.0] * 3


def test_grad_of_several_refs_is_a_tuple() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return transform.grad(ops, lambda inner, a, b: inner.sum(a * b * b), x, y)

    dx, dy = run(program, np.array([2.0]), np.array([3.0]))
    assert dx.tolist() == [9.0] and dy.tolist() == [12.0]
    with pytest.raises(ProgramError, match="grad takes a function that returns one scalar"):
        run(lambda ops, x: transform.grad(ops, lambda inner, a: a, x), np.ones(2))


# Derivatives in a trained loss --------------------------------------------------------------------------------------


def test_a_loss_with_a_derivative_in_it_trains() -> None:
    """u' = cos, u(0) = 0, with u a small network: after training u is close to sin."""
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((8, 1)), "b": rng.standard_normal(8), "v": 0.3 * rng.standard_normal((1, 8))}

    def network(ops: Any, p: Any, t: Any) -> Any:
        return ops.linear(p["v"], None, ops.tanh(ops.linear(p["w"], p["b"], t)))

    def residual(ops: Any, p: Any, t: Any) -> Any:
        slope = transform.grad(ops, lambda inner, s: inner.sum(network(inner, p, s)), t)
        start = network(ops, p, ops.full(shape=(1, 1), value=0.0))
        return ops.mse_loss(slope, ops.cos(t)) + ops.sum(start * start)

    t = np.linspace(0.0, 3.0, 20)[:, None]
    trainer = opstage.scalar_trainer(residual, params, Spec("N 1"), options=FLOAT64)
    _, grads = trainer.loss_and_backward(t)
    for name, g in grads.items():  # parameters inside the inner derivative take gradients too
        step = rng.standard_normal(g.shape)
        at = [run(residual, {**params, name: params[name] + h * step}, t) for h in (1e-5, -1e-5)]
        assert float((at[0] - at[1]) / 2e-5) == pytest.approx(float(np.sum(g * step)), rel=1e-6)

    optimizer = opstage.optim.adam(lr=0.02)
    state = trainer.init_optim(optimizer)
    for _ in range(400):
        state = trainer.step_with(optimizer, state, t)
    u = run(network, trainer.get_params(), t)
    assert np.max(np.abs(u - np.sin(t))) < 0.05


# Refs that leak, refs that are mixed --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_ref_of_an_inner_derivative_may_not_leak(mode: str) -> None:
    d = derivative_by(mode)

    def keep(use: Callable[[Any, Any, Any], Any]) -> Any:
        def program(ops: Any, x: Any) -> Any:
            kept: list[Any] = []

            def f(inner: Any, y: Any) -> Any:
                kept.append((inner, y))
                return y * y

            slope = d(ops, f, x)
            inner, y = kept[0]
            return slope + use(ops, inner, y)

        return run(program, 2.0)

    with pytest.raises(ProgramError, match=r"was used outside of it; return it from the inner function"):
        keep(lambda ops, inner, y: ops.neg(y))
    with pytest.raises(ProgramError, match=r"was used after the derivative was taken"):
        keep(lambda ops, inner, y: y + y)
    with pytest.raises(ProgramError, match="was used after the derivative was taken"):
        keep(lambda ops, inner, y: inner.neg(y))


def test_a_ref_of_a_sibling_derivative_may_not_enter() -> None:
    def program(ops: Any, x: Any) -> Any:
        kept: list[Any] = []

        def first(inner: Any, y: Any) -> Any:
            kept.append(y)
            return y * y

        return transform.grad(ops, first, x) + transform.grad(ops, lambda inner, y: inner.mul(y, kept[0]), x)

    with pytest.raises(ProgramError, match="refs of two interpreters were mixed: a ref of a derivative was used after"):
        run(program, 2.0)


def test_refs_of_two_runs_may_not_be_mixed() -> None:
    def outer(ops: Any, x: Any) -> Any:
        return opstage.run(lambda other, y: other.add(x, y), 1.0)

    with pytest.raises(ProgramError, match="refs of two interpreters were mixed: this one belongs to another run"):
        run(outer, 2.0)
    report = opstage.check(outer, Spec(""))
    assert not report.ok and "refs of two interpreters were mixed" in str(report)


def test_a_ref_from_outside_is_a_constant_inside() -> None:
    """Lifted through two levels, by named ops and by infix, with either operand the outer one."""

    def program(ops: Any, x: Any, c: Any) -> Any:
        def f(a: Any, y: Any) -> Any:
            return transform.grad(a, lambda b, z: b.mul(c, z) + z * c + c * z + b.sub(z, x) * y, y)

        return ops.region("named", lambda o: transform.grad(o, f, x))

    # inner: 3c + y; outer: 1
    assert float(run(program, 5.0, 7.0)) == 1.0


def test_the_checker_sees_inner_derivatives() -> None:
    def program(ops: Any, w: Any, x: Any) -> Any:
        return transform.grad(ops, lambda inner, y: inner.sum(inner.matmul(y, w)), x)

    report = opstage.check(program, Spec("D 4"), Spec("B D"))
    assert report.ok and str(report.outputs) == "(B, D) float32"
    report = opstage.check(program, Spec("3 4"), Spec("B 5"))
    assert [f.op for f in report.errors] == ["matmul"]
    assert report.errors[0].source is not None and report.errors[0].source.file == __file__
    with pytest.raises(ShapeError, match=r"matmul at .*test_transform.py:\d+"):
        run(program, np.ones((3, 4)), np.ones((2, 5)))
    with pytest.raises(ValidationError, match="matmul at"):
        opstage.scalar_trainer(
            lambda ops, w, x: ops.sum(program(ops, w, x)), np.ones((3, 4)), Spec("B 5"), options=FLOAT64
        )


# Second derivatives and matrices ------------------------------------------------------------------------------------

X, V = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.0, -1.0])
SINES = np.diag(6 * X - X[0] * np.sin(X))
SINES[0] += np.cos(X)
SINES[:, 0] += np.cos(X)
"""The Hessian of Σ x³ + x₀·Σ sin x at X."""


def cubes_and_sines(ops: Any, x: Any) -> Any:
    return ops.sum(x * x * x) + ops.sum(ops.sin(x)) * x[0]


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_matrices_and_products_inside_a_program_are_those_of_calculus(backend: str) -> None:
    options = FLOAT64.replace(backend=backend)
    f = cubes_and_sines
    value, gradient = run(lambda ops, x: transform.value_and_grad(ops, f, x), X, options=options)
    assert np.isclose(value, (X**3).sum() + X[0] * np.sin(X).sum())
    np.testing.assert_allclose(gradient, 3 * X**2 + X[0] * np.cos(X) + np.eye(3)[0] * np.sin(X).sum())
    product = run(lambda ops, x, v: transform.hvp(ops, f, (x,), (v,)), X, V, options=options)
    np.testing.assert_allclose(product, SINES @ V)
    np.testing.assert_allclose(run(lambda ops, x: transform.hessian(ops, f, x), X, options=options), SINES)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("wrt", [0, 1])
def test_a_jacobian_inside_a_program_is_that_of_outside(backend: str, wrt: int) -> None:
    options = FLOAT64.replace(backend=backend)

    def f(ops: Any, p: Any, x: Any) -> Any:
        h = ops.tanh(ops.linear(p["w"], p["b"], ops.unsqueeze(x, axis=0)))
        return {"h": h, "none": x[:0], "sum": ops.sum(x * x)}

    p = {"w": np.arange(6.0).reshape(2, 3) / 5, "b": np.ones(2)}
    inside = run(lambda ops, p, x: transform.jacobian(ops, f, p, x, wrt=wrt), p, X, options=options)
    outside = opstage.jacobian(f, p, X, wrt=wrt, options=options)
    leaves = optree.tree_leaves(outside)
    for ours, theirs in zip(optree.tree_leaves(inside), leaves, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("above", ["vjp", "jvp", "hvp", "scan"])
def test_a_hessian_is_differentiated_and_looped_over(backend: str, above: str) -> None:
    """The derivatives of Σ H², where H is the Hessian of Σ x⁴: H = diag(12 x²), so Σ H² = 144 Σ x⁴."""
    options = FLOAT64.replace(backend=backend)

    def loss(ops: Any, x: Any) -> Any:
        hessian = transform.hessian(ops, lambda ops, x: ops.sum(ops.pow(x, exponent=4)), x)
        return ops.sum(hessian * hessian)

    if above == "vjp":
        np.testing.assert_allclose(opstage.value_and_grad(loss, X, options=options)[1], 576 * X**3)
    elif above == "jvp":
        np.testing.assert_allclose(opstage.jvp(loss, (X,), (V,), options=options)[1], 576 * X**3 @ V)
    elif above == "hvp":
        np.testing.assert_allclose(opstage.hvp(loss, (X,), (V,), options=options)[0], 1728 * X**2 * V)
    else:
        rows = run(
            lambda ops, xs: ops.scan(lambda ops, carry, x: (carry, loss(ops, x)), xs[0, 0], xs)[1],
            np.stack([X, V]),
            options=options,
        )
        np.testing.assert_allclose(rows, [144 * (X**4).sum(), 144 * (V**4).sum()])


def test_a_jacobian_of_random_numbers_is_that_of_one_draw() -> None:
    def f(ops: Any, x: Any) -> Any:
        return x * ops.rand_uniform(shape=(3,))

    both = run(lambda ops, x: (f(ops, x), transform.jacobian(ops, f, x)), np.ones(3))
    rows = both[1]
    assert np.count_nonzero(rows) == 3 and (np.diag(rows) > 0).all()
    report = opstage.check(lambda ops, x: transform.jacobian(ops, f, x), Spec("3"), options=FLOAT64)
    assert report.ok


# Jacobians, Hessians and gradients of each sample, against formulas ---------------------------------------------------

BOTH = pytest.mark.parametrize("backend", ["eager", "compiled"])
RNG = np.random.default_rng(0)
A, POINT, Y = RNG.normal(size=(2, 3)), RNG.normal(size=3), RNG.normal(size=(4, 3))


@BOTH
def test_jacobian_of_trees(backend: str) -> None:
    def program(ops: Any, p: Any, y: Any) -> Any:
        return {"sin": ops.sin(p["x"]), "product": p["a"] @ p["x"]}

    found = opstage.jacobian(program, {"a": A, "x": POINT}, Y, options=Options(dtype="float64", backend=backend))
    np.testing.assert_allclose(found["sin"]["x"], np.diag(np.cos(POINT)))
    np.testing.assert_array_equal(found["sin"]["a"], np.zeros((3, 2, 3)))
    np.testing.assert_allclose(found["product"]["x"], A)
    np.testing.assert_allclose(found["product"]["a"], np.einsum("ij,k->ijk", np.eye(2), POINT))


@BOTH
def test_hessian_of_trees(backend: str) -> None:
    def program(ops: Any, y: Any, p: Any) -> Any:
        return ops.sum(ops.exp(p["x"])) * p["s"]

    args = (Y, {"x": POINT, "s": np.array(2.0)})
    found = opstage.hessian(program, *args, wrt=1, options=Options(dtype="float64", backend=backend))
    np.testing.assert_allclose(found["x"]["x"], np.diag(2 * np.exp(POINT)))
    np.testing.assert_allclose(found["x"]["s"], np.exp(POINT))
    np.testing.assert_allclose(found["s"]["x"], np.exp(POINT))
    assert found["s"]["s"] == 0.0


@BOTH
def test_gradient_of_each_sample(backend: str) -> None:
    def program(ops: Any, w: Any, y: Any) -> Any:
        return ops.reduce_mean(ops.pow(y @ w, exponent=2))

    options = Options(dtype="float64", backend=backend)
    found = opstage.per_sample_gradients(program, POINT, Y, options=options)
    np.testing.assert_allclose(found, 2 * (Y @ POINT)[:, None] * Y)
    np.testing.assert_allclose(found.mean(0), opstage.value_and_grad(program, POINT, Y, options=options)[1])
    assert opstage.per_sample_gradients(program, POINT, Y[:0], options=options).shape == (0, 3)


def test_what_is_refused() -> None:
    def program(ops: Any, x: Any, *rest: Any) -> Any:
        return ops.sum(x)

    with pytest.raises(UsageError, match="wrt is the position"):
        opstage.jacobian(program, POINT, wrt=1)
    with pytest.raises(UsageError, match="leaves of floats, got one of int64"):
        opstage.hessian(program, np.arange(3))
    with pytest.raises(ShapeError, match="the same number of examples"):
        opstage.per_sample_gradients(program, POINT, Y, POINT)
