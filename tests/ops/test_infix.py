"""Operators on refs, and numbers in place of tensors: as in NumPy, never truncated, on every interpreter."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Session, Spec
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
        (lambda ops, x: f"{x:.3f}", "the number of a ref is not available inside a program"),
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
    (finding,) = opstage.check(lambda ops, x, ys: x @ ys[0], opstage.Spec(x), (opstage.Spec(y),)).errors
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


# Numbers in place of tensors in pointwise ops and in select: of the tensor's dtype, never truncated, everywhere -------

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


def same_with_signs(actual: Any, expected: Any) -> None:
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
            same_with_signs(right, OPS[op](X, np.float64(number)))
            same_with_signs(left, OPS[op](np.float64(number), X))


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
        same_with_signs(found, wanted)


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
