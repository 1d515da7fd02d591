"""What cond, switch and while_loop refuse, and what they say: both sides, both lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.ops.errors import DtypeError, ProgramError, RangeError, ShapeError

X = np.ones((2, 3), np.float32)


def said(program: Any, *args: Any, error: type[Exception] = ShapeError) -> str:
    with pytest.raises(error) as caught:
        opstage.run(program, *args)
    return str(caught.value)


def test_branches_of_other_shapes_show_both_with_their_lines() -> None:
    def program(ops: Any, x: Any) -> Any:
        def one(ops: Any) -> Any:
            return ops.sum(x)  # the one

        def other(ops: Any) -> Any:
            return ops.tanh(x)  # the other

        return ops.cond(ops.sum(x) > 0.0, one, other)

    with open(__file__) as file:
        lines = file.read().splitlines()
    one, other = (next(i for i, line in enumerate(lines, 1) if line.endswith(c)) for c in ("# the one", "# the other"))
    found = said(program, X)
    assert f"the result is () float32 from true_fn (tests/control/test_control_errors.py:{one})" in found
    assert f"but (2, 3) float32 from false_fn (tests/control/test_control_errors.py:{other})" in found
    assert found.startswith("cond at ")


def test_sizes_with_names_must_be_provably_equal() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return ops.cond(ops.sum(x) > 0.0, lambda ops: x * 2.0, lambda ops: y)

    report = opstage.check(program, Spec("N 3"), Spec("M 3"))
    assert "(N, 3) float32 from true_fn" in str(report) and "(M, 3) float32 from false_fn" in str(report)
    assert 'add where=["M == N"]' in str(report)
    assert opstage.check(program, Spec("N 3"), Spec("N 3")).ok

    def halves(ops: Any, x: Any) -> Any:
        """Proved, not guessed: N + N is 2·N."""
        return ops.cond(
            ops.sum(x) > 0.0, lambda ops: ops.concat([x, x]), lambda ops: ops.full(shape=(2 * x.shape[0],), value=1.0)
        )

    assert opstage.check(halves, Spec("N")).ok


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        (
            lambda ops, x: ops.cond(ops.sum(x) > 0.0, lambda ops: x, lambda ops: ops.cast(x, dtype="float64")),
            ShapeError,
            "cast one with ops.cast",
        ),
        (
            lambda ops, x: ops.cond(ops.sum(x) > 0.0, lambda ops: (x, x), lambda ops: x),
            ShapeError,
            "must give results built alike",
        ),
        (
            lambda ops, x: ops.cond(ops.sum(x), lambda ops: x, lambda ops: x),
            DtypeError,
            "pred must be a boolean scalar",
        ),
        (lambda ops, x: ops.cond(x > 0.0, lambda ops: x, lambda ops: x), ShapeError, "must be a scalar but is"),
        (lambda ops, x: ops.cond(ops.sum(x) > 0.0, x, lambda ops: x), ProgramError, "true_fn of a cond must be a func"),
        (lambda ops, x: ops.cond(ops.sum(x) > 0.0, lambda ops: (), lambda ops: ()), ShapeError, "at least one tensor"),
        (lambda ops, x: ops.cond(True, lambda ops: x, lambda ops: x), ProgramError, "ops.const"),
        (lambda ops, x: ops.switch(ops.sum(x) > 0.0, [lambda ops: x] * 2), DtypeError, "call ops.cond"),
        (lambda ops, x: ops.switch(ops.sum(x), [lambda ops: x] * 2), ShapeError, "chooses by an integer scalar"),
        (lambda ops, x: ops.switch(ops.argmax(x), []), ProgramError, "a tuple or list of functions"),
        (lambda ops, x: ops.switch(ops.const(0), lambda ops: x), ProgramError, "a tuple or list of functions"),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(c), lambda ops, c: c, x),
            ShapeError,
            r"cond of a while_loop must give one boolean scalar, not \(\) float32",
        ),
        (lambda ops, x: ops.while_loop(lambda ops, c: c > 0.0, lambda ops, c: c, x), ShapeError, "one boolean scalar"),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(c) > 0.0, lambda ops, c: ops.sum(c), x),
            ShapeError,
            r"the carry comes into the body as \(2, 3\) float32 but leaves it as \(\) float32",
        ),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(c) > 0.0, lambda ops, c: (c, c), x),
            ShapeError,
            "a carry built like the one it gets",
        ),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(x) > 0.0, lambda ops, c: c, ()),
            ShapeError,
            "carries at least one tensor",
        ),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(c) > 0.0, lambda ops, c: c, x, max_iterations=-1),
            ShapeError,
            "max_iterations must be at least 0",
        ),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(c) > 0.0, lambda ops, c: c, x, max_iterations=1.5),
            ShapeError,
            "max_iterations",
        ),
        (lambda ops, x: ops.while_loop(True, lambda ops, c: c, x), ProgramError, "cond of a while_loop must be a func"),
    ],
)
def test_errors(program: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        opstage.run(program, X)


def test_ops_from_outside_and_refs_from_inside_are_refused() -> None:
    def outside(ops: Any, x: Any) -> Any:
        return ops.cond(ops.sum(x) > 0.0, lambda _: x, lambda inner: ops.tanh(inner.exp(x)))

    kept: list[Any] = []

    def inside(ops: Any, x: Any) -> Any:
        def branch(ops: Any) -> Any:
            kept.append(ops.exp(x))
            return kept[-1]

        return ops.cond(ops.sum(x) > 0.0, branch, branch) + kept[-1]

    for program, message in ((outside, "was used with ops from outside of it"), (inside, "after the body was traced")):
        with pytest.raises(ProgramError, match=message):
            opstage.run(program, X)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_an_error_in_a_branch_or_an_iteration_names_its_line(backend: Any) -> None:
    def program(ops: Any, x: Any, i: Any) -> Any:
        def looked_up(ops: Any) -> Any:
            return ops.gather_rows(x, i)  # here

        def body(ops: Any, c: Any) -> Any:
            return ops.cond(ops.sum(x) > 0.0, looked_up, lambda ops: c)

        return ops.while_loop(lambda ops, c: ops.sum(c) < 100.0, body, x, max_iterations=3)

    with open(__file__) as file:
        line = next(i for i, line in enumerate(file.read().splitlines(), 1) if line.endswith("# here"))
    with pytest.raises(RangeError) as caught:
        opstage.run(program, X, np.array([0, 7]), options=Options(backend=backend))
    assert f"test_control_errors.py:{line}" in str(caught.value)
