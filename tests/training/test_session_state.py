"""Session: natural numbers, random draws, dry runs and anomalies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.ops.splitmix import draw_site, stream_key, uniform_bits
from opstage.ops.types import TensorType
from opstage.training.session import Session
from opstage.transforms.anomaly import AnomalyError
from tests.training.conftest import NewSession

FLOAT64 = Options(dtype="float64")
TABLE = np.random.default_rng(20240607).standard_normal((4, 3))


def test_natural_numbers_are_indices_that_may_be_set(session: Session) -> None:
    table = session.leaf(TABLE)
    row, rows = session.nat(2), session.nat_vec([0, 0, 3])
    np.testing.assert_array_equal(session.get_value(session.gather_rows(table, row)), TABLE[2])
    before = session.gather_rows(table, rows)
    np.testing.assert_array_equal(session.get_value(before), TABLE[[0, 0, 3]])
    session.backward(session.sum(before))
    session.set_nat(row, 1)
    session.set_nat_vec(rows, np.array([1, 1, 1], dtype=np.int32))
    assert session.get_nat(row) == 1
    assert session.get_nat_vec(rows).tolist() == [1, 1, 1]
    np.testing.assert_array_equal(session.get_value(session.gather_rows(table, row)), TABLE[1])
    np.testing.assert_array_equal(session.get_value(session.gather_rows(table, rows)), TABLE[[1, 1, 1]])
    # of the pass before, by the numbers as they were then
    np.testing.assert_array_equal(session.grad(table), np.array([2, 0, 0, 1])[:, None] * np.ones((4, 3)))
    session.get_nat_vec(rows)[:] = 3
    assert session.get_nat_vec(rows).tolist() == [1, 1, 1]


@pytest.mark.parametrize("value", [-1, 1.0, True, 2**63, "1", None, [1]])
def test_a_natural_number_is_an_integer_that_is_not_negative(session: Session, value: Any) -> None:
    nat, vector = session.nat(1), session.nat_vec([1, 2])
    with pytest.raises(opstage.UsageError, match="natural number"):
        session.nat(value)
    with pytest.raises(opstage.UsageError, match="natural number"):
        session.set_nat(nat, value)
    with pytest.raises(opstage.UsageError, match="entry 1 is"):
        session.set_nat_vec(vector, [1, value] if not isinstance(value, list) else [1, -1])
    assert session.get_nat(nat) == 1
    assert session.get_nat_vec(vector).tolist() == [1, 2]


def test_a_vector_keeps_its_length_and_handles_their_kind(session: Session) -> None:
    nat, vector = session.nat(1), session.nat_vec([1, 2])
    with pytest.raises(opstage.ShapeError, match="holds 2 numbers but 3 were given"):
        session.set_nat_vec(vector, [1, 2, 3])
    with pytest.raises(opstage.UsageError, match="takes a vector of natural numbers"):
        session.set_nat_vec(vector, [[1, 2]])
    with pytest.raises(opstage.ProgramError, match="set_nat_vec takes a NatVecRef but got a NatRef"):
        session.set_nat_vec(nat, [1])  # type: ignore[arg-type]
    with pytest.raises(opstage.ProgramError, match="get_nat takes a NatRef but got a NatVecRef"):
        session.get_nat(vector)  # type: ignore[arg-type]
    with pytest.raises(opstage.ProgramError, match="get_nat takes a NatRef but got the ref of a tensor"):
        session.get_nat(session.const(1))  # type: ignore[arg-type]
    with pytest.raises(opstage.ProgramError, match="get_value takes a tensor but got natural numbers"):
        session.get_value(nat)  # type: ignore[arg-type]
    assert session.get_nat_vec(vector).tolist() == [1, 2]


# Random draws ---------------------------------------------------------------------------------------------------------


def test_each_reset_draws_afresh_and_reproducibly(new_session: NewSession) -> None:
    def draws(session: Session) -> list[Any]:
        found = []
        for _ in range(3):
            mask = session.bernoulli_mask(session.const(0.5), shape=(50,))
            found.append((session.get_value(session.rand_uniform(shape=(4,))), session.get_value(mask)))
            session.reset_tape()
        return found

    first, again = draws(new_session(seed=3)), draws(new_session(seed=3))
    for step, ((uniform, mask), (uniform_again, mask_again)) in enumerate(zip(first, again)):
        np.testing.assert_array_equal(uniform, uniform_again)
        np.testing.assert_array_equal(mask, mask_again)
        np.testing.assert_array_equal(uniform, uniform_bits(stream_key(3, step, draw_site((), 1)), 4))
        np.testing.assert_array_equal(mask, uniform_bits(stream_key(3, step, draw_site((), 0)), 50) < 0.5)


def test_a_draw_that_fails_leaves_the_next_one_as_it_was(new_session: NewSession) -> None:
    session, other = new_session(), new_session()
    for wrong in ({"shape": (-1,)}, {"shape": (2,), "seed": -1}, {"shape": (2,), "dtype": "int64"}):
        with pytest.raises(opstage.OpstageError):
            session.rand_uniform(**wrong)  # type: ignore[arg-type]
    with pytest.raises(opstage.ShapeError):
        session.bernoulli_mask(session.const([0.5]), shape=(2,))
    for _ in range(2):
        np.testing.assert_array_equal(*(s.get_value(s.rand_uniform(shape=(3,))) for s in (session, other)))


# Dry runs and anomalies -----------------------------------------------------------------------------------------------


def test_shape_check_is_a_dry_run() -> None:
    session = Session(Options(backend="shape_check"))
    w = session.param(TABLE, name="w")
    x = session.input(opstage.Spec("N 3"))
    hidden = session.linear(session.use(w), None, x)
    value = session.get_value(hidden)
    assert isinstance(value, TensorType)
    assert str(value) == "(N, 4) float32"
    loss = session.sum(session.gather_vec(session.reduce_sum(hidden, axis=0), session.nat_vec([0, 1])))
    session.backward(loss)
    assert str(session.grad(w)) == "(4, 3) float32"
    assert str(session.jvp_leaf(loss, session.use(w), TABLE)) == "() float32"
    session.adam_step_all(0.1)
    np.testing.assert_array_equal(w.value, TABLE.astype(np.float32))
    with pytest.raises(opstage.ShapeError, match="matmul"):
        session.matmul(x, session.const(TABLE))


def test_anomalies_name_the_op_and_the_line_that_made_them(new_session: NewSession) -> None:
    session = new_session(detect_anomaly=True)
    x = session.leaf([0.0, 1.0])
    with pytest.raises(AnomalyError, match=r"log at .*test_session_state\.py:\d+"):
        session.get_value(session.log(x))
    root = session.sqrt(x)  # the line that the message must name
    loss = session.sum(root)
    with pytest.raises(AnomalyError) as caught:
        session.backward(loss)[x]
    assert caught.value.source is not None
    assert caught.value.source.text.startswith("root = session.sqrt(x)")
    assert "the backward pass of the op" in str(caught.value)
