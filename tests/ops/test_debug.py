"""`debug.print`: it prints once, in order, where the program runs, and changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, debug

BOTH = pytest.mark.parametrize("options", [Options(), Options(backend="compiled")], ids=["eager", "compiled"])
X = np.array([1.0, 2.0, 6.0])


def lines_of(call: Any) -> tuple[list[str], Any]:
    lines: list[str] = []
    with debug.redirect(lines.append):
        result = call()
    return lines, result


@BOTH
def test_what_is_shown_and_in_which_order(options: Options) -> None:
    def program(ops: Any, x: Any) -> Any:
        debug.print(ops, ops.exp(x * 1000.0), "unread")
        h = debug.print(ops, x * 2.0, "h")
        debug.print(ops, h, "values", values=True)
        return ops.sum(debug.print(ops, h > 3.0, "mask").shape and h)

    expected = [
        "unread: (3,) float32 none is finite, 0 nan, 3 infinite (step 0)",
        "h: (3,) float32 min 2, mean 6, max 12 (step 0)",
        "values: (3,) float32 [ 2.,  4., 12.] (step 0)",
        "mask: (3,) bool 2 of 3 are true (step 0)",
    ]
    for _ in range(2):
        assert lines_of(lambda: opstage.run(program, X, options=options)) == (expected, 18.0)


@BOTH
def test_lines_keep_the_order_of_the_program(options: Options) -> None:
    def loss(ops: Any, x: Any, w: Any) -> Any:
        h = debug.print(ops, ops.matmul(x, w), "h")
        y = debug.print(ops, ops.tanh(h), "y")
        debug.print(ops, ops.exp(y), "unread")
        debug.print(ops, x, "x")
        return ops.sum(debug.print(ops, ops.mul(y, y), "q", gradient=True))

    args = np.ones((3, 4)), np.ones((4, 2))
    lines, _ = lines_of(lambda: opstage.value_and_grad(loss, *args, wrt=(0, 1), options=options))
    assert [line.split(":")[0] for line in lines] == ["h", "y", "unread", "x", "q", "grad q"]


@BOTH
def test_gradients_loops_and_derivatives(options: Options) -> None:
    def loss(ops: Any, x: Any) -> Any:
        def body(ops: Any, c: Any, e: Any) -> Any:
            return debug.print(ops, c * e, "c", gradient=True), None

        return ops.scan(body, ops.sum(x), ops.stack([x[0] + 1.0, x[0] + 2.0]))[0]

    lines, (value, gradient) = lines_of(lambda: opstage.value_and_grad(loss, X, options=options))
    assert lines[:2] == [
        "c: () float32 min 18, mean 18, max 18 (step 0, iteration 0)",
        "c: () float32 min 54, mean 54, max 54 (step 0, iteration 1)",
    ]
    plain = opstage.value_and_grad(lambda ops, x: ops.sum(x) * (x[0] + 1.0) * (x[0] + 2.0), X)
    assert value == plain[0] == 54
    np.testing.assert_allclose(gradient, plain[1])
    assert lines[2:] == [
        "grad c: () float32 min 1, mean 1, max 1 (step 0, iteration 1)",
        "grad c: () float32 min 3, mean 3, max 3 (step 0, iteration 0)",
    ]


@BOTH
def test_gradient_is_shown_and_bits_are_the_same(options: Options) -> None:
    def loss(ops: Any, x: Any, shown: bool = True) -> Any:
        h = ops.tanh(x)
        return ops.sum((debug.print(ops, h, "h", gradient=True) if shown else h) * h)

    lines, (value, gradient) = lines_of(lambda: opstage.value_and_grad(loss, X, options=options))
    assert [line.split(":")[0] for line in lines] == ["h", "grad h"]
    plain = opstage.value_and_grad(lambda ops, x: loss(ops, x, False), X, options=options)
    assert value.tobytes() == plain[0].tobytes() and gradient.tobytes() == plain[1].tobytes()
    assert [s.split(":")[0] for s in lines_of(lambda: opstage.hvp(loss, (X,), (X,), options=options))[0]][:1] == ["h"]


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_trainer_says_the_step(backend: str) -> None:
    trainer = opstage.scalar_trainer(
        lambda ops, p, x: ops.sum(debug.print(ops, p, "p") * x), X, Spec("3"), options=Options(backend=backend)
    )
    lines, _ = lines_of(lambda: [trainer.step(1.0, np.ones(3)) for _ in range(2)])
    assert lines == ["p: (3,) float32 min 1, mean 3, max 6 (step 0)", "p: (3,) float32 min 0, mean 2, max 5 (step 1)"]


def test_check_shows_named_sizes() -> None:
    lines, report = lines_of(lambda: opstage.check(lambda ops, x: debug.print(ops, x, "x"), Spec("N 3")))
    assert report.ok and lines == ["x: (N, 3) float32"]


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_session_shows(backend: str) -> None:
    session = opstage.Session(Options(backend=backend))

    lines, value = lines_of(lambda: session.get_value(debug.print(session, session.leaf(X) * 2.0, "h")))
    assert [line.split(" (step")[0] for line in lines] == ["h: (3,) float32 min 2, mean 6, max 12"]
    np.testing.assert_array_equal(value, 2 * X)


def test_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    opstage.run(lambda ops, x: debug.print(ops, x, "x"), X)
    assert capsys.readouterr().err == "x: (3,) float32 min 1, mean 3, max 6 (step 0)\n"


def test_print_in_a_session_refuses_the_gradient() -> None:
    session = opstage.Session()
    with pytest.raises(opstage.UsageError, match="argument gradient: not supported in a session"):
        debug.print(session, session.leaf(X), "h", gradient=True)


def test_names_of_the_last_release_warn_at_the_users_line_and_do_the_same() -> None:
    lines: list[str] = []
    with pytest.deprecated_call(match="is now opstage.debug.redirect") as redirected, debug.showing_to(lines.append):
        pass
    with debug.redirect(lines.append), pytest.deprecated_call(match="is now opstage.debug.print") as printed:
        opstage.run(lambda ops, x: debug.show(ops, x, "x"), X)
    assert lines == ["x: (3,) float32 min 1, mean 3, max 6 (step 0)"]
    assert [warning.filename for warning in (*redirected, *printed)] == [__file__] * 2


def test_refs_say_their_values_in_a_debugger() -> None:
    told: list[str] = []

    def program(ops: Any, x: Any) -> Any:
        told.append(repr(x * 2.0))
        return ops.sum(x)

    opstage.value_and_grad(program, X)
    opstage.hvp(program, (X,), (X,))
    opstage.check(program, Spec("N 3"))
    assert told[:2] == ["tensor (3,) float32 [ 2.,  4., 12.]"] * 2
    assert "(N, 3)" in told[2] and "float32" in told[2]
