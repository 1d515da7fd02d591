"""Session: values, gradients and forward derivatives of imperative ops, against NumPy."""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Session
from opstage.ops.protocol import OPS
from tests.training.conftest import NewSession

FLOAT64 = Options(dtype="float64")
RNG = np.random.default_rng(20240607)
W, B, X = RNG.standard_normal((4, 3)), RNG.standard_normal(4), RNG.standard_normal((5, 3))


def network(ops: Any, w: Any, b: Any, x: Any) -> Any:
    """A scalar with a branch, broadcasting, a fused op and a reused parameter."""
    hidden = ops.tanh(ops.linear(w, b, x))
    scores = ops.softmax(hidden @ w)
    return ops.sum(scores * ops.exp(x)) + ops.reduce_mean(ops.relu(hidden), axis=(0, 1)) * 0.5


def central_difference(f: Callable[..., float], arrays: list[np.ndarray[Any, Any]], i: int, h: float = 1e-5) -> Any:
    """The gradient of f for its i-th array."""
    gradient = np.zeros_like(arrays[i])
    for index in np.ndindex(*gradient.shape):
        moved = [a.copy() for a in arrays]
        moved[i][index] += h
        up = f(*moved)
        moved[i][index] -= 2 * h
        gradient[index] = (up - f(*moved)) / (2 * h)
    return gradient


def numpy_network(w: Any, b: Any, x: Any) -> float:
    hidden = np.tanh(x @ w.T + b)
    scores = np.exp(hidden @ w)
    scores /= scores.sum(-1, keepdims=True)
    return float((scores * np.exp(x)).sum() + 0.5 * np.maximum(hidden, 0).mean())


# Values and gradients -------------------------------------------------------------------------------------------------


def test_every_op_is_a_method(session: Session) -> None:
    for name in OPS:
        assert callable(getattr(session, name)), name


def test_values_and_gradients_agree_with_numpy(session: Session) -> None:
    w, b = session.param(W, name="w"), session.param(B, name="b")
    x = session.leaf(X)
    loss = network(session, session.use(w), session.use(b), x)
    np.testing.assert_allclose(session.get_value(loss), numpy_network(W, B, X), rtol=1e-12)
    gradients = session.backward(loss)
    for i, of in enumerate((w, b, x)):
        expected = central_difference(numpy_network, [W, B, X], i)
        np.testing.assert_allclose(gradients[of], expected, rtol=1e-7, atol=1e-9)
        np.testing.assert_array_equal(session.grad(of), gradients[of])


def test_a_parameter_used_twice_is_one_leaf_whose_gradient_is_the_sum(session: Session) -> None:
    w = session.param([2.0, 3.0])
    assert session.use(w) is session.use(w)
    session.backward(session.sum(session.use(w) * session.use(w) + session.use(w)))
    np.testing.assert_array_equal(session.grad(w), [5.0, 7.0])
    np.testing.assert_array_equal(session.grad(session.use(w)), [5.0, 7.0])


def test_dense_keeps_the_gradient_of_every_ref(session: Session) -> None:
    x, aside = session.leaf([1.0, 2.0]), session.leaf([5.0])
    constant, frozen = (
        session.input([3.0, 4.0], requires_grad=False),
        session.use(session.param([1.0, 1.0], requires_grad=False)),
    )
    square = x * x
    loss = session.sum(square * constant * frozen)
    session.backward(loss)
    np.testing.assert_array_equal(session.grad(square), [3.0, 4.0])
    np.testing.assert_array_equal(session.grad(x), [6.0, 16.0])
    np.testing.assert_array_equal(session.grad(loss), 1.0)
    np.testing.assert_array_equal(session.grad(aside), [0.0])  # no path
    np.testing.assert_array_equal(session.grad(constant), [0.0, 0.0])
    np.testing.assert_array_equal(session.grad(frozen), [0.0, 0.0])
    session.backward(square, seed=[1.0, 10.0])  # dense leaves the tape whole
    np.testing.assert_array_equal(session.grad(x), [2.0, 40.0])
    np.testing.assert_array_equal(session.grad(loss), 0.0)


def test_sparse_keeps_leaves_and_parameters_alone(session: Session) -> None:
    w, x = session.param([2.0, 3.0]), session.leaf([1.0, 2.0])
    product = x * session.use(w)
    loss = session.sum(product)
    gradients = session.backward(loss, dense=False)
    assert not gradients.dense
    np.testing.assert_array_equal(gradients[w], [1.0, 2.0])
    np.testing.assert_array_equal(gradients[x], [2.0, 3.0])
    for ref in (product, loss):
        with pytest.raises(opstage.ProgramError, match="dense=True"):
            session.grad(ref)
    with pytest.raises(opstage.ProgramError, match="consumed by an earlier backward pass"):
        session.backward(loss)
    np.testing.assert_array_equal(session.grad(w), [1.0, 2.0])  # the failed pass changed nothing


def test_infix_computes_on_the_tape_without_numpy_s_warnings(session: Session) -> None:
    x = session.leaf([0.0, -1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(session.get_value(1 / x), [np.inf, -1])
        np.testing.assert_array_equal(session.get_value(session.log(x)), [-np.inf, np.nan])
        np.testing.assert_array_equal(session.get_value(session.pow(x, exponent=0.5)), [0, np.nan])
        session.backward(session.sum(session.log(x) + np.ones(2) / x))
        session.adam_step_all(0.1)


def test_detach_stops_gradients(session: Session) -> None:
    x = session.leaf([3.0])
    session.backward(session.sum(session.detach(x) * x))
    np.testing.assert_array_equal(session.grad(x), [3.0])


def test_what_goes_in_is_copied_and_what_comes_out_is_the_caller_s_own(session: Session) -> None:
    factor, start = np.array([2.0, 3.0]), np.array([1.0, 1.0])
    given = [factor, start]
    x, given_too, c = session.leaf(start), session.input(factor), session.const(factor)
    product = x * c * factor * given_too
    for array in given:
        array[:] = np.nan
    value = session.get_value(product)
    np.testing.assert_array_equal(value, [8.0, 27.0])
    value[:] = 0
    np.testing.assert_array_equal(session.get_value(product), [8.0, 27.0])
    gradients = session.backward(session.sum(product))
    gradients[x][:] = 0
    np.testing.assert_array_equal(gradients[x], [8.0, 27.0])


def test_regions_and_derivatives_inside_nest_on_the_session(session: Session) -> None:
    x, at = session.leaf([1.0, 2.0, 3.0]), session.nat(1)

    def cube(ops: Any, y: Any) -> Any:
        return ops.gather_vec(ops.pow(y, exponent=3), at)  # a natural number from outside

    slope = opstage.transform.grad(session, cube, x)
    np.testing.assert_allclose(session.get_value(slope), [0.0, 12.0, 0.0])
    twice = session.region("twice", lambda ops, y: ops.sum(y * y), slope)
    session.backward(twice)  # d (3·x₁²)² / dx₁ = 36·x₁³
    np.testing.assert_allclose(session.grad(x), [0.0, 288.0, 0.0])


def test_exact_sessions_compute_with_fractions(new_session: NewSession) -> None:
    session = new_session(dtype="exact")
    w = session.param([Fraction(1, 3), Fraction(1, 2)])
    loss = session.sum(session.use(w) * session.use(w))
    assert session.get_value(loss).item() == Fraction(13, 36)
    session.backward(loss)
    session.sgd_step_all(Fraction(1, 2))
    assert list(w.value) == [0, 0]


def test_chains_deeper_than_python_s_stack(new_session: NewSession) -> None:
    before = sys.getrecursionlimit()  # a library that another test imports may have raised it
    sys.setrecursionlimit(1000)
    try:
        deep_chain(new_session)
    finally:
        sys.setrecursionlimit(before)


def deep_chain(new_session: NewSession) -> None:
    depth = 12_000
    for dense in (True, False):
        session = new_session()
        x, p = session.leaf([1.0]), session.use(session.param([1.0]))
        out = x
        for _ in range(depth // 2):
            out = session.add(session.neg(out), p)
        session.backward(out, seed=[1.0], dense=dense)
        np.testing.assert_array_equal(session.grad(x), [1.0])
        np.testing.assert_array_equal(session.grad(p), [0.0])
        if dense:
            np.testing.assert_array_equal(session.jvp_leaf(out, x, [2.0]), [2.0])
        del out
        session.reset_tape()
    gc.collect()


# Forward derivatives --------------------------------------------------------------------------------------------------


def test_jvp_agrees_with_forward_mode_and_with_differences(session: Session) -> None:
    w, b, x = session.leaf(W), session.leaf(B), session.leaf(X)
    moves = [RNG.standard_normal(a.shape) for a in (W, B, X)]
    ref = network(session, w, b, x)
    _, expected = opstage.jvp(network, (W, B, X), tuple(moves), options=FLOAT64)
    tangent = session.jvp_all(ref, dict(zip((w, b, x), moves)))
    np.testing.assert_allclose(tangent, expected, rtol=1e-12)
    h = 1e-6
    up, down = (numpy_network(*(a + s * h * m for a, m in zip((W, B, X), moves))) for s in (1, -1))
    np.testing.assert_allclose(tangent, (up - down) / (2 * h), rtol=1e-7)
    for i, leaf in enumerate((w, b, x)):
        alone = tuple(m if j == i else np.zeros_like(m) for j, m in enumerate(moves))
        _, expected = opstage.jvp(network, (W, B, X), alone, options=FLOAT64)
        np.testing.assert_allclose(session.jvp_leaf(ref, leaf, moves[i]), expected, rtol=1e-12)
    session.backward(ref)  # the tape is as it was


def test_jvp_of_tensors_of_parameters_and_without_a_path(session: Session) -> None:
    w, x, aside, constant = session.param(W), session.leaf(X), session.leaf([1.0]), session.input(X)

    def program(ops: Any, w: Any, x: Any) -> Any:
        first, second = ops.split(ops.layer_norm(x @ ops.transpose2d(w), None, None), sizes=(1, 3), axis=1)
        return ops.reduce_max(second, axis=1) * ops.gather_vec(ops.flatten(first), ops.const([0, 0, 1, 3, 2]))

    ref = program(session, session.use(w), x)
    v = RNG.standard_normal(W.shape)
    _, expected = opstage.jvp(program, (W, X), (v, None), options=FLOAT64)
    np.testing.assert_allclose(session.jvp_leaf(ref, session.use(w), v), expected, rtol=1e-11)
    np.testing.assert_array_equal(session.jvp_leaf(ref, aside, [1.0]), np.zeros(5))
    np.testing.assert_array_equal(session.jvp_all(ref, {}), np.zeros(5))
    np.testing.assert_array_equal(session.jvp_leaf(x, x, X), X)
    np.testing.assert_array_equal(session.jvp_leaf(constant, x, X), np.zeros_like(X))


def test_jvp_needs_a_leaf_and_a_whole_tape(session: Session) -> None:
    x, constant = session.leaf([1.0, 2.0]), session.input([1.0], requires_grad=False)
    square = x * x
    with pytest.raises(opstage.ProgramError, match="is the result of an op"):
        session.jvp_leaf(square, square, [1.0, 1.0])
    with pytest.raises(opstage.ProgramError, match="is a constant"):
        session.jvp_leaf(square, constant, [1.0])
    with pytest.raises(opstage.ShapeError, match=r"tangent is \(3,\) where \(2,\) is expected"):
        session.jvp_leaf(square, x, np.ones(3))
    session.backward(square, seed=[1.0, 1.0], dense=False)
    with pytest.raises(opstage.ProgramError, match="consumed"):
        session.jvp_leaf(square, x, [1.0, 1.0])


def test_gradients_are_a_mapping_of_parameters_and_leaves(session: Session) -> None:
    w, frozen = session.param([2.0, 3.0], name="w"), session.param([1.0, 1.0], requires_grad=False)
    used, held, unused = session.use(w), session.use(frozen), session.param([5.0])
    x, y = session.input([1.0, 4.0]), session.leaf([1.0, 1.0])
    numbers, constant = session.input([1, 2]), session.input([1.0, 1.0], requires_grad=False)
    product = used * x * held
    gradients = session.backward(session.sum(product))
    assert list(gradients) == list(gradients.keys()) and len(gradients) == 3
    assert all(a is b for a, b in zip(gradients, (w, x, y)))
    assert [value.tolist() for value in gradients.values()] == [[1.0, 4.0], [2.0, 3.0], [0.0, 0.0]]
    assert {id(of): value.tolist() for of, value in gradients.items()}[id(x)] == [2.0, 3.0]
    assert w in gradients and x in gradients and product in gradients and constant in gradients
    assert unused not in gradients and numbers not in gradients and "w" not in gradients
    assert gradients.get(unused) is None and gradients.get(unused, 3) == 3 and gradients.get(w).tolist() == [1.0, 4.0]
    assert gradients == gradients and gradients != {} and len({gradients}) == 1
    del y
    gc.collect()
    assert len(gradients) == 2
    session.reset_tape()
    for read in (lambda: list(gradients), lambda: len(gradients), lambda: gradients[w]):
        with pytest.raises(opstage.ProgramError, match="before reset_tape"):
            read()


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("own", [None, True, False])
def test_an_input_takes_a_gradient_by_its_own_flag_or_the_options(
    new_session: NewSession, default: bool, own: bool | None
) -> None:
    session = new_session(dtype="float64", requires_grad_by_default=default)
    x, w = session.input([1.0, 2.0], requires_grad=own), session.param([3.0, 4.0], requires_grad=own)
    labels, used = session.input([0, 1]), session.use(w)  # integers are constants, whatever the default
    loss = session.sum(session.gather_rows(x * used, labels))
    gradients = session.backward(loss)
    takes = default if own is None else own
    assert (x in set(gradients), w in set(gradients)) == (takes, takes)
    assert gradients[x].tolist() == ([3.0, 4.0] if takes else [0.0, 0.0])
    session.reset_tape()
    with pytest.raises(opstage.DtypeError, match="only floats take a gradient"):
        session.input([0, 1], requires_grad=True)


def test_a_reset_drops_the_values_of_refs_that_are_still_held(session: Session) -> None:
    w = session.param(np.ones(4), name="w")
    x, numbers = session.input(np.ones(4)), session.nat_vec([0, 1])
    used = session.use(w)
    y = session.tanh(used * x)
    rows = session.gather_rows(y, numbers)
    first = session.backward(session.sum(rows))
    second = session.backward(session.sum(y))
    values = [weakref.ref(ref.value) for ref in (x, y, rows) if isinstance(ref.value, np.ndarray)]
    session.sgd_step_all(0.5)
    session.reset_tape()
    gc.collect()
    assert [each() for each in values] == [None] * len(values)
    assert [type(ref.value).__name__ for ref in (x, y, rows)] == ["TensorType"] * 3
    assert x.shape == (4,) and y.dtype.kind == "f" and "(4,)" in repr(y)  # a device may store another float
    for use in (
        lambda: session.get_value(y),
        lambda: y + y,
        lambda: session.relu(x),
        lambda: session.backward(y),
        lambda: session.get_nat_vec(numbers),
        lambda: session.gather_rows(session.input(np.ones(4)), numbers),
        lambda: first[x],
        lambda: second[w],
    ):
        with pytest.raises(opstage.ProgramError, match="reset_tape"):
            use()
    assert session.get_value(session.use(w)).tolist() == w.value.tolist()


def test_many_refs_are_noted_without_being_kept() -> None:
    session = opstage.Session()
    x = session.leaf([1.0])
    for _ in range(5000):
        y = session.exp(x)
    assert len(session._tape._noted) <= 2048 and any(held is y for held in session._tape.live_refs())
