"""Numbers in place of tensors in pointwise ops and in select: of the tensor's dtype, never truncated, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Session, Spec
from opstage.ops.errors import DtypeError, ProgramError, ShapeError

FLOAT64 = Options(dtype="float64")
COMPILED = FLOAT64.replace(backend="compiled")
X = np.array([-2.0, -0.0, 0.5, 1.0, np.nan, np.inf])

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
}
NUMBERS: list[Any] = [2, 0.5, -0.0, True, np.float32(0.5), np.float64(2), np.int32(1), np.int64(-1), Fraction(1, 2)]


def same(actual: Any, expected: Any) -> None:
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)
    if actual.dtype.kind == "f":  # of zeros, whose sign is theirs; that of a nan is nobody's
        np.testing.assert_array_equal(np.signbit(actual) & (actual == 0), np.signbit(expected) & (expected == 0))


@pytest.mark.parametrize("options", [FLOAT64, COMPILED], ids=["eager", "compiled"])
@pytest.mark.parametrize("op", OPS)
def test_on_either_side(op: str, options: Options) -> None:
    def program(ops: Any, x: Any) -> Any:
        do = getattr(ops, op)
        return [(do(x, number), do(number, x)) for number in NUMBERS]

    with np.errstate(all="ignore"):
        for number, (right, left) in zip(NUMBERS, opstage.run(program, X, options=options)):
            same(right, OPS[op](X, np.float64(number)))
            same(left, OPS[op](np.float64(number), X))


@pytest.mark.parametrize("options", [FLOAT64, COMPILED], ids=["eager", "compiled"])
def test_the_dtype_is_the_tensors(options: Options) -> None:
    def program(ops: Any, x: Any, i: Any, m: Any) -> Any:
        single = ops.cast(x, dtype="float32")
        return (
            *(ops.mul(single, 0.1), ops.maximum(0, i), ops.add(i, np.int8(3)), ops.logical_and(m, True)),
            *(ops.select(m, 0, i), ops.select(m, x, 1), ops.select(m, 0.0, single), ops.equal(m, False)),
            *(ops.select(m, 1, 0.5), ops.select(m, 1, 0), ops.select(m, True, False)),
        )

    i, m = np.array([-2, 0, 3, 4, 5, -6], np.int32), np.array([True, False] * 3)
    expected = [
        *(X.astype(np.float32) * np.float32(0.1), np.maximum(i, np.int32(0)), i + np.int32(3), m),
        *(np.where(m, np.int32(0), i), np.where(m, X, 1.0), np.where(m, np.float32(0), X.astype(np.float32)), ~m),
        *(np.where(m, 1.0, 0.5), np.where(m, 1, 0), m),
    ]
    for found, wanted in zip(opstage.run(program, X, i, m, options=options), expected, strict=True):
        same(found, wanted)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops, i, m: ops.add(i, 0.5), r"^add at .*: y is the number 0\.5 but x is int32; cast x with"),
        (lambda ops, i, m: ops.mul(2.0, i), r"^mul at .*: x is the number 2\.0 but y is int32; cast y"),
        (lambda ops, i, m: ops.minimum(i, np.inf), r"y is the number inf but x is int32"),
        (lambda ops, i, m: ops.maximum(i, 2**40), r"y is the number 1099511627776 but x is int32"),
        (lambda ops, i, m: ops.less(i, np.float32(0.5)), r"^less at .*: y is the number 0\.5"),
        (lambda ops, i, m: ops.select(m, i, 0.0), r"^select at .*: y is the number 0\.0 but x is int32"),
        (lambda ops, i, m: ops.equal(m, 1), r"y is the number 1 but x is bool; .*True or False"),
        (lambda ops, i, m: ops.logical_and(i, True), r"mask"),
    ],
)
def test_a_number_that_the_dtype_does_not_hold(call: Callable[..., Any], message: str) -> None:
    i, m = np.arange(3, dtype=np.int32), np.array([True, False, True])
    for options in (FLOAT64, COMPILED):
        with pytest.raises(DtypeError, match=message):
            opstage.run(call, i, m, options=options)
    (error,) = opstage.check(call, Spec("N", "int32"), Spec("N", "bool")).errors
    assert message.partition("at .*: ")[2].split(r"\.")[0].split(";")[0] in error.reason


def test_a_tensor_there_must_be() -> None:
    for call in (lambda ops, x: ops.add(1, 2), lambda ops, x: ops.select(True, x, 0.0), lambda ops, x: ops.add([x], 1)):
        with pytest.raises(ProgramError, match="where it needs a ref"):
            opstage.run(call, X)
    with pytest.raises(ShapeError, match="mask is"):
        opstage.run(lambda ops, x: ops.select(x[:2] < 1.0, x, 0.0), X)


def test_derivatives() -> None:
    def relu(ops: Any, x: Any) -> Any:
        return ops.sum(ops.mul(ops.select(ops.less(0, x), x, 0.0), ops.sub(3, x)))

    x, v = np.array([-1.0, 0.5, 2.0]), np.array([1.0, 2.0, 3.0])
    slope = np.where(x > 0, 3 - 2 * x, 0.0)
    for options in (FLOAT64, COMPILED):
        np.testing.assert_allclose(opstage.value_and_grad(relu, x, options=options)[1], slope, rtol=1e-14)
        np.testing.assert_allclose(opstage.jvp(relu, (x,), (v,), options=options)[1], slope @ v, rtol=1e-14)
        np.testing.assert_allclose(opstage.hvp(relu, (x,), (v,), options=options)[0], np.where(x > 0, -2 * v, 0.0))


def test_sizes_are_numbers() -> None:
    def program(ops: Any, x: Any) -> Any:
        n = x.shape[0]
        return ops.div(ops.maximum(x, n), n / 4)

    np.testing.assert_array_equal(opstage.run(program, np.array([1.0, 5.0]), options=FLOAT64), [4.0, 10.0])
    assert opstage.check(program, Spec("N")).ok


def test_in_loops_and_sessions() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.scan(lambda ops, c, row: (ops.maximum(ops.add(c, 1), row), ops.mul(c, 2)), ops.sum(x), x)

    x = np.array([7.0, 1.0, 30.0])
    for options in (FLOAT64, COMPILED):
        last, seen = opstage.run(program, x, options=options)
        np.testing.assert_array_equal((last, *seen), [41.0, 76.0, 78.0, 80.0])
    for options in (FLOAT64, COMPILED):
        session = Session(options)
        leaf = session.leaf(x)
        out = session.select(session.less(leaf, 5), 0.0, session.mul(leaf, 3))
        np.testing.assert_array_equal(session.get_value(out), [21.0, 0.0, 90.0])
        session.backward(session.sum(out))
        np.testing.assert_array_equal(session.grad(leaf), [3.0, 0.0, 3.0])
