"""What scan computes and what it draws; derivatives, errors and costs are subjects of their own files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
import pytest
from typing_extensions import override

import opstage
from opstage import Options
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.ops.derived import dropout
from opstage.ops.errors import ShapeError
from opstage.ops.primitive import Primitive, Static
from opstage.ops.splitmix import draw_site
from opstage.ops.trees import flatten, unflatten
from opstage.transforms.derivatives import run_on_tape
from opstage.transforms.interpreter import BaseInterpreter
from opstage.transforms.transparent import Transparent
from tests.samples.random import splitmix64
from tests.scan.scan_programs import CASES, cumulative_sum, lstm, rnn, scanned

FLOAT64 = Options(dtype="float64")
CASE = {case.name: case for case in CASES}


def run(program: Callable[..., Any], *args: Any, options: Options = FLOAT64) -> Any:
    return opstage.run(program, *args, options=options)


def add(ops: Any, total: Any, x: Any) -> Any:
    total = ops.add(total, x)
    return total, total


def zero(ops: Any) -> Any:
    return ops.full(shape=(), value=0.0)


# Values against NumPy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cumulative_sum(dtype: str) -> None:
    x = np.arange(12, dtype=dtype).reshape(4, 3)
    last, sums = run(lambda ops, x: cumulative_sum(ops, scanned, x), x, options=Options(dtype=dtype))
    np.testing.assert_array_equal(sums, np.cumsum(x, axis=0))
    np.testing.assert_array_equal(last, x.sum(axis=0))
    assert last.dtype == sums.dtype == dtype


@pytest.mark.parametrize("reverse", [False, True])
def test_rnn(reverse: bool) -> None:
    p, h, xs = CASE["rnn"].args
    ys = np.empty((len(xs), *h.shape))
    expected = h
    for i in reversed(range(len(xs))) if reverse else range(len(xs)):
        expected = np.tanh(xs[i] @ p["wx"] + expected @ p["wh"] + p["b"])
        ys[i] = expected**2
    last, stacked = run(lambda ops, *args: rnn(ops, scanned, *args, reverse=reverse), p, h, xs)
    np.testing.assert_allclose(last, expected, rtol=1e-14)
    np.testing.assert_allclose(stacked, ys, rtol=1e-14)


def test_lstm_with_pytrees() -> None:
    p, state, xs = CASE["lstm"].args
    h, c = state["h"], state["c"]
    outs = []
    for x, mask in zip(xs["x"], xs["mask"]):
        i, f, g, o = np.split(np.concatenate([x, h], axis=1) @ p["w"].T + p["b"], 4, axis=1)
        sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
        new_c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        new_h = sigmoid(o) * np.tanh(new_c)
        h, c = np.where(mask[:, None], new_h, h), np.where(mask[:, None], new_c, c)
        outs.append(h)
    last, ys = run(lambda ops, *args: lstm(ops, scanned, *args), p, state, xs)
    assert last.keys() == {"h", "c"} and ys.keys() == {"out", "gates"}
    np.testing.assert_allclose(last["h"], h, rtol=1e-13)
    np.testing.assert_allclose(last["c"], c, rtol=1e-13)
    np.testing.assert_allclose(ys["out"], outs, rtol=1e-13)


def test_integers_keep_their_dtype_and_have_no_gradient() -> None:
    def program(ops: Any, x: Any, index: Any) -> Any:
        def step(ops: Any, carry: Any, i: Any) -> Any:
            n, total = carry
            return (ops.add(n, ops.const(1, dtype="int32")), ops.add(total, ops.gather_vec(x, i))), n

        return ops.scan(step, (ops.const(5, dtype="int32"), zero(ops)), index)

    x, index = np.array([1.0, 10.0, 100.0]), np.array([2, 0, 2, 1])
    (n, total), counts = run(program, x, index)
    assert n == 9 and n.dtype == np.int32 and total == 211
    np.testing.assert_array_equal(counts, np.arange(5, 9, dtype=np.int32))
    assert counts.dtype == np.int32
    _, pullback = opstage.vjp(program, x, index, options=FLOAT64)
    pulled, none = pullback(((None, np.array(1.0)), None))
    np.testing.assert_array_equal(pulled, [1, 1, 2])
    assert none is None


@pytest.mark.parametrize("options", [FLOAT64, Options(), Options(backend="shape_check")], ids=lambda o: f"{o.backend}")
def test_no_iterations(options: Options) -> None:
    """The carry comes back unchanged, the y's have length 0, and derivatives go through."""

    def program(ops: Any, w: Any, xs: Any) -> Any:
        c, ys = ops.scan(lambda ops, c, x: (ops.mul(c, ops.mul(w, x)), (c, ops.const(True))), ops.scale(w, c=2.0), xs)
        return c, ys

    def summed(ops: Any, w: Any, xs: Any) -> Any:
        c, (ys, _) = program(ops, w, xs)
        return ops.add(c, ops.sum(ys))

    c, (ys, flags) = opstage.run(program, np.array(3.0), np.zeros(0), options=options)
    assert ys.shape == flags.shape == (0,) and c.shape == () and flags.dtype == bool
    value, (dw, dxs) = opstage.value_and_grad(summed, np.array(3.0), np.zeros(0), wrt=(0, 1), options=options)
    assert dxs.shape == (0,) and dw.shape == ()
    if options.backend == "eager":
        assert (c, value, dw) == (6.0, 6.0, 2.0)


def test_only_a_length() -> None:
    doubled = run(lambda ops, x: ops.scan(lambda ops, c, _: (ops.add(c, c), None), x, None, length=10), np.array(1.0))
    assert doubled[0] == 1024 and doubled[1] is None


def test_a_constant_of_the_body_is_a_copy() -> None:
    table = np.array([1.0, 2.0])

    def program(ops: Any, x: Any) -> Any:
        def step(ops: Any, c: Any, _: Any) -> Any:
            out = ops.add(c, ops.const(table))
            table[:] = 0  # the body keeps what was there
            return out, None

        return ops.scan(step, x, None, length=2)[0]

    np.testing.assert_array_equal(run(program, np.zeros(2)), [2.0, 4.0])


@final
class Plain(Transparent[Any]):
    """eager_cpu without rows of its own: loops read with gather_row and write with stack."""

    row = BaseInterpreter.row
    rows = BaseInterpreter.rows
    stacked = BaseInterpreter.stacked

    @override
    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        if primitive.core or self.has_kernel(primitive):
            return self.inner.bind(primitive, refs, static)
        return self.decompose(primitive, refs, static)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_interpreter_that_supplies_bind_alone(case: Any) -> None:
    leaves, structure = flatten(case.args)

    def base(ops: Any, *refs: Any) -> tuple[Any, ...]:
        arguments = unflatten(structure, refs)
        _, _, outputs, _ = run_on_tape(ops, case.of(scanned), arguments, (False,) * len(arguments))
        return tuple(node.value for node in outputs)

    plain = Plain(NumpyOps(FLOAT64))
    found = plain.execute(base, tuple(plain.put(leaf) for leaf in leaves))
    for a, b in zip(found, flatten(run(case.of(scanned), *case.args))[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=0)  # sums in loops may be added in another order


def test_session() -> None:
    session = opstage.Session(FLOAT64)
    w = session.leaf(1.5)
    last, ys = session.scan(lambda ops, c, x: (c * w + x, c), session.const(1.0), session.const(np.ones(3)))
    session.backward(last + session.sum(ys))
    c = [1.0, 2.5, 4.75, 8.125]
    dc = [0.0, 1.0, 1.5 + 2.5, 1.5 * 4 + 4.75]
    assert session.get_value(last) == c[3]
    assert session.grad(w) == pytest.approx(dc[1] + dc[2] + dc[3])
    with pytest.raises(ShapeError):
        session.scan(lambda ops, c, x: (ops.rand_uniform(shape=(2,)), None), session.const(1.0), session.const([1.0]))
    drawn = session.get_value(session.rand_uniform(shape=(4,)))
    np.testing.assert_array_equal(drawn, draw((), 0))  # the call that failed left no trace


# Random draws --------------------------------------------------------------------------------------------------------


def draw(path: tuple[Any, ...], ordinal: int, *iterations: int, step: int = 0, shape: tuple[int, ...] = (4,)) -> Any:
    """The draw of that ordinal in that region and those iterations, by the definition."""
    key = splitmix64(splitmix64(splitmix64(0) + step) + draw_site(path, ordinal))
    for iteration in iterations:
        key = splitmix64(key + iteration)
    return np.array([(splitmix64(key + i) >> 40) / 2**24 for i in range(int(np.prod(shape)))]).reshape(shape)


@pytest.mark.parametrize("reverse", [False, True])
def test_each_iteration_draws_afresh(reverse: bool) -> None:
    def program(ops: Any) -> Any:
        before = ops.rand_uniform(shape=(4,))

        def step(ops: Any, c: Any, _: Any) -> Any:
            first = ops.rand_uniform(shape=(4,))
            return c, (first, ops.region("noise", lambda ops: ops.rand_uniform(shape=(4,))))

        _, ys = ops.scan(step, None, None, length=3, reverse=reverse)
        return before, ys, ops.rand_uniform(shape=(4,))

    before, (first, second), after = run(program)
    np.testing.assert_array_equal(before, draw((), 0))
    np.testing.assert_array_equal(first, [draw((), 1, i) for i in range(3)])
    np.testing.assert_array_equal(second, [draw((("noise", 0),), 0, i) for i in range(3)])
    np.testing.assert_array_equal(after, draw((), 2))


def test_nested_loops_fold_the_key_again() -> None:
    def inner(ops: Any, c: Any, _: Any) -> Any:
        return c, (ops.rand_uniform(shape=(4,)), ops.bernoulli_mask(ops.const(0.5), shape=(4,)))

    def outer(ops: Any, c: Any, _: Any) -> Any:
        _, ys = ops.scan(inner, None, None, length=2)
        return c, (ys, ops.rand_normal(shape=(4,)))

    _, ((uniform, mask), normal) = run(lambda ops: ops.scan(outer, None, None, length=3))
    for i in range(3):
        for j in range(2):
            np.testing.assert_array_equal(uniform[i, j], draw((), 0, i, j))
            np.testing.assert_array_equal(mask[i, j], draw((), 1, i, j) < 0.5)
        u = draw((), 2, i, shape=(4, 2))
        expected = np.sqrt(-2 * np.log(1 - u[:, 0])) * np.cos(2 * np.pi * u[:, 1])
        np.testing.assert_allclose(normal[i], expected, rtol=1e-14, atol=1e-15)


def test_each_step_draws_afresh() -> None:
    def base(ops: Any) -> tuple[Any, ...]:
        return (ops.scan(lambda ops, c, _: (c, ops.rand_uniform(shape=(4,))), None, None, length=2)[1],)

    (drawn,) = NumpyOps(FLOAT64).execute(base, (), step=7)
    np.testing.assert_array_equal(drawn, [draw((), 0, i, step=7) for i in range(2)])


def noisy(ops: Any, w: Any, xs: Any) -> Any:
    """Σ of a product with fresh dropout in each iteration: its gradient shows which masks the derivative saw."""

    def step(ops: Any, total: Any, x: Any) -> Any:
        kept = dropout(ops, ops.mul(w, ops.mul(x, x)), 0.5, True)
        return ops.add(total, ops.sum(kept)), None

    return ops.scan(step, zero(ops), xs)[0]


def test_derivatives_see_the_same_draws() -> None:
    w, xs = np.array([1.0, 2.0, 3.0, 4.0]), np.linspace(0.5, 2, 20).reshape(5, 4)
    masks = 2.0 * np.array([draw((), 0, i) < 0.5 for i in range(5)])
    value, (dw, dxs) = opstage.value_and_grad(noisy, w, xs, wrt=(0, 1), options=FLOAT64)
    assert value == pytest.approx(np.sum(masks * w * xs**2), rel=1e-13)
    np.testing.assert_allclose(dw, np.sum(masks * xs**2, axis=0), rtol=1e-13)
    np.testing.assert_allclose(dxs, masks * w * 2 * xs, rtol=1e-13)
    _, tangent = opstage.jvp(noisy, (w, xs), (np.ones(4), xs), options=FLOAT64)
    assert tangent == pytest.approx(np.sum(masks * xs**2) + np.sum(masks * w * 2 * xs**2), rel=1e-13)
    hvp = opstage.hvp(noisy, (w, xs), (np.ones(4), xs), options=FLOAT64)
    np.testing.assert_allclose(hvp[0], np.sum(2 * masks * xs**2, axis=0), rtol=1e-13)
    np.testing.assert_allclose(hvp[1], 2 * masks * (xs + w * xs), rtol=1e-13)


# The cursor ----------------------------------------------------------------------------------------------------------


def test_ops_of_the_body_are_counted_once_and_alike_on_every_interpreter() -> None:
    seen: dict[str, list[Any]] = {}

    def program(ops: Any, x: Any, log: list[Any]) -> Any:
        def step(ops: Any, c: Any, x: Any) -> Any:
            c = ops.region("cell", lambda ops: ops.tanh(ops.add(c, x)))
            log.append((ops.cursor.ordinal, ops.cursor.region.name))
            return c, ops.exp(c)

        log.append(ops.cursor.ordinal)
        c, ys = ops.region("loop", lambda ops: ops.scan(step, zero(ops), x))
        log.append(ops.cursor.ordinal)
        return ops.add(c, ops.sum(ys))

    for name in ("eager", "shape_check"):
        seen[name] = []
        opstage.value_and_grad(lambda ops, x: program(ops, x, seen[name]), np.ones(3), options=Options(backend=name))
    assert seen["eager"] == seen["shape_check"] == [0, (3, "loop"), 5]  # full; add, tanh; exp; scan

    def differentiated(ops: Any, x: Any) -> Any:
        seen["inside"] = []
        return opstage.transform.grad(ops, lambda ops, x: program(ops, x, seen["inside"]), x)

    run(differentiated, np.ones(3))
    assert seen["inside"] == seen["eager"]
