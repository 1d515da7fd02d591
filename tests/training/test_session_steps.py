"""Session: the step methods against PyTorch's formulas written out in NumPy, and all or nothing."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.ops.protocol import R
from opstage.optim.optimizer import UpdateOp
from opstage.training.param import Param
from opstage.training.session import Session
from tests.optim.test_optim import adam
from tests.training.conftest import NewSession

FLOAT64 = Options(dtype="float64")
START, OTHER = np.array([1.0, -2.0, 3.0]), np.array([0.5, 0.5, 0.5])


def quartic(session: Session, *params: Param) -> Any:
    """Σ p⁴/4 over the parameters, whose gradient is p³."""
    total = session.const(0.0)
    for ref in [session.use(param) for param in params]:
        total = total + session.sum(session.pow(ref, exponent=4)) * 0.25
    return total


def test_sgd_moves_against_the_gradient(session: Session) -> None:
    p, q = session.param(START), session.param(OTHER)
    session.backward(quartic(session, p, q))
    session.sgd_step_all(0.1)
    np.testing.assert_allclose(p.value, START - 0.1 * START**3, rtol=1e-15)
    np.testing.assert_allclose(q.value, OTHER - 0.1 * OTHER**3, rtol=1e-15)


@pytest.mark.parametrize("decay", [None, 0.1])
def test_adam_counts_t_per_parameter_across_resets(session: Session, decay: float | None) -> None:
    lr, beta1, beta2, eps = 0.05, 0.8, 0.95, 1e-7
    early, late = session.param(START, name="early"), session.param(OTHER, name="late")
    oracle = adam(lr, (beta1, beta2), eps, decay or 0.0, decoupled=True)
    expected: dict[Param, list[Any]] = {early: [START, {}, 0], late: [OTHER, {}, 0]}
    for step in range(6):
        used = (early,) if step < 3 else (early, late)
        session.backward(quartic(session, *used), dense=step % 2 == 0)
        if decay is None:
            session.adam_step_all(lr, beta1, beta2, eps)
        else:
            session.adamw_step_all(lr, beta1, beta2, eps, weight_decay=decay)
        session.reset_tape()
        for param in used:
            theta, kept, t = expected[param]
            expected[param] = [oracle(theta, theta**3, kept, t + 1), kept, t + 1]
    for param, (theta, *_) in expected.items():
        np.testing.assert_allclose(param.value, theta, rtol=1e-12)


def test_defaults_are_those_of_pytorch(session: Session) -> None:
    p, q = session.param([2.0]), session.param([2.0])
    session.backward(quartic(session, p))
    session.adam_step_all(0.1)
    session.reset_tape()
    session.backward(quartic(session, q))
    session.adamw_step_all(0.1)
    np.testing.assert_allclose(p.value, 2 - 0.1, rtol=1e-8)  # the first step has length lr
    np.testing.assert_allclose(q.value, 2 * (1 - 0.1 * 0.01) - 0.1, rtol=1e-8)


def test_the_gradient_is_that_of_the_last_pass_and_zero_without_a_path(session: Session) -> None:
    p, aside = session.param(START), session.param(OTHER)
    session.use(aside)
    loss = quartic(session, p)
    session.backward(loss)
    session.backward(loss * 2.0)
    session.sgd_step_all(0.1)
    np.testing.assert_allclose(p.value, START - 0.2 * START**3, rtol=1e-15)
    np.testing.assert_array_equal(aside.value, OTHER)
    session.sgd_step_all(0.1)  # again, from where the parameter is now
    np.testing.assert_allclose(p.value, START - 0.4 * START**3, rtol=1e-14)


def test_frozen_integer_and_unused_parameters_are_never_touched(new_session: NewSession) -> None:
    session = new_session(dtype="float64", requires_grad_by_default=False)
    trained = session.param(START, requires_grad=True)
    frozen, table, unused = session.param(OTHER), session.param([1, 2]), session.param(OTHER, requires_grad=True)
    later = session.param(OTHER, requires_grad=True)
    positions = session.use(table)
    loss = quartic(session, trained, frozen, later) + session.sum(session.gather_vec(session.use(trained), positions))
    session.backward(loss)
    later.requires_grad = False
    for step in (session.sgd_step_all, session.adam_step_all, session.adamw_step_all):
        step(0.1)
    assert trained.version == 3
    assert [p.version for p in (frozen, table, unused, later)] == [0, 0, 0, 0]
    np.testing.assert_array_equal(frozen.value, OTHER)
    np.testing.assert_array_equal(session.grad(frozen), 0 * OTHER)


def test_a_new_value_needs_a_new_tape(session: Session) -> None:
    p = session.param(START, name="p")
    session.backward(quartic(session, p))
    session.sgd_step_all(0.1)
    with pytest.raises(opstage.ProgramError, match=r"parameter p has a new value .* call reset_tape\(\) first"):
        session.use(p)
    session.reset_tape()
    np.testing.assert_array_equal(session.get_value(session.use(p)), p.value)
    p.set(START)
    with pytest.raises(opstage.ProgramError, match="parameter p has a new value"):
        session.use(p)


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf"), "0.1", None, True])
def test_a_bad_learning_rate_changes_nothing(session: Session, lr: Any) -> None:
    p = session.param(START)
    session.backward(quartic(session, p))
    for step in (session.sgd_step_all, session.adam_step_all, session.adamw_step_all):
        with pytest.raises(opstage.UsageError, match="lr must be a finite number that is at least 0"):
            step(lr)
    assert p.version == 0


def test_other_bad_numbers_change_nothing_either(session: Session) -> None:
    p = session.param(START)
    session.backward(quartic(session, p))
    for wrong in ({"beta1": 1.0}, {"beta2": -0.1}, {"eps": -1e-8}, {"eps": float("nan")}):
        with pytest.raises(opstage.UsageError, match="adam: "):
            session.adam_step_all(0.1, **wrong)
    with pytest.raises(opstage.UsageError, match="adamw: weight_decay"):
        session.adamw_step_all(0.1, weight_decay=-1.0)
    assert p.version == 0


def test_a_step_before_backward_is_refused(session: Session) -> None:
    session.use(session.param(START))
    for name in ("sgd_step_all", "adam_step_all", "adamw_step_all"):
        with pytest.raises(opstage.ProgramError, match=f"{name} needs gradients, but there was no backward pass"):
            getattr(session, name)(0.1)


def test_an_update_that_fails_leaves_every_parameter_and_moment_as_it_was(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = [session.param(START), session.param(OTHER)]
    session.backward(quartic(session, *params))
    update, calls = UpdateOp.__call__, []

    def failing(self: UpdateOp, ops: Any, p: R, *rest: Any) -> Any:
        calls.append(p)
        if len(calls) == 2:
            raise MemoryError
        return update(self, ops, p, *rest)

    monkeypatch.setattr(UpdateOp, "__call__", failing)
    with pytest.raises(MemoryError):
        session.sgd_step_all(0.1)
    monkeypatch.undo()
    assert [p.version for p in params] == [0, 0]
    session.sgd_step_all(0.1)
    np.testing.assert_allclose(params[1].value, OTHER - 0.1 * OTHER**3)


def test_an_anomaly_in_the_backward_pass_or_update_changes_no_parameter(new_session: NewSession) -> None:
    session = new_session(detect_anomaly=True)
    p = session.param([0.0])
    with pytest.raises(opstage.OpstageError, match="the backward pass of the op"):
        session.backward(session.sum(session.sqrt(session.use(p))))
        session.sgd_step_all(0.1)
    session.reset_tape()
    session.backward(session.sum(session.use(p)), seed=3e38)
    with pytest.raises(opstage.OpstageError, match="update"):
        session.sgd_step_all(1e5)
    np.testing.assert_array_equal(p.value, [0.0])


def test_moments_end_with_their_parameter(session: Session) -> None:
    p = session.param(START)
    session.backward(quartic(session, p))
    session.adam_step_all(0.1)
    session.reset_tape()
    (states,) = session._slots.values()
    assert len(states) == 1
    del p
    gc.collect()
    assert len(states) == 0


def test_a_session_trains(session: Session) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((64, 3))
    y = x @ [[1.0], [-2.0], [0.5]] + 3.0
    w, b = session.param(np.zeros((1, 3))), session.param(np.zeros(1))
    losses = []
    for _ in range(300):
        inputs, target = session.input(x), session.input(y)
        loss = session.mse_loss(session.linear(session.use(w), session.use(b), inputs), target)
        losses.append(float(session.get_value(loss)))
        session.backward(loss, dense=False)
        session.adam_step_all(0.05)
        session.reset_tape()
    assert losses[-1] < 1e-4 * losses[0]
    np.testing.assert_allclose(w.value, [[1.0, -2.0, 0.5]], atol=0.02)
