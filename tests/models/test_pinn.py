"""The physics-informed network: its derivatives, what its loss sees, and that it solves Burgers' equation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.sparse import dia_array

import opstage
from opstage.data import builtin_datasets as burgers
from opstage.init import build
from opstage.models import model, pinn
from tests.searches import share

from .by_recipe import trained
from .common import FLOAT64


def parameters() -> dict:
    return build(pinn.init(pinn.Config(hidden=(8, 8))), dtype="float64", seed=3)


def some_points(count: int = 7) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.uniform(-0.9, 0.9, count), rng.uniform(0.1, 0.9, count)


def by_finite_volumes(cells: int = 2000, times: tuple[float, ...] = (0.25, 0.5, 1.0)) -> tuple[np.ndarray, np.ndarray]:
    """u on cell centres at `times`, by conservative central differences and an implicit integrator: no Cole-Hopf."""
    h = 2 / cells
    x = -1 + h * (np.arange(cells) + 0.5)

    def rate(_: float, u: np.ndarray) -> np.ndarray:
        padded = np.concatenate([[-u[0]], u, [-u[-1]]])  # u = 0 on the walls
        flux = (padded[:-1] ** 2 + padded[:-1] * padded[1:] + padded[1:] ** 2) / 6
        flux -= burgers.VISCOSITY * np.diff(padded) / h
        return -np.diff(flux) / h

    neighbours = np.ones((3, cells))
    found = solve_ivp(
        rate,
        (0, 1),
        -np.sin(np.pi * x),
        method="BDF",
        t_eval=times,
        jac_sparsity=dia_array((neighbours, (-1, 0, 1)), shape=(cells, cells)),
        rtol=1e-6,
        atol=1e-8,
    )
    return x, found.y.T


def test_the_reference_solution_agrees_with_finite_volumes() -> None:
    times = (0.25, 0.5, 1.0)
    x, u = by_finite_volumes(times=times)
    for t, row in zip(times, u):
        reference = burgers.solution(x, t)
        assert np.linalg.norm(row - reference) < 2e-3 * np.linalg.norm(reference)


def test_the_reference_solution_keeps_its_initial_and_boundary_values() -> None:
    x = np.linspace(-1, 1, 21)
    np.testing.assert_allclose(burgers.solution(x, 0.0), -np.sin(np.pi * x), atol=1e-14)
    np.testing.assert_allclose(burgers.solution([-1.0, 1.0], [[0.3], [0.9]]), 0, atol=1e-12)


def test_points_lie_in_the_domain_and_half_of_them_near_the_front() -> None:
    points = burgers.points(1000, near=0.5, width=0.1, seed=1)
    x, t, u = points.arrays
    assert np.all(np.abs(x) <= 1) and np.all((t >= 0) & (t <= 1))
    assert 500 <= np.count_nonzero(np.abs(x) <= 0.1) <= 600
    np.testing.assert_array_equal(u, burgers.solution(x, t))
    assert not np.array_equal(x, burgers.points(1000, seed=2)["x"])
    np.testing.assert_allclose(burgers.points(2)["t"], [0.8632582426071167, 0.8869447112083435])  # by seed


def test_model_and_data_are_about_one_equation() -> None:
    assert pinn.VISCOSITY == burgers.VISCOSITY


def test_the_field_holds_the_initial_and_boundary_values_exactly() -> None:
    params = parameters()
    x = np.linspace(-1, 1, 9)
    start = opstage.run(pinn.field, params, x, np.zeros(9), options=FLOAT64)
    np.testing.assert_array_equal(start, -np.sin(np.pi * x))
    walls = opstage.run(pinn.field, params, np.array([-1.0, 1.0]), np.array([0.3, 0.7]), options=FLOAT64)
    np.testing.assert_allclose(walls, 0, atol=1e-15)


def test_derivatives_agree_with_central_differences() -> None:
    params, (x, t) = parameters(), some_points()

    def u(x: np.ndarray, t: np.ndarray) -> np.ndarray:
        return opstage.run(pinn.field, params, x, t, options=FLOAT64)

    got = opstage.run(pinn.derivatives, params, x, t, options=FLOAT64)
    h = 1e-4
    want = (
        u(x, t),
        (u(x + h, t) - u(x - h, t)) / (2 * h),
        (u(x + h, t) - 2 * u(x, t) + u(x - h, t)) / h**2,
        (u(x, t + h) - u(x, t - h)) / (2 * h),
    )
    for g, w in zip(got, want):
        np.testing.assert_allclose(g, w, rtol=2e-6, atol=2e-6)


def test_the_gradient_of_the_loss_agrees_with_a_central_difference() -> None:
    """With damping 0: the damping's weights are constants of the loss, which a difference would not know."""
    config, params, (x, t) = pinn.Config(hidden=(8, 8), damping=0.0), parameters(), some_points()

    def loss(params: dict) -> float:
        return float(opstage.run(lambda ops, *a: pinn.loss(ops, *a, config=config), params, x, t, x, options=FLOAT64))

    _, gradient = opstage.value_and_grad(
        lambda ops, *a: pinn.loss(ops, *a, config=config), params, x, t, x, options=FLOAT64
    )
    weight = params["layers"][1]["weight"]
    for place in ((0, 0), (3, 5)):
        before = weight[place]
        weight[place] = before + 1e-5
        above = loss(params)
        weight[place] = before - 1e-5
        below = loss(params)
        weight[place] = before
        assert gradient["layers"][1]["weight"][place] == pytest.approx((above - below) / 2e-5, rel=1e-6)


def test_the_loss_does_not_look_at_the_solution() -> None:
    made, params, (x, t) = model("pinn", pinn.Config(hidden=(8, 8))), parameters(), some_points()
    losses = [opstage.run(made.loss, params, x, t, u, options=FLOAT64) for u in (np.zeros(7), np.full(7, 1e9))]
    assert losses[0] == losses[1]


def test_a_shorter_run_has_begun() -> None:
    """A seventieth of the recipe's steps; the initial state, were it to last for ever, would be off by 0.59."""
    assert trained("pinn", epochs=5)[1].held_out["relative_l2"] < 0.5


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(share(2)))
def test_the_recipe_solves_the_equation(seed: int) -> None:
    trainer, last = trained("pinn", seed=seed)
    goal = pinn.RECIPE.goal
    assert goal == 0.02
    assert last.held_out["relative_l2"] < goal

    # The same error, computed outside, on points of its own.
    t, x = (a.ravel() for a in np.meshgrid(np.linspace(0.05, 1, 20), np.linspace(-0.99, 0.99, 199), indexing="ij"))
    u = opstage.run(pinn.field, trainer.get_params(), x, t)
    reference = burgers.solution(x, t)
    assert np.linalg.norm(u - reference) < goal * np.linalg.norm(reference)
