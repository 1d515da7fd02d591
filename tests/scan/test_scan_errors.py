"""What a scan refuses, and constants in bodies of loops and branches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage import Options
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.ops.errors import ProgramError, RangeError, ShapeError
from opstage.transforms.anomaly import AnomalyError, AnomalyWatch
from opstage.transforms.derivatives import value_and_grad

FLOAT64 = Options(dtype="float64")


def run(program: Callable[..., Any], *args: Any) -> Any:
    return opstage.run(program, *args, options=FLOAT64)


def add(ops: Any, total: Any, x: Any) -> Any:
    return ops.add(total, x), None


def zero(ops: Any) -> Any:
    return ops.full(shape=(), value=0.0)


def refused(program: Callable[..., Any], *args: Any, error: type[Exception] = ShapeError) -> str:
    """The message, the same from a run and (for what a check finds) from a check, with this file's line."""
    with pytest.raises(error) as caught:
        run(program, *args)
    message = str(caught.value)
    if error is ShapeError:
        assert re.match(r"\w+ at .*test_scan_errors\.py:\d+", message), message
        report = opstage.check(program, *args, options=FLOAT64)
        assert not report.ok and report.errors[0].reason in message
    return message


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (
            lambda ops, h: ops.cast(h, dtype="float32"),
            r"carry\.h comes .* as \(2,\) float64 but leaves it as \(2,\) float32",
        ),
        (lambda ops, h: ops.cast(h, dtype="float32"), r"ops\.cast\(…, dtype='float64'\)"),
        (lambda ops, h: ops.unsqueeze(h, axis=1), r"carry\.h .* \(2,\) float64 but leaves it as \(2, 1\) float64"),
        (lambda ops, h: ops.concat([h, h]), r"leaves it as \(4,\) float64, .* give it the shape \(2,\)"),
    ],
)
def test_a_carry_that_changes_its_type(returned: Any, said: str) -> None:
    def program(ops: Any, h: Any) -> Any:
        return ops.scan(lambda ops, c, _: ({"h": returned(ops, c["h"])}, None), {"h": h}, None, length=2)[0]

    assert re.search(said, refused(program, np.zeros(2)))


def test_a_carry_that_changes_its_structure() -> None:
    def program(ops: Any, h: Any) -> Any:
        return ops.scan(lambda ops, c, _: ({"g": c["h"]}, None), {"h": h}, None, length=2)[0]

    assert "must return a carry built like the one it gets, but h is missing" in refused(program, np.zeros(2))


def test_a_body_that_returns_no_pair() -> None:
    message = refused(lambda ops, x: ops.scan(lambda ops, c, x: c, zero(ops), x), np.zeros(3), error=ProgramError)
    assert "returns a pair (carry, y), with y None if nothing is stacked, not a Variable" in message


def test_xs_that_disagree() -> None:
    def program(ops: Any, a: Any, b: Any) -> Any:
        return ops.scan(lambda ops, c, x: (ops.add(c, ops.mul(x["a"], x["b"])), None), zero(ops), {"a": a, "b": b})[0]

    assert "xs.a is (3,) but xs.b is (4,): the leading axes 3 and 4 differ" in refused(
        program, np.zeros(3), np.zeros(4)
    )
    assert "xs.b is a scalar: a scan runs over the leading axis" in refused(program, np.zeros(3), np.zeros(()))
    message = refused(lambda ops, x: ops.scan(add, zero(ops), x, length=2)[0], np.zeros(3))
    assert "length is 2 but xs is (3,)" in message
    assert "give length=" in refused(lambda ops: ops.scan(add, zero(ops), None))
    assert "length must be at least 0 but is -1" in refused(lambda ops: ops.scan(add, zero(ops), None, length=-1))
    assert "length must be an integer" in refused(lambda ops: ops.scan(add, zero(ops), None, length=2.5))


def test_an_error_of_an_op_in_the_body_names_its_line() -> None:
    def program(ops: Any, w: Any, xs: Any) -> Any:
        def step(ops: Any, h: Any, x: Any) -> Any:
            return ops.region("cell", lambda ops: ops.linear(w, None, x)), None

        return ops.scan(step, ops.full(shape=(3,), value=0.0), xs)[0]

    with pytest.raises(ShapeError, match=r"linear at .*test_scan_errors\.py:\d+ \(cell\)") as caught:
        run(program, np.zeros((3, 4)), np.zeros((2, 5)))
    assert caught.value.source is not None and "ops.linear(w" in caught.value.source.text


def out_of_range(ops: Any, table: Any, indices: Any) -> Any:
    def step(ops: Any, total: Any, row: Any) -> Any:
        def look_up(ops: Any, total: Any, i: Any) -> Any:
            found = ops.region("look up", lambda ops: ops.gather_vec(table, i))  # the line that fails
            return ops.add(total, found), None

        return ops.scan(look_up, total, row)[0], None

    return ops.scan(step, zero(ops), indices)[0]


@pytest.mark.parametrize("derive", [opstage.run, opstage.value_and_grad])
def test_an_error_while_the_loop_runs_names_the_line_in_the_innermost_body(derive: Any) -> None:
    with pytest.raises(RangeError, match=r"gather_\w+ at .*test_scan_errors\.py:\d+ \(look up\)") as caught:
        derive(out_of_range, np.zeros(3), np.array([[0, 1], [2, 3]]), options=FLOAT64)
    assert caught.value.source is not None and "the line that fails" in caught.value.source.text


def roots(ops: Any, x: Any, xs: Any) -> Any:
    def step(ops: Any, c: Any, x: Any) -> Any:
        root = ops.region("cell", lambda ops: ops.sqrt(ops.sub(c, x)))  # the root
        return root, None

    return ops.scan(step, x, xs)[0]


@pytest.mark.parametrize(
    ("x", "xs", "said"),
    [
        (
            1.0,
            [0.5, 2.0],
            r"sqrt at .*test_scan_errors.py:\d+ \(cell\): sqrt gave nan at index \(\) .*, in the op numbered 2",
        ),
        (1.0, [0.0, 1.0], r"test_scan_errors.py:\d+ \(cell\): \w+ gave inf .*, in the backward pass of the op .* 2"),
    ],
)
def test_an_anomaly_in_the_body_names_its_line(x: float, xs: list[float], said: str) -> None:
    """Both in a forward and in a backward loop."""
    watch = AnomalyWatch(NumpyOps(FLOAT64))

    def base(ops: Any, x: Any, xs: Any) -> tuple[Any, ...]:
        value, (grad,) = value_and_grad(ops, roots, x, xs)
        return value, grad

    with pytest.raises(AnomalyError, match=said) as caught:
        watch.execute(base, (np.array(x), np.array(xs)))
    assert caught.value.source is not None and "# the root" in caught.value.source.text


def test_the_watch_numbers_ops_as_all_interpreters_do() -> None:
    places = []

    def base(ops: Any, x: Any, xs: Any) -> tuple[Any, ...]:
        last = roots(ops, x, xs)
        places.append((ops.cursor.ordinal, ops.cursor.region.name))
        return (last,)

    for ops in (NumpyOps(FLOAT64), AnomalyWatch(NumpyOps(FLOAT64))):
        ops.execute(base, (np.array(9.0), np.array([0.0, 1.0])))
    assert places == [(3, ""), (3, "")]


def test_refs_of_the_body_stay_in_it() -> None:
    leaked: list[Any] = []

    def program(ops: Any, x: Any) -> Any:
        def step(ops: Any, c: Any, x: Any) -> Any:
            leaked.append(ops.exp(x))
            return c, None

        ops.scan(step, zero(ops), x)
        return ops.exp(leaked[-1])

    with pytest.raises(ProgramError, match=r"a ref of the body of a scan.* was used with ops from outside of it"):
        run(program, np.zeros(3))
    with pytest.raises(ProgramError, match="used after the body was traced; return it from the body"):
        _ = leaked[-1] + 1.0

    with pytest.raises(ProgramError, match="the body has ops of its own, its first argument"):
        run(lambda ops, x: ops.scan(lambda _, c, x: (ops.add(c, x), None), zero(ops), x)[0], np.zeros(3))


# Constants inside of loops and branches: of the dtype that is asked for, whatever the array comes in, and copies ------

VALUES: dict[str, tuple[Any, str | None, str]] = {
    "list of ints": ([1, 2, 3], "int32", "int32"),
    "list of floats": ([0.1, 0.2, 0.3], None, "float"),
    "float64": (np.array([0.1, 0.2, 0.3]), None, "float"),
    "float32": (np.array([0.1, 0.2, 0.3], np.float32), None, "float"),
    "bytes": (np.array([1, 2, 200], np.uint8), "int64", "int64"),
    "other order of bytes": (np.array([1, 2, 3], ">i4"), "int32", "int32"),
    "every second": (np.arange(6.0)[::2], None, "float"),
    "column order": (np.asfortranarray(np.arange(6.0).reshape(2, 3)), None, "float"),
    "ints as floats": ([1, 2, 3], "float", "float"),
    "booleans": ([True, False, True], "bool", "bool"),
    "number": (0.1, None, "float"),
}
BODIES = ("scan", "cond", "while_loop", "scan in scan")


def program(body: str, value: Any, dtype: str | None) -> Any:
    """The constant, and its own double, made in such a body."""

    def made(ops: Any) -> Any:
        given = {} if dtype is None else {"dtype": ops.dtype if dtype == "float" else dtype}
        const = ops.const(value, **given)
        return const, ops.logical_not(const) if const.dtype == bool else ops.add(const, const)

    def call(ops: Any, x: Any) -> Any:
        if body == "cond":
            return ops.cond(ops.less(x, 1.0), made, lambda ops: made(ops))
        if body == "while_loop":
            start = optree.tree_map(lambda ref: ops.full(shape=ref.shape, value=0, dtype=ref.dtype), made(ops))
            step = lambda ops, c: (ops.add(c[0], ops.const(1)), made(ops))  # noqa: E731
            _, found = ops.while_loop(lambda ops, c: ops.less(c[0], 2), step, (ops.const(0), start), max_iterations=3)
            return found
        if body == "scan in scan":
            inner = lambda ops, c, _: (c, ops.scan(lambda ops, c, _: (c, made(ops)), c, None, length=1)[1])  # noqa: E731
            return optree.tree_map(lambda ref: ref[0, 0], ops.scan(inner, x, None, length=2)[1])
        return optree.tree_map(lambda ref: ref[1], ops.scan(lambda ops, c, _: (c, made(ops)), x, None, length=2)[1])

    return call


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("body", BODIES)
def test_constants_are_what_was_asked_for(body: str, name: str) -> None:
    value, dtype, kind = VALUES[name]
    for precision in ("float32", "float64"):
        wanted = np.asarray(value).astype(precision if kind == "float" else kind)
        double = ~wanted if kind == "bool" else wanted + wanted
        for backend in ("eager", "compiled"):
            options = Options(dtype=precision, backend=backend)
            found = opstage.run(program(body, value, dtype), np.float64(0.5), options=options)
            for array, right in zip(found, (wanted, double)):
                assert array.dtype == right.dtype, (backend, precision)
                np.testing.assert_array_equal(array, right)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_body_keeps_a_copy(backend: str) -> None:
    held = np.ones(3)

    def call(ops: Any, x: Any) -> Any:
        def step(ops: Any, c: Any, _: Any) -> Any:
            const = ops.const(held)
            held[:] = 7
            return ops.add(c, const), ()

        held[:] = 1
        return ops.scan(step, x, None, length=2)[0]

    assert opstage.run(call, np.zeros(3), options=Options(backend=backend)).tolist() == [2, 2, 2]


def test_recorded_bodies_hold_constants_in_their_dtypes() -> None:
    def bodies(body: Any) -> Any:
        yield body
        for equation in body.equations:
            for static in equation.static.values():
                for each in static if isinstance(static, tuple) else (static,):
                    if hasattr(each, "equations"):
                        yield from bodies(each)

    for body in BODIES:
        for value, dtype, _ in VALUES.values():
            graph = opstage.record(program(body, value, dtype), opstage.Spec(""))
            for each in bodies(graph.body):
                for constant in each.constants:
                    assert constant.value.dtype == constant.type.dtype and constant.value.shape == constant.type.shape
