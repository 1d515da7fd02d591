"""The recorded session: what it asks for, when it computes, how often it compiles; its numbers, the eager one's."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Session

EAGER = Options(dtype="float64", seed=3)
RECORDED = EAGER.replace(backend="compiled")
RNG = np.random.default_rng(20240607)
TABLE, W, X = RNG.standard_normal((5, 3)), RNG.standard_normal((4, 3)), RNG.standard_normal((6, 3))


@pytest.fixture
def compilations(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], int]]:
    """How many graphs were compiled so far in this test."""
    with caplog.at_level(logging.DEBUG, "opstage.interpreters.graph"):
        yield lambda: sum(record.getMessage().startswith("compiling for") for record in caplog.records)


# Leaves before ops ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leaf", "what"),
    [
        (lambda session, param: session.use(param), "use of parameter w"),
        (lambda session, param: session.input([1.0], name="x"), "input x"),
        (lambda session, param: session.leaf([1.0]), "leaf"),
        (lambda session, param: session.nat(1), "nat"),
        (lambda session, param: session.nat_vec([1]), "nat_vec"),
    ],
    ids=["use", "input", "leaf", "nat", "nat_vec"],
)
def test_leaves_come_before_the_first_op(leaf: Callable[..., Any], what: str) -> None:
    session = Session(RECORDED)
    param = session.param([1.0], name="w")
    x = session.leaf([1.0])
    square = x * x
    with pytest.raises(
        opstage.ProgramError, match=rf"^{what} comes after the first op: .* or start again with reset_tape"
    ):
        leaf(session, param)
    np.testing.assert_array_equal(session.get_value(square), [1.0])
    session.reset_tape()
    leaf(session, param)


def test_constants_draws_and_what_was_used_before_are_no_leaves() -> None:
    session = Session(RECORDED)
    w = session.param([2.0, 3.0])
    x = session.use(w)
    y = 2.0 * x + 1 - np.array([1.0, 1.0])
    noise = session.rand_uniform(shape=(2,))
    z = session.use(w) * session.const([1.0, 10.0]) + y + noise * 0.0
    np.testing.assert_array_equal(session.get_value(z), [6.0, 36.0])


def test_an_op_that_fails_leaves_the_session_as_it_was() -> None:
    session, other = Session(RECORDED), Session(RECORDED)
    x, same = session.leaf(W), other.leaf(W)
    for wrong in (
        lambda: session.matmul(x, x),
        lambda: session.reshape(x, shape=(5,)),
        lambda: session.multi_head_attention(x, x, x, x, x, num_heads=1),
        lambda: session.bernoulli_mask(x, shape=(2,)),
    ):
        with pytest.raises(opstage.OpstageError):
            wrong()
    late, late_too = session.leaf(X), other.leaf(X)  # still before the first op
    for a, b in zip((x, late), (same, late_too)):
        mask, mask_too = (s.bernoulli_mask(s.const(0.5), shape=a.shape) for s in (session, other))
        np.testing.assert_array_equal(session.get_value(a * mask), other.get_value(b * mask_too))


# Evaluation -----------------------------------------------------------------------------------------------------------


def test_values_are_computed_when_they_are_asked_for_and_once(compilations: Callable[[], int]) -> None:
    session = Session(RECORDED)
    x = session.leaf(X)
    negative = session.log(x)  # nan where x < 0: nobody minds until it is read
    total = session.sum(x * x)
    loss = total + session.sum(negative) * 0.0
    assert compilations() == 0
    np.testing.assert_allclose(session.get_value(total), (X**2).sum(), rtol=1e-14)
    value = session.get_value(total)
    value[...] = 0.0
    np.testing.assert_allclose(session.get_value(total), (X**2).sum(), rtol=1e-14)
    assert compilations() == 1
    np.testing.assert_array_equal(session.get_value(x), X)
    assert compilations() == 1
    assert np.isnan(session.get_value(loss))


def test_numbers_set_after_recording_count_at_the_next_evaluation(compilations: Callable[[], int]) -> None:
    session = Session(RECORDED)
    table, row, rows = session.leaf(TABLE), session.nat(2), session.nat_vec([0, 0, 3])
    one, many = session.gather_rows(table, row), session.gather_rows(table, rows)
    loss = session.sum(many * many)
    for at, index in ((2, [0, 0, 3]), (4, [1, 2, 1]), (0, [4, 4, 4])):
        session.set_nat(row, at)
        session.set_nat_vec(rows, index)
        np.testing.assert_array_equal(session.get_value(one), TABLE[at])
        np.testing.assert_array_equal(session.get_value(many), TABLE[index])
        expected = np.zeros_like(TABLE)
        np.add.at(expected, index, 2 * TABLE[index])
        session.backward(loss)
        session.set_nat_vec(rows, [2, 2, 2])  # not for the pass that was made
        np.testing.assert_allclose(session.grad(table), expected, rtol=1e-14)
    session.set_nat(row, 3)
    before = compilations()
    np.testing.assert_array_equal(session.get_value(one), TABLE[3])
    assert compilations() == before
    move = RNG.standard_normal(TABLE.shape)
    session.set_nat_vec(rows, [1, 0, 1])
    np.testing.assert_allclose(session.jvp_leaf(many, table, move), move[[1, 0, 1]], rtol=1e-14)


def test_an_index_out_of_range_names_its_op_and_can_be_put_right() -> None:
    session = Session(RECORDED)
    table, row = session.leaf(TABLE), session.nat(9)
    picked = session.gather_rows(table, row)  # the line of the message
    with pytest.raises(opstage.RangeError) as caught:
        session.get_value(picked)
    assert caught.value.source is not None
    assert caught.value.source.text.startswith("picked = session.gather_rows(table, row)")
    session.set_nat(row, 1)
    np.testing.assert_array_equal(session.get_value(picked), TABLE[1])


# Against the eager session --------------------------------------------------------------------------------------------


def network(session: Session, *leaves: Any) -> tuple[Any, list[Any]]:
    """A loss with a loop, a draw, normalisation and an index; and every intermediate ref."""
    w, x, table, labels, rows = leaves
    h = session.layer_norm(session.tanh(session.linear(w, None, x)), None, None)
    mask = session.bernoulli_mask(session.const(0.7), shape=h.shape)
    h = h * mask / 0.7
    start = session.full(shape=(h.shape[1],), value=0.0)
    last, steps = session.scan(lambda ops, carry, row: (ops.tanh(carry + row), carry), start, h)
    scores = session.softmax(session.concat([h, h * 2.0], axis=1))
    picked = session.gather_rows(table, rows)
    loss = session.cross_entropy(scores, labels) + session.sum(last) + session.reduce_mean(picked * picked, axis=(0, 1))
    return loss, [h, mask, last, steps, scores, picked, loss]


def test_values_gradients_and_forward_derivatives_are_those_of_the_eager_session() -> None:
    sessions = Session(EAGER), Session(RECORDED)
    for _ in range(3):  # random draws are new ones after each reset
        found = []
        for session in sessions:
            leaves = (session.leaf(W), session.leaf(X), session.leaf(TABLE))
            labels, rows = session.input(np.array([0, 1, 2, 3, 4, 5])), session.nat_vec([4, 0, 4])
            loss, refs = network(session, *leaves, labels, rows)
            values = [session.get_value(ref) for ref in refs]
            moves = {leaf: np.cos(np.arange(leaf.shape[0] * 3.0)).reshape(leaf.shape) for leaf in leaves}
            tangents = [session.jvp_all(ref, moves) for ref in refs]
            session.backward(loss, seed=np.array(0.5))
            gradients = [session.grad(ref) for ref in (*leaves, *refs)]
            session.backward(loss, dense=False)
            found.append([*values, *tangents, *gradients, *(session.grad(leaf) for leaf in leaves)])
            session.reset_tape()
        for eager, recorded in zip(*found, strict=True):
            np.testing.assert_allclose(recorded, eager, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("step", ["sgd_step_all", "adam_step_all", "adamw_step_all"])
def test_training_is_that_of_the_eager_session_and_compiles_once(step: str, compilations: Callable[[], int]) -> None:
    def losses(session: Session) -> list[float]:
        w, b = session.param(W, name="w"), session.param(np.zeros(4), name="b")
        found = []
        for i in range(12):
            x, y = session.input(X + i), session.nat_vec([i % 4, 0, 1, 2, 3, i % 3])
            h = session.linear(session.use(w), session.use(b), x)
            h = h * session.bernoulli_mask(session.const(0.9), shape=h.shape)
            loss = session.cross_entropy(h, session.add(session.sub(y, y), y))
            found.append(float(session.get_value(loss)))
            session.backward(loss, dense=False)
            getattr(session, step)(0.1 / (1 + i))  # a schedule
            session.reset_tape()
        return [*found, *w.value.ravel(), *b.value]

    eager = losses(Session(EAGER))
    before = compilations()
    recorded = losses(Session(RECORDED))
    np.testing.assert_allclose(recorded, eager, rtol=1e-12, atol=1e-13)
    assert compilations() - before == 2  # the loss, and the step


def test_a_long_run_keeps_nothing() -> None:
    session = Session(RECORDED.replace(dtype="float32"))
    w = session.param(W, name="w")

    def train(steps: int) -> None:
        for i in range(steps):
            x = session.input(X + i)
            loss = session.sum(session.tanh(session.linear(session.use(w), None, x)))
            session.get_value(loss)
            session.backward(loss)
            session.adam_step_all(1e-3)
            session.reset_tape()

    train(20)
    gc.collect()
    tracemalloc.start()
    try:
        train(20)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        train(400)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000  # 400 tapes of a dozen ops would be megabytes
