"""Operators on refs do what they do on NumPy arrays, broadcasting included, whatever stands on the other side."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.ops.errors import DtypeError, ProgramError, ShapeError

FLOAT64 = Options(dtype="float64")
ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
COMPARISON = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
EVERY = ARITHMETIC | COMPARISON

SHAPES = [((), ()), ((3,), ()), ((), (2, 3)), ((3,), (2, 3)), ((2, 1), (1, 3)), ((4, 1, 3), (2, 1)), ((0, 3), (3,))]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape) + 0.5


CONSTANTS = [
    *(2, -1.5, True, Fraction(1, 2)),
    *(np.float64(0.5), np.float32(0.5), np.int32(2), np.int64(-1)),
    *(numbers(3), numbers(2, 1)),
]


def run(program: Callable[..., Any], *args: Any, options: Options = FLOAT64) -> Any:
    return opstage.run(program, *args, options=options)


def same(actual: Any, expected: Any) -> None:
    assert actual.shape == np.shape(expected)
    assert actual.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(actual, expected)


def test_round_is_to_even_and_what_has_no_meaning_says_so() -> None:
    x = np.array([0.5, 1.5, -2.5, 2.4])
    same(run(lambda ops, x: round(x), x), np.round(x))
    for program, message in (
        (lambda ops, x: round(x, 2), r"write ops.round\(x \* 10\*\*2\) / 10\*\*2"),
        (lambda ops, x: 1.0 in x, r"ops.reduce_any\(x == value\)"),
        (lambda ops, x: f"{x:.3f}", "a ref has no number inside a program"),
    ):
        with pytest.raises(ProgramError, match=message):
            run(program, x)


@pytest.mark.parametrize("symbol", EVERY)
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_two_refs_broadcast_as_in_numpy(symbol: str, a: Any, b: Any) -> None:
    f, x, y = EVERY[symbol], numbers(*a), numbers(*b, seed=1)
    same(run(lambda ops, x, y: f(x, y), x, y), f(x, y))
    same(run(lambda ops, x, y: f(x, y), y, x), f(y, x))


@pytest.mark.parametrize("symbol", EVERY)
@pytest.mark.parametrize("other", CONSTANTS, ids=lambda o: f"{type(o).__name__}{np.shape(o)}")
def test_constants_on_either_side(symbol: str, other: Any) -> None:
    f, x = EVERY[symbol], numbers(2, 3)
    plain = float(other) if isinstance(other, Fraction) else other
    same(run(lambda ops, x: f(x, other), x), f(x, plain))
    same(run(lambda ops, x: f(other, x), x), f(plain, x))


@pytest.mark.parametrize("other", [np.float64(0.1), np.float32(0.1), 0.1, Fraction(1, 10), np.full(3, 0.1)])
@pytest.mark.parametrize("symbol", ARITHMETIC)
def test_a_constant_never_widens_the_program(symbol: str, other: Any) -> None:
    for program in (lambda ops, x: ARITHMETIC[symbol](x, other), lambda ops, x: ARITHMETIC[symbol](other, x)):
        assert run(program, np.ones(3), options=Options()).dtype == np.float32


@pytest.mark.parametrize("symbol", ["+", "-", "*", "//", "%", *COMPARISON])
@np.errstate(divide="ignore")
def test_integers_stay_integers(symbol: str) -> None:
    f, i = EVERY[symbol], np.arange(-2, 3)
    same(run(lambda ops, i: f(i, 2), i), f(i, 2))
    same(run(lambda ops, i: f(2, i), i), f(2, i))
    same(run(lambda ops, i, j: f(i, j), i, i[::-1].copy()), f(i, i[::-1]))


@pytest.mark.parametrize("symbol", EVERY)
@pytest.mark.parametrize("other", [0.5, 2.0, Fraction(1, 2), np.float32(0.5)])
def test_a_float_is_never_truncated_to_meet_an_integer(symbol: str, other: Any) -> None:
    for program in (lambda ops, i: EVERY[symbol](i, other), lambda ops, i: EVERY[symbol](other, i)):
        with pytest.raises(DtypeError, match=r"int64|float tensor"):
            run(program, np.arange(3))


def test_quotient_and_rest_of_a_division() -> None:
    x = np.array([-7.5, -0.0, 7.5, 3.0])
    for other in (2, -2.5):
        for found, wanted in zip(run(lambda ops, x: divmod(x, other), x), divmod(x, other)):
            same(found, wanted)
    for found, wanted in zip(run(lambda ops, x: divmod(10, x), x + 1), divmod(10, x + 1)):
        same(found, wanted)
    grad = opstage.value_and_grad(lambda ops, x: ops.sum(x % 2 + x // 2), x, options=FLOAT64)[1]
    np.testing.assert_array_equal(grad, np.ones(4))


def test_masks_are_no_numbers() -> None:
    mask = np.array([True, False])
    with pytest.raises(DtypeError, match="bool"):
        run(lambda ops, m: m + 1, mask)
    with pytest.raises(DtypeError, match="bool"):
        run(lambda ops, m: 2.0 * m, mask)
    same(run(lambda ops, m: m == True, mask), mask)  # noqa: E712


def test_unary_and_powers() -> None:
    x = numbers(2, 3)
    same(run(lambda ops, x: -x, x), -x)
    same(run(lambda ops, x: abs(x), x), np.abs(x))
    for exponent in (2, 3, -1, 0, 0.5, np.int64(3), np.float64(1.5)):
        np.testing.assert_allclose(run(lambda ops, x: abs(x) ** exponent, x), np.abs(x) ** float(exponent), rtol=1e-14)
    grad = opstage.value_and_grad(lambda ops, x: ops.sum(x ** np.int64(3)), x, options=FLOAT64)[1]
    np.testing.assert_allclose(grad, 3 * x**2, rtol=1e-14)


def test_powers_of_tensors() -> None:
    x, y = np.array([[0.5], [2.0]]), np.array([-1.0, 0.5, 3.0])
    cases: list[Callable[[Any, Any], Any]] = [
        lambda x, y: x**y,
        lambda x, y: 2**y,
        lambda x, y: 0.5**y,
        lambda x, y: np.full(3, 2.0) ** y,
        lambda x, y: x ** np.array([1.0, 2.0, 0.0]),
    ]
    for f in cases:
        np.testing.assert_allclose(run(lambda ops, x, y, f=f: f(x, y), x, y), f(x, y), rtol=1e-14)
    slope = opstage.value_and_grad(lambda ops, y: ops.sum(2**y), y, options=FLOAT64)[1]
    np.testing.assert_allclose(slope, np.log(2) * 2**y, rtol=1e-14)
    with pytest.raises(DtypeError, match=r"^\*\* at .*float tensor"):
        run(lambda ops, i: 2**i, np.arange(3))
    with pytest.raises(ShapeError, match=r"^\*\* at .*x is \(3,\) but y is \(2,\)"):
        run(lambda ops, y: y ** y[:2], y)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 2)),
        ((5, 1, 2, 3), (4, 3, 2)),
    ],
)
def test_matmul_is_numpys(a: Any, b: Any) -> None:
    x, y = numbers(*a), numbers(*b, seed=1)
    same(run(lambda ops, x, y: x @ y, x, y), x @ y)
    same(run(lambda ops, x: x @ y, x), x @ y)
    same(run(lambda ops, y: x @ y, y), x @ y)
    weights = numbers(*(x @ y).shape, seed=2)
    program = lambda ops, x, y: ops.sum((x @ y) * weights)  # noqa: E731
    _, (dx, dy) = opstage.value_and_grad(program, x, y, wrt=(0, 1), options=FLOAT64)
    for grad, value, at in ((dx, x, 0), (dy, y, 1)):
        assert grad.shape == value.shape
        step = numbers(*value.shape, seed=3)
        moved = (step @ y if at == 0 else x @ step) * weights  # linear in each operand
        assert float(np.sum(grad * step)) == pytest.approx(float(np.sum(moved)))


def test_matmul_refuses_scalars_and_misfits() -> None:
    with pytest.raises(ShapeError, match=r"takes tensors of rank 1 or more but x is \(\), y is \(3,\)"):
        run(lambda ops, x, y: x @ y, np.ones(()), np.ones(3))
    with pytest.raises(
        ShapeError, match=r"^@ at .*test_infix.py:\d+: x is \(2, 3\) and y is \(2, 3\): x has 3 columns"
    ):
        run(lambda ops, x, y: x @ y, np.ones((2, 3)), np.ones((2, 3)))


def test_shapes_that_do_not_broadcast() -> None:
    for symbol, f in EVERY.items():
        with pytest.raises(ShapeError, match=r"x is \(2,\) but y is \(3,\): axis 0 has 2 and 3") as caught:
            run(lambda ops, x, y: f(x, y), np.ones(2), np.ones(3))
        assert caught.value.op == symbol
        assert caught.value.source is not None and caught.value.source.file == __file__, symbol


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_an_error_speaks_of_the_operator_as_it_was_written(backend: str) -> None:
    one, two = np.ones((5, 2, 3)), np.ones((4, 3, 2))
    cases: list[tuple[Callable[..., Any], str, str]] = [
        (lambda ops, x, y: x - ops.reduce_sum(y, axis=0), "-", "x is (5, 2, 3) but y is (3, 2): axis 1 has 2 and 3"),
        (lambda ops, x, y: one - y, "-", "x is (5, 2, 3) but y is (4, 3, 2): axis 0 has 5 and 4"),
        (lambda ops, x, y: x @ y, "@", "x is (5, 2, 3) but y is (4, 3, 2): axis 0 has 5 and 4"),
        (lambda ops, x, y: np.ones(3) @ x, "@", "x is (3,) and y is (5, 2, 3): x has 3 columns but y has 2 rows"),
        (lambda ops, x, y: ops.tanh(ops.broadcast_to(x, shape=(1,))), "broadcast_to", "x is (5, 2, 3) of rank 3"),
    ]
    for program, op, message in cases:
        with pytest.raises(ShapeError) as caught:
            run(program, one, two, options=Options(backend=backend, dtype="float64"))
        assert caught.value.op == op and caught.value.reason.startswith(message), caught.value
        (finding,) = opstage.check(program, one, two).errors
        assert (finding.op, finding.reason) == (op, caught.value.reason)


def test_what_the_framework_writes_in_infix_keeps_its_ops_names() -> None:
    with pytest.raises(ShapeError) as caught:
        run(lambda ops, x, y: ops.add(x, y), np.ones(2), np.ones(3))
    assert caught.value.op == "add"
    (finding,) = opstage.check(lambda ops, x, y: x * y, opstage.Spec("B N"), opstage.Spec("M")).errors
    assert finding.operands == ("x is x (B, N)", "y is y (M,)")
    assert len(finding.bindings) == 2 and finding.constraint == "M == N"


@pytest.mark.parametrize(
    ("x", "y", "fix"),
    [
        ("B 64", "10 64", "transpose ys[0]: ops.transpose2d(ys[0])"),
        ("A B 3", "A 4 3", "transpose ys[0]: ops.permute(ys[0], axes=(0, 2, 1))"),
        ("3", "4 3", "transpose ys[0]: ops.transpose2d(ys[0])"),
        ("3", "1 4", ""),  # a vector has no other way round
    ],
)
def test_a_fix_is_in_the_words_of_the_program(x: str, y: str, fix: str) -> None:
    def program(ops: Any, x: Any, ys: Any) -> Any:
        return x @ ys[0]

    (finding,) = opstage.check(program, opstage.Spec(x), (opstage.Spec(y),)).errors
    assert (finding.op, finding.fix) == ("@", fix)


def test_gradients_of_what_was_broadcast_are_summed() -> None:
    x, y = numbers(2, 1), numbers(3, seed=1)
    _, (dx, dy) = opstage.value_and_grad(lambda ops, x, y: ops.sum(x * y + x / y), x, y, wrt=(0, 1), options=FLOAT64)
    np.testing.assert_allclose(dx, np.full((2, 1), np.sum(y + 1 / y)), rtol=1e-13)
    np.testing.assert_allclose(dy, np.sum(x) - np.sum(x) / y**2, rtol=1e-13)


def test_refs_are_keys_by_identity() -> None:
    def program(ops: Any, x: Any) -> Any:
        y = x + 0.0
        found = {x: "x", y: "y"}
        assert found[x] == "x" and found[y] == "y" and len({x, y, x}) == 2
        return y

    same(run(program, np.ones(2)), np.ones(2))


def test_symbolic_dims_are_numbers_in_arithmetic() -> None:
    def mean(ops: Any, x: Any) -> Any:
        return ops.sum(x) / x.shape[0] + ops.sum(x * (1 / x.shape[0])) + x.shape[0] * ops.sum(x)

    assert opstage.check(mean, opstage.Spec("B")).ok
    assert float(run(mean, np.ones(4))) == 1 + 1 + 16
