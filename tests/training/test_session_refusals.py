"""Session: what is refused, each with one clear message, and nothing changed by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.training.session import Session
from tests.training.conftest import NewSession


def test_refs_of_two_sessions_do_not_mix(new_session: NewSession) -> None:
    session, other = new_session(), new_session()
    x, y, number = session.leaf([1.0]), other.leaf([1.0]), other.nat(1)
    named = [lambda: session.add(x, y), lambda: session.relu(y), lambda: session.concat([x, y], axis=0)]
    for mix in (*named, lambda: x + y, lambda: y @ x):
        with pytest.raises(opstage.ProgramError, match="a ref of another session"):
            mix()
    for use in (session.get_value, session.backward, session.relu):
        with pytest.raises(opstage.ProgramError, match="another session"):
            use(y)
    with pytest.raises(opstage.ProgramError, match="natural numbers of another session"):
        session.get_nat(number)
    session.backward(session.sum(x))
    with pytest.raises(opstage.ProgramError, match="another session"):
        session.grad(y)


@pytest.mark.parametrize(
    "raw, shown", [(np.ones(1), "an ndarray"), (1.0, "a float"), (1, "an int"), ([1.0], "a list"), (None, "None")]
)
def test_raw_values_are_no_refs(session: Session, raw: Any, shown: str) -> None:
    x = session.leaf([1.0])
    with pytest.raises(opstage.ProgramError, match=f"an op got {shown} where it needs a ref"):
        session.matmul(x, raw)
    with pytest.raises(opstage.ProgramError, match=f"backward got {shown}"):
        session.backward(raw)


def test_a_parameter_must_be_used_first(session: Session) -> None:
    w = session.param([1.0], name="w")
    with pytest.raises(opstage.ProgramError, match=r"an op got parameter w itself; session.use\(param\)"):
        session.relu(w)  # type: ignore[arg-type]
    with pytest.raises(opstage.ProgramError, match="use takes a Param but got an ndarray"):
        session.use(np.ones(1))  # type: ignore[arg-type]
    session.backward(session.sum(session.leaf([1.0])))
    with pytest.raises(opstage.ProgramError, match="parameter w was not used on this tape"):
        session.grad(w)


def test_reset_ends_the_tape_and_clears_the_side_tables(session: Session) -> None:
    w = session.param([1.0], name="w")
    x, nat, vector = session.leaf([1.0]), session.nat(0), session.nat_vec([0])
    gradients = session.backward(session.sum(x * session.use(w)))
    session.reset_tape()
    late: list[Callable[[], Any]] = [
        lambda: session.relu(x),
        lambda: session.leaf([1.0]) + x,
        lambda: x * 2.0,
        lambda: session.get_value(x),
        lambda: session.backward(x),
        lambda: session.jvp_leaf(x, x, [1.0]),
        lambda: session.get_nat(nat),
        lambda: session.set_nat_vec(vector, [0]),
        lambda: session.gather_vec(session.leaf([1.0]), nat),
        lambda: gradients[x],
        lambda: gradients[w],
    ]
    for use in late:
        with pytest.raises(opstage.ProgramError, match=r"made before reset_tape\(\)"):
            use()
    with pytest.raises(opstage.ProgramError, match="no backward pass on this tape"):
        session.grad(w)
    with pytest.raises(opstage.ProgramError, match="sgd_step_all needs gradients"):
        session.sgd_step_all(0.1)
    session.backward(session.sum(session.leaf([1.0])))
    with pytest.raises(opstage.ProgramError, match="was not used on this tape"):
        session.grad(w)
    np.testing.assert_array_equal(w.value, [1.0])


def test_get_value_checks_the_shape(session: Session) -> None:
    x = session.leaf(np.zeros((5, 3)))
    assert session.get_value(x, shape=(5, 3)).shape == (5, 3)
    with pytest.raises(opstage.ShapeError, match=r"the ref is \(5, 3\) where \(3, 5\) is expected"):
        session.get_value(x, shape=(3, 5))
    with pytest.raises(opstage.ShapeError, match=r"the ref is \(5, 3\) where \(15,\) is expected"):
        session.get_value(x, shape=(15,))


def test_backward_checks_its_seed(session: Session) -> None:
    x = session.leaf([1.0, 2.0])
    with pytest.raises(opstage.ShapeError, match="give a cotangent as seed="):
        session.backward(x)
    with pytest.raises(opstage.ShapeError, match=r"seed is \(3,\) where \(2,\) is expected"):
        session.backward(x, seed=np.ones(3))
    with pytest.raises(opstage.DtypeError, match="seed must be float but is int64"):
        session.backward(x, seed=[1, 2])
    with pytest.raises(opstage.DtypeError, match="the result is int64"):
        session.backward(session.argmax(x, axis=0))
    with pytest.raises(opstage.ProgramError, match="no backward pass on this tape"):
        session.grad(x)


def test_inputs_say_what_is_wrong_and_who_they_are(session: Session) -> None:
    with pytest.raises(opstage.UsageError, match="input labels: a tensor must hold numbers"):
        session.input(["a"], name="labels")
    with pytest.raises(opstage.UsageError, match=r"input: .* is not an array"):
        session.input([[1.0], [1.0, 2.0]])
    with pytest.raises(opstage.ProgramError, match="input x: a ref is not an array"):
        session.input(session.const(1.0), name="x")
    with pytest.raises(opstage.DtypeError, match="input labels is int64: only floats take a gradient"):
        session.input([1, 2], name="labels", requires_grad=True)
    with pytest.raises(opstage.DtypeError, match="leaf is bool"):
        session.leaf([True])
    assert session.input([1, 2]).dtype == np.int64
    x, integers = session.input([1.0], requires_grad=True), session.input([1])
    session.backward(session.sum(x))
    np.testing.assert_array_equal(session.grad(x), [1.0])
    with pytest.raises(opstage.DtypeError, match="integers and booleans have no gradient"):
        session.grad(integers)


def test_an_error_names_the_user_s_line(session: Session) -> None:
    with pytest.raises(opstage.ShapeError, match=r"add at .*test_session_refusals\.py:\d+: x is \(1,\) but"):
        session.add(session.leaf([1.0]), session.leaf([1.0, 2.0]))


def test_backends_that_are_not_there_are_refused() -> None:
    with pytest.raises(opstage.UsageError, match=r"unknown backend 'eagre'.*'eager'"):
        Session(Options(backend="eagre"))


@pytest.mark.parametrize("backend", ["eager", "compiled", "shape_check"])
@pytest.mark.parametrize(
    "value",
    [
        None,
        [None],
        [1.0, None],
        np.array([1.0, None], object),
        opstage.Param([1.0]),
        object(),
        {"a": 1.0},
        "a",
        b"a",
        1j,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_does_not_enter_a_session(backend: str, value: Any) -> None:
    session = opstage.Session(opstage.Options(backend=backend))
    doors: list[Callable[[Any], Any]] = [session.input, session.leaf, session.param, session.const, opstage.Param]
    for door in doors:
        with pytest.raises(opstage.OpstageError):
            door(value)


def test_flags_and_tangents_of_another_type_are_refused() -> None:
    session = opstage.Session()
    x = session.leaf([1.0])
    with pytest.raises(opstage.UsageError, match="requires_grad must be a bool but is 'no'"):
        session.param([1.0], requires_grad="no")  # type: ignore[arg-type]
    with pytest.raises(opstage.UsageError, match="takes a tangent for each leaf"):
        session.jvp_all(session.sum(x), 3)  # type: ignore[arg-type]
