"""`opstage.compile`: values and derivatives against NumPy, integers that change, specs, what may be returned."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import CompiledOut, CompiledScalar, Options, Spec

FLOAT64 = Options(dtype="float64")
RNG = np.random.default_rng(20240607)
W, X, V = RNG.standard_normal((3, 4)), RNG.standard_normal((2, 3)), RNG.standard_normal((3, 4))


def energy(ops: Any, params: Any, x: Any) -> Any:
    """Σ tanh(x·w)."""
    return ops.sum(ops.tanh(x @ params["w"]))


def lookup(ops: Any, table: Any, index: Any) -> Any:
    """(rows, 3), (k) -> (k, 3), squared."""
    picked = ops.gather_rows(table, index)
    return picked * picked


@pytest.fixture
def compilations(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """How many programs were compiled so far in this test."""
    with caplog.at_level(logging.DEBUG, "opstage.interpreters.graph"):
        yield lambda: sum(record.getMessage().startswith("compiling for") for record in caplog.records)


# Values and derivatives -----------------------------------------------------------------------------------------------


def test_a_scalar_has_value_gradient_and_second_derivative() -> None:
    made = opstage.compile(energy, {"w": Spec("3 4")}, Spec("B 3"), options=FLOAT64)
    assert isinstance(made, CompiledScalar)
    args = {"w": W}, X
    hidden = np.tanh(X @ W)
    slope = 1 - hidden**2
    gradients = {"w": X.T @ slope}, slope @ W.T
    np.testing.assert_allclose(made.forward(*args), hidden.sum(), rtol=1e-13)
    np.testing.assert_array_equal(made(*args), made.forward(*args))
    for found in (made.backward(*args), made.backward_with_seed(np.array(1.0), *args), made.vjp(*args)[1](1.0)):
        np.testing.assert_allclose(found[0]["w"], gradients[0]["w"], rtol=1e-12)
        np.testing.assert_allclose(found[1], gradients[1], rtol=1e-12)
    value, tangent = made.jvp(args, ({"w": V}, None))
    np.testing.assert_allclose(value, hidden.sum(), rtol=1e-13)
    np.testing.assert_allclose(tangent, (gradients[0]["w"] * V).sum(), rtol=1e-12)
    bend = -2 * hidden * slope * (X @ V)
    along = made.hvp(args, ({"w": V}, None))
    np.testing.assert_allclose(along[0]["w"], X.T @ bend, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(along[1], bend @ W.T + slope @ V.T, rtol=1e-11, atol=1e-13)


def test_outputs_are_a_tree_of_any_tensors() -> None:
    def program(ops: Any, x: Any) -> Any:
        first = ops.exp(x)
        last = ops.sum(first * first)
        return {"first": first, "input": x, "constant": ops.const([1.0, 2.0]), "last": (last, last)}

    made = opstage.compile(program, Spec("N"), options=FLOAT64)
    assert isinstance(made, CompiledOut)
    x = X[0]
    value, pullback = made.vjp(x)
    np.testing.assert_allclose(value["first"], np.exp(x), rtol=1e-14)
    np.testing.assert_array_equal(value["input"], x)
    np.testing.assert_array_equal(value["constant"], [1.0, 2.0])
    np.testing.assert_allclose(value["last"], [np.exp(2 * x).sum()] * 2, rtol=1e-14)
    seed = {"first": x, "input": 2 * x, "constant": np.ones(2), "last": (np.array(3.0), np.array(0.5))}
    expected = np.exp(x) * x + 2 * x + 3.5 * 2 * np.exp(2 * x)
    np.testing.assert_allclose(pullback(seed)[0], expected, rtol=1e-13)
    np.testing.assert_allclose(made.backward_with_seed(seed, x)[0], expected, rtol=1e-13)
    _, moved = made.jvp((x,), (V[0][:3],))
    np.testing.assert_allclose(moved["first"], np.exp(x) * V[0][:3], rtol=1e-14)
    np.testing.assert_array_equal(moved["constant"], [0.0, 0.0])


def test_a_program_may_be_its_input_or_a_constant() -> None:
    identity = opstage.compile(lambda ops, x: x, Spec(""), options=FLOAT64)
    assert isinstance(identity, CompiledScalar)
    assert identity.forward(2.0) == 2.0
    assert identity.backward(2.0) == (1.0,)
    assert identity.backward_with_seed(3.0, 2.0) == (3.0,)
    assert identity.jvp((2.0,), (5.0,)) == (2.0, 5.0)
    assert identity.hvp((2.0,), (5.0,)) == (0.0,)
    constant = opstage.compile(lambda ops, x: ops.const(7.0), Spec("N"), options=FLOAT64)
    assert isinstance(constant, CompiledScalar)
    assert constant.forward(X[0]) == 7.0
    np.testing.assert_array_equal(constant.backward(X[0])[0], np.zeros(3))
    _, tangent = constant.jvp((X[0],), (X[0],))
    assert tangent == 0.0
    nothing = opstage.compile(lambda ops: ops.const(3))
    assert isinstance(nothing, CompiledOut)
    assert nothing.forward() == 3


def test_what_comes_out_is_the_caller_s_own() -> None:
    made = opstage.compile(lambda ops, x: (x, ops.const([1.0])), Spec("N"), options=FLOAT64)
    x = np.array([1.0, 2.0])
    same, constant = made.forward(x)
    same[:] = constant[:] = 9.0
    np.testing.assert_array_equal(x, [1.0, 2.0])
    np.testing.assert_array_equal(made.forward(x)[1], [1.0])
    value, pullback = opstage.compile(lambda ops, x: ops.sum(x * x), Spec("N"), options=FLOAT64).vjp(x)
    x[:] = 100.0
    assert value == 5.0
    np.testing.assert_array_equal(pullback(1.0)[0], [2.0, 4.0])


# Integers -------------------------------------------------------------------------------------------------------------


def test_integers_change_between_calls_without_a_new_recording(compilations: Any) -> None:
    calls = []

    def counted(ops: Any, table: Any, index: Any) -> Any:
        calls.append(index)
        return ops.sum(lookup(ops, table, index))

    made = opstage.compile(counted, Spec("4 3"), Spec("K", dtype="int64"), options=FLOAT64)
    table = RNG.standard_normal((4, 3))
    assert isinstance(made, CompiledScalar)
    for index in ([0, 1], [3, 3], [2, 0]):
        at = np.array(index)
        np.testing.assert_allclose(made.forward(table, at), (table[at] ** 2).sum(), rtol=1e-14)
        expected = np.zeros_like(table)
        np.add.at(expected, at, 2 * table[at])
        gradient, none = made.backward(table, at)
        np.testing.assert_allclose(gradient, expected, rtol=1e-14)
        assert none is None
    assert len(calls) == 6  # by compile, for forward and for backward, each twice: two recordings must agree
    assert compilations() == 2


def test_the_tangent_of_a_gather_is_gathered_and_that_of_the_index_is_zero() -> None:
    made = opstage.compile(lookup, Spec("4 3"), Spec("K", dtype="int64"), options=FLOAT64)
    table, move, at = RNG.standard_normal((4, 3)), RNG.standard_normal((4, 3)), np.array([3, 0, 3])
    value, tangent = made.jvp((table, at), (move, None))
    np.testing.assert_allclose(value, table[at] ** 2, rtol=1e-14)
    np.testing.assert_allclose(tangent, 2 * table[at] * move[at], rtol=1e-14)
    _, still = made.jvp((table, at), (None, None))
    np.testing.assert_array_equal(still, np.zeros((3, 3)))

    both = opstage.compile(lambda ops, table, i: (ops.gather_vec(table, i), i), Spec("4"), Spec("", dtype="int64"))
    (picked, index), (moved, none) = both.jvp((np.arange(4.0), 2), (np.array([0.0, 0.0, 5.0, 0.0]), None))
    assert (picked, index, moved, none) == (2.0, 2, 5.0, None)


def test_an_index_out_of_range_names_the_line() -> None:
    made = opstage.compile(lookup, Spec("4 3"), Spec("K", dtype="int64"))
    with pytest.raises(opstage.RangeError, match=r"gather_rows at .*test_compile\.py:\d+.*index 4 at position \(1,\)"):
        made.forward(np.ones((4, 3)), np.array([0, 4]))


# Specs and signatures -------------------------------------------------------------------------------------------------


def test_each_question_is_compiled_once_per_signature(compilations: Any) -> None:
    made = opstage.compile(energy, {"w": Spec("3 4")}, Spec("B 3"), options=FLOAT64)
    assert isinstance(made, CompiledScalar)
    assert compilations() == 0
    for factor in (1.0, 2.0):
        made.forward({"w": factor * W}, X)
        made.backward({"w": factor * W}, X)
        made.vjp({"w": W}, factor * X)[1](factor)
        made.jvp(({"w": W}, X), ({"w": factor * V}, None))
        made.hvp(({"w": W}, X), ({"w": factor * V}, None))
    assert compilations() == 5  # the pullback of vjp is backward_with_seed
    made.forward({"w": W}, np.ones((7, 3)))
    made.forward({"w": W}, np.zeros((7, 3)))
    assert compilations() == 6


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((np.ones((2, 3)), np.ones((3, 5))), r"call at .*: y is \(3, 5\): it has 3 on axis 0 but B is 2"),
        ((np.ones(3), np.ones((3, 5))), r"call at .*: x is \(3,\): it has rank 1"),
        ((np.ones((9, 3)), np.ones((9, 5))), r"B <= 8, which was declared, does not hold at B=9"),
        ((np.ones((2, 3)), np.ones((2, 5), int)), r"call at .*: y is int64 but .* promised floats"),
        ((np.ones((2, 3)),), r"the call does not have the structure of the compiled program's specs"),
        ((np.ones((2, 3)), "a"), "argument y: a tensor must hold numbers"),
    ],
)
def test_arguments_are_held_to_the_specs(args: tuple[Any, ...], message: str) -> None:
    made = opstage.compile(lambda ops, x, y: ops.sum(x) + ops.sum(y), Spec("B 3", where=["B <= 8"]), Spec("B 5"))
    with pytest.raises(opstage.OpstageError, match=message):
        made.forward(*args)
    assert made.forward(np.ones((2, 3)), np.ones((2, 5))) == 16.0


def test_what_a_question_is_given_beside_the_arguments_must_fit() -> None:
    made = opstage.compile(energy, {"w": Spec("3 4")}, Spec("B 3"))
    with pytest.raises(opstage.UsageError, match="argument seed: a tensor must hold numbers"):
        made.backward_with_seed("one", {"w": W}, X)
    with pytest.raises(opstage.ShapeError, match=r"a cotangent is \(2,\) float32 but its tensor is \(\) float32"):
        made.backward_with_seed(np.ones(2), {"w": W}, X)
    with pytest.raises(opstage.ShapeError, match="expected 2 tangents, one for each argument, got 1"):
        made.jvp(({"w": W}, X), ({"w": W},))


def test_a_program_that_is_wrong_is_refused_when_it_is_compiled() -> None:
    with pytest.raises(opstage.ShapeError, match=r"@ at .*test_compile\.py"):
        opstage.compile(energy, {"w": Spec("5 4")}, Spec("B 3"))
    with pytest.raises(opstage.UsageError, match="device 'cuda'"):
        opstage.compile(energy, {"w": Spec("3 4")}, Spec("B 3"), options=Options(device="cuda"))


@pytest.mark.parametrize(
    "program",
    [
        lambda ops, x: x if x > 0 else -x,
        lambda ops, x: ops.scale(x, c=float(x)),
        lambda ops, x: ops.const(np.asarray(x) + 1),
        lambda ops, x: sum(x),
    ],
    ids=["if", "float", "asarray", "for"],
)
def test_a_program_whose_structure_depends_on_values_is_refused(program: Any) -> None:
    """By compile, and by everything that runs with the compiled backend."""
    for ask in (
        lambda: opstage.compile(program, Spec("")),
        lambda: opstage.record(program, Spec("")),
        lambda: opstage.run(program, 1.0, options=Options(backend="compiled")),
        lambda: opstage.value_and_grad(program, 1.0, options=Options(backend="compiled")),
    ):
        with pytest.raises(opstage.ProgramError, match=r"a ref (has no|is not|cannot be)"):
            ask()


def test_train_is_passed_on() -> None:
    def program(ops: Any, x: Any, *, train: bool) -> Any:
        return ops.sum(x) * (2.0 if train else 1.0)

    for train, factor in ((True, 2.0), (False, 1.0)):
        assert opstage.compile(program, Spec("N"), train=train).forward(np.ones(3)) == factor * 3


# record ---------------------------------------------------------------------------------------------------------------


def test_a_record_names_what_goes_in_and_out_and_keeps_names_of_sizes() -> None:
    def program(ops: Any, params: Any, x: Any, labels: Any) -> Any:
        h = x @ params["w"]
        return {"loss": ops.cross_entropy(h, labels), "noise": [ops.rand_uniform(shape=(2,))], "x": x}

    graph = opstage.record(program, {"w": W}, Spec("B 3"), Spec("B", dtype="int64"), options=Options(seed=5))
    assert graph.input_names == ("params.w", "x", "labels", "step")
    assert graph.output_names == ("output.loss", "output.noise.0", "output.x")
    assert [str(t) for t in graph.input_types] == ["(3, 4) float32", "(B, 3) float32", "(B,) int64", "() int64"]
    assert [str(t) for t in graph.output_types] == ["() float32", "(2,) float32", "(B, 3) float32"]
    assert [e.primitive.name for e in graph.body.equations] == ["matmul", "cross_entropy", "rand_uniform"]
    assert graph.seed == 5
    lines = {line.text.strip() for line in graph.body.lines.values() if line is not None}
    assert 'h = x @ params["w"]' in lines


def test_a_symbolic_record_refuses_to_branch_on_a_size_that_nobody_knows() -> None:
    with pytest.raises(opstage.OpstageError, match="B"):
        opstage.record(lambda ops, x: x if x.shape[0] > 8 else -x, Spec("B"))
    assert opstage.record(lambda ops, x: x if x.shape[0] > 8 else -x, Spec("B", where=["B > 8"])).body.equations == ()


def test_specs_of_no_sense_are_refused() -> None:
    with pytest.raises(opstage.UsageError, match="a dim is an int"):
        opstage.record(lambda ops, x: x, Spec((-1,)))
