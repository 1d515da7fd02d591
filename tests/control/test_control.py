"""cond, switch and while_loop: values and derivatives are those of Python's own, on every interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage import Options
from opstage.ops.errors import RangeError, UnsupportedError
from tests.conformance.harness import SEED, assert_close, central_difference, dot, is_float, leaves, random_like
from tests.control.control_programs import CASES, Case, Plain, Structural

FLOAT64 = Options(dtype="float64")
COMPILED = FLOAT64.replace(backend="compiled")
TIGHT = (1e-12, 1e-12)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_backend = pytest.mark.parametrize("options", [FLOAT64, COMPILED], ids=["eager", "compiled"])


def scalar(case: Case, flow: Any) -> Any:
    """The case as a scalar program: a fixed weighted sum of all its float outputs."""

    def program(ops: Any, *args: Any) -> Any:
        total = ops.full(shape=(), value=0.0)
        rng = np.random.default_rng(SEED)
        for out in optree.tree_leaves(case.program(ops, flow, *args)):
            if out.dtype.kind == "f":
                total = total + ops.sum(out * ops.const(rng.standard_normal(out.shape)))
        return total

    return program


# Beside Python's own -------------------------------------------------------------------------------------------------


@each_case
@each_backend
def test_values_are_those_of_python(case: Case, options: Options) -> None:
    found = opstage.run(case.of(Structural()), *case.args, options=options)
    plain = opstage.run(case.of(Plain()), *case.args, options=FLOAT64)
    assert optree.tree_structure(found) == optree.tree_structure(plain)
    assert [x.dtype for x in leaves(found)] == [x.dtype for x in leaves(plain)]
    assert_close(found, plain, TIGHT, case.name)


@each_case
@each_backend
def test_gradients_are_those_of_python(case: Case, options: Options) -> None:
    wrt = tuple(i for i, x in enumerate(case.args) if is_float(x))
    value, found = opstage.value_and_grad(scalar(case, Structural()), *case.args, wrt=wrt, options=options)
    expected, plain = opstage.value_and_grad(scalar(case, Plain()), *case.args, wrt=wrt, options=FLOAT64)
    assert_close((value, found), (expected, plain), TIGHT, case.name)


@each_case
@each_backend
def test_tangents_are_those_of_python_and_agree_with_gradients(case: Case, options: Options) -> None:
    direction = random_like(np.random.default_rng(SEED), case.args)
    found = opstage.jvp(scalar(case, Structural()), case.args, direction, options=options)
    assert_close(found, opstage.jvp(scalar(case, Plain()), case.args, direction, options=FLOAT64), TIGHT, case.name)
    _, pullback = opstage.vjp(scalar(case, Structural()), *case.args, options=options)
    pulled = pullback(np.array(1.0))
    assert dot(pulled, direction) == pytest.approx(float(found[1]), rel=1e-11, abs=1e-11)


@each_case
def test_gradients_are_central_differences(case: Case) -> None:
    program = scalar(case, Structural())
    direction = random_like(np.random.default_rng(SEED), case.args)
    _, tangent = opstage.jvp(program, case.args, direction, options=FLOAT64)

    def at(args: Any) -> Any:
        return opstage.run(program, *args, options=FLOAT64)

    assert_close(tangent, central_difference(at, case.args, direction), (1e-6, 1e-6), case.name)


@each_case
@each_backend
def test_second_order(case: Case, options: Options) -> None:
    direction = random_like(np.random.default_rng(SEED), case.args)
    found = opstage.hvp(scalar(case, Structural()), case.args, direction, options=options)
    plain = opstage.hvp(scalar(case, Plain()), case.args, direction, options=FLOAT64)
    assert_close(found, plain, (1e-11, 1e-11), case.name)


@each_case
def test_reverse_over_reverse(case: Case) -> None:
    def slope(flow: Any) -> Any:
        program = scalar(case, flow)

        def of(ops: Any, *args: Any) -> Any:
            value, pullback = ops.vjp_of(program, *args)
            total = value
            for g in optree.tree_leaves(pullback(ops.const(1.0))):
                total = total + ops.sum(g * g)
            return total

        return of

    wrt = tuple(i for i, x in enumerate(case.args) if is_float(x))
    found = opstage.value_and_grad(slope(Structural()), *case.args, wrt=wrt, options=FLOAT64)
    plain = opstage.value_and_grad(slope(Plain()), *case.args, wrt=wrt, options=FLOAT64)
    assert_close(found, plain, (1e-10, 1e-10), case.name)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_float32_stays(backend: Any) -> None:
    options = Options(backend=backend)
    for case in CASES:
        if case.name == "newton":  # its tolerance is one of float64
            continue
        for out in leaves(opstage.run(case.of(Structural()), *case.args, options=options)):
            assert out.dtype in ("float32", "int64")


# One branch runs, once -----------------------------------------------------------------------------------------------


@each_backend
def test_only_the_chosen_branch_runs(options: Options) -> None:
    """The other reads an element that is not there, which is an error where it runs."""

    def program(ops: Any, x: Any, i: Any) -> Any:
        return ops.cond(
            ops.sum(x) > 0.0,
            lambda ops: ops.gather_rows(x, ops.reshape(i, shape=(1,))),
            lambda ops: ops.reshape(ops.sum(x), shape=(1,)),
        )

    x = np.array([-1.0, -2.0])
    np.testing.assert_array_equal(opstage.run(program, x, np.array(9), options=options), [-3.0])
    with pytest.raises(RangeError):
        opstage.run(program, -x, np.array(9), options=options)


@each_backend
def test_nan_of_the_other_branch_reaches_no_gradient(options: Options) -> None:
    """√ and log at negative numbers, which `select` would multiply by 0."""

    def program(ops: Any, x: Any) -> Any:
        return ops.cond(x > 0.0, lambda ops: ops.sqrt(x) + ops.log(x), lambda ops: x * x)

    for x in (-2.0, 0.0):
        assert opstage.value_and_grad(program, x, options=options) == (x * x, 2 * x)
        assert opstage.jvp(program, (x,), (1.0,), options=options) == (x * x, 2 * x)
        assert opstage.hvp(program, (x,), (1.0,), options=options)[0] == 2.0


@each_backend
def test_nan_after_the_last_iteration_reaches_no_gradient(options: Options) -> None:
    """Iterations of the bound that do not happen would divide by zero."""

    def program(ops: Any, x: Any) -> Any:
        def body(ops: Any, c: Any) -> Any:
            n, y = c
            return n - 1.0, y * x / n

        return ops.while_loop(lambda ops, c: c[0] > 0.5, body, (ops.const(3.0), ops.const(1.0)), max_iterations=8)[1]

    value, slope = opstage.value_and_grad(program, 2.0, options=options)
    np.testing.assert_allclose((value, slope), (8 / 6, 3 * 4 / 6), rtol=1e-14)


@each_backend
def test_operands_passed_through_are_not_shared_with_results(options: Options) -> None:
    """Who writes into what a run gave writes into nothing of the caller's."""
    x = np.arange(3.0)
    one, two = opstage.run(lambda ops, x: ops.cond(ops.sum(x) > 0.0, *[lambda ops: (x, x)] * 2), x, options=options)
    same = opstage.run(lambda ops, x: (x, x), x, options=options)
    assert [np.shares_memory(a, b) for a, b in ((one, x), (one, two))] == [
        np.shares_memory(a, b) for a, b in ((same[0], x), (same[0], same[1]))
    ]


@each_backend
def test_no_elements(options: Options) -> None:
    def program(ops: Any, x: Any) -> Any:
        y = ops.cond(ops.sum(x) > 0.0, lambda ops: ops.exp(x), lambda ops: x * 2.0)
        z = ops.while_loop(lambda ops, c: ops.sum(c[0]) > c[1], lambda ops, c: c, (y, ops.const(1.0)), max_iterations=2)
        return ops.sum(z[0]) + ops.sum(z[1])

    for shape in ((0,), (0, 3), (2, 0)):
        value, slope = opstage.value_and_grad(program, np.zeros(shape), options=options)
        assert value == 1.0 and slope.shape == shape


@each_backend
def test_operands_and_results_in_other_layouts(options: Options) -> None:
    """Transposed, broadcast, sliced, constant, filled and one tensor twice: in, through and out."""

    def program(ops: Any, x: Any, row: Any) -> Any:
        given = (
            ops.transpose2d(x),
            ops.broadcast_to(row, shape=(3, 2)),
            ops.slice(x, axis=1, start=1, length=2),
            ops.const(np.arange(4.0)),
            ops.full(shape=(2,), value=3.0),
            ops.permute(ops.reshape(x, shape=(2, 3, 1)), axes=(2, 1, 0)),
        )

        def one(ops: Any, *refs: Any) -> Any:
            return (*refs, ops.transpose2d(refs[0]), ops.broadcast_to(ops.sum(x), shape=(3,)), x, x)

        def other(ops: Any, *refs: Any) -> Any:
            return (*[ref * 2.0 for ref in refs], x + 1.0, ops.full(shape=(3,), value=1.0), x, -x)

        found = ops.cond(ops.sum(row) > 0.0, one, other, *given)
        last = ops.while_loop(
            lambda ops, c: c[0] < 2,
            lambda ops, c: (c[0] + 1, c[2], c[1], c[3]),
            (ops.const(0, dtype="int64"), given[0], ops.broadcast_to(row, shape=(3, 2)), ops.transpose2d(found[0])),
            max_iterations=3,
        )
        return found, last, ops.transpose2d(last[1]) + x

    x = np.arange(6.0).reshape(2, 3)
    for sign in (1.0, -1.0):
        row = sign * np.array([1.0, 2.0])
        factor = 1.0 if sign > 0 else 2.0
        found, last, sums = opstage.run(program, x, row, options=options)
        wide = np.broadcast_to(row, (3, 2))
        given = [x.T, wide, x[:, 1:3], np.arange(4.0), np.full(2, 3.0), x.reshape(2, 3, 1).transpose(2, 1, 0)]
        for a, b in zip(found, given):
            np.testing.assert_array_equal(a, b * factor)
        rest = (x, np.full(3, x.sum()), x, x) if sign > 0 else (x + 1, np.ones(3), x, -x)
        for a, b in zip(found[6:], rest):
            np.testing.assert_array_equal(a, b)
        for a, b in zip(last, (2, x.T, wide, x * factor)):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(sums, 2 * x)


@each_backend
def test_draws_are_afresh_in_each_iteration_and_alike_in_the_backward_pass(options: Options) -> None:
    def walk(ops: Any, x: Any) -> Any:
        def body(ops: Any, c: Any) -> Any:
            draw = ops.rand_uniform(shape=(4,))
            return c[0] + 1, c[1] + draw * x, c[2] * draw

        start = (ops.const(0, dtype="int64"), ops.full(shape=(4,), value=0.0), ops.full(shape=(4,), value=1.0))
        return ops.while_loop(lambda ops, c: c[0] < 3, body, start, max_iterations=5)

    _, sums, products = opstage.run(walk, 1.0, options=options)
    assert len(set(sums.tolist())) == 4
    assert not np.allclose((sums / 3) ** 3, products)  # three draws, not one three times
    value, slope = opstage.value_and_grad(lambda ops, x: ops.sum(walk(ops, x)[1]), 2.0, options=options)
    np.testing.assert_allclose((value, slope), (2 * sums.sum(), sums.sum()), rtol=1e-12)


# Bounds --------------------------------------------------------------------------------------------------------------


def counting(limit: int | None) -> Any:
    return lambda ops, x: ops.while_loop(lambda ops, c: c < 5.0, lambda ops, c: c + 1.0, x, max_iterations=limit)


@each_backend
def test_a_bound_that_is_reached_is_no_error_and_one_that_is_passed_is(options: Options) -> None:
    assert opstage.run(counting(5), 0.0, options=options) == 5.0
    assert opstage.run(counting(0), 5.0, options=options) == 5.0
    for limit in (0, 4):
        with pytest.raises(RangeError, match=f"cond still holds after max_iterations={limit} iterations"):
            opstage.run(counting(limit), 0.0, options=options)
        with pytest.raises(RangeError, match=r"test_control\.py"):
            opstage.jvp(counting(limit), (0.0,), (1.0,), options=options)

        def slope_alone(ops: Any, x: Any, limit: int = limit) -> Any:
            return ops.vjp_of(counting(limit), x)[1](ops.const(1.0))

        with pytest.raises(RangeError):  # though nobody reads the value
            opstage.run(slope_alone, 0.0, options=options)


@each_backend
def test_without_a_bound(options: Options) -> None:
    assert opstage.run(counting(None), -2.0, options=options) == 5.0
    assert opstage.jvp(counting(None), (-2.5,), (1.0,), options=options) == (5.5, 1.0)
    with pytest.raises(UnsupportedError, match=r"needs a bound on their number: give max_iterations=.*"):
        opstage.value_and_grad(counting(None), 0.0, options=options)


@each_backend
def test_an_index_that_is_none(options: Options) -> None:
    def program(ops: Any, i: Any) -> Any:
        return ops.switch(i, [lambda ops: ops.const(1.0), lambda ops: ops.const(2.0)])

    assert opstage.run(program, np.array(1), options=options) == 2.0
    for i in (2, -1):
        with pytest.raises(RangeError, match=f"index must be from 0 to 1 but is {i}"):
            opstage.run(program, np.array(i), options=options)
