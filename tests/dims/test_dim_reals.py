"""Exact reals in dims against sympy at thirty digits, and against Python's fractions."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import strategies as st

from opstage.ops.dims import (
    UNKNOWN,
    DimFloat,
    DimScope,
    MissingSizeError,
    SymbolicDimError,
    UndecidedDimError,
    UnknownDimError,
    evaluate,
    prod,
    ratio,
    rsqrt,
)
from opstage.ops.errors import ShapeError, UsageError
from tests.dims.dim_cases import dims, each, sized

NAMES = ("A", "B", "C")
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}

# A real is a name, a number, (operation, left, right) or ("**", base, exponent). Roots are taken of positive ones only.
numbers = st.sampled_from((1, 2, 3, 12, Fraction(1, 3), Fraction(9, 4), 0.5, 0.1, 1e-5))
positive = st.recursive(
    st.sampled_from(NAMES) | numbers,
    lambda inner: (
        st.tuples(st.sampled_from("+*/"), inner, inner)
        | st.tuples(st.just("**"), inner, st.sampled_from((-2, -1, 2, -0.5, 0.5, 1.5)))
    ),
    max_leaves=6,
)
reals = st.recursive(positive, lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner), max_leaves=3)
values = st.fixed_dictionaries({name: st.integers(1, 50) for name in NAMES})


def compute(expression: Any, env: dict[str, Any], number: Callable[[Any], Any]) -> Any:
    if isinstance(expression, str):
        return env[expression]
    if not isinstance(expression, tuple):
        return number(expression)
    operation, left, right = expression
    base = compute(left, env, number)
    if operation == "**":
        return base ** (number(right) if number is exactly else right)
    return OPERATIONS[operation](base, compute(right, env, number))


def exactly(value: int | float | Fraction) -> sympy.Rational:
    return sympy.Rational(Fraction(value).numerator, Fraction(value).denominator)


@sized
def test_reals_evaluate_to_sympy_s_values(count: int) -> None:
    each(count, _evaluates_to_sympy_s_value, reals, st.lists(values, min_size=2, max_size=2))


def _evaluates_to_sympy_s_value(expression: Any, envs: list[dict[str, int]]) -> None:
    scope = DimScope()
    try:
        real = compute(expression, {name: scope.dim(name) for name in NAMES}, lambda value: value)
    except (
        ShapeError,
        ZeroDivisionError,
    ):  # a difference that cancelled to 0 or below was divided by or put under a root
        return
    for env in envs:
        expected = compute(expression, {name: sympy.Integer(value) for name, value in env.items()}, exactly)
        size = max(abs(float(part)) for part in sympy.Add.make_args(sympy.expand(expected))) if expected else 1.0
        assert math.isclose(evaluate(real, env), float(expected), rel_tol=1e-13, abs_tol=1e-12 * size)


@sized
def test_rational_expressions_round_once(count: int) -> None:
    leaves = st.sampled_from((*NAMES, 2, Fraction(1, 3)))
    each(count, _rounds_once, st.recursive(leaves, lambda x: st.tuples(st.sampled_from("+*/"), x, x)), values)


def _rounds_once(expression: Any, env: dict[str, int]) -> None:
    scope = DimScope()
    number: Callable[[Any], Any] = Fraction
    real = compute(expression, {name: scope.dim(name) for name in NAMES}, number)
    exact = compute(expression, {name: Fraction(value) for name, value in env.items()}, number)
    assert evaluate(real, env) == (float(exact) if isinstance(real, DimFloat) else exact)


def test_canonical_forms_are_one_object() -> None:
    _, n, m, h = dims("N M H")
    assert (n - 1) / n is 1 - 1 / n
    assert (n * m + m) / (n + 1) is ratio(m, 1)
    assert 1 / (1 + 1 / n) is n / (n + 1)
    assert ratio(n * h, h) is ratio(n, 1)
    assert rsqrt(4 * n) is 1 / (2 * n**0.5)
    assert rsqrt(2 * n) * rsqrt(8 * n) is 1 / (4 * n / 1)
    assert rsqrt(n) * rsqrt(n) is 1 / n
    assert (1 + n**0.5) ** -1 is 1 / (1 + n**0.5)
    assert 1 / n is 2 / (2 * n) and 1 / n is not 1 / m and (1 / n) == (2 / (2 * n)) and (1 / n) != 1 / n + 1


def test_constants_are_fractions() -> None:
    _, n = dims("N")
    for constant, expected in [
        (n / n, Fraction(1)),
        ((n - 1) / n + 1 / n, Fraction(1)),
        (n / (n + 1) + 1 / (n + 1), Fraction(1)),
        ((n - 1) / n * (n / (n - 1)), Fraction(1)),
        (ratio(n, 2) * (1 / n), Fraction(1, 2)),
        (n * 0.0, Fraction(0)),
        (rsqrt(n) * n**0.5, Fraction(1)),
        (1 / n - 1 / n, Fraction(0)),
        (0.5 * (n / n), 0.5),
    ]:
        assert not isinstance(constant, DimFloat) and constant == expected
    assert isinstance(n / n, Fraction)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda n, h: 1 / n, "1/N"),
        (lambda n, h: 3 * n / (2 * h), "3*N/(2*H)"),
        (lambda n, h: (n - 1) / n, "1 - 1/N"),
        (lambda n, h: n / (n - 1), "N/(N - 1)"),
        (lambda n, h: 1 / h**0.5, "1/sqrt(H)"),
        (lambda n, h: rsqrt(n + h), "1/sqrt(H + N)"),
        (lambda n, h: rsqrt(n // h), "1/sqrt(N//H)"),
        (lambda n, h: rsqrt(2 * n), "sqrt(2)/(2*sqrt(N))"),
        (lambda n, h: 0.1 * n, "0.1*N"),
        (lambda n, h: 1e-5 + 1 / n, "1e-05 + 1/N"),
        (lambda n, h: -(1 / n), "-1/N"),
        (lambda n, h: (n + 1) ** 1.5, "sqrt(N + 1)*N + sqrt(N + 1)"),
        (lambda n, h: 1 / (1 + n**0.5), "1/(sqrt(N) + 1)"),
        (lambda n, h: n**-2, "1/N**2"),
    ],
)
def test_text(make: Callable[[Any, Any], Any], text: str) -> None:
    scope = DimScope()
    real = make(scope.dim("N"), scope.dim("H"))
    assert str(real) == text and repr(real) == text and f"{real:>20}" == f"{text:>20}"


def test_ratio_and_rsqrt_of_ints() -> None:
    assert ratio(3, 6) == Fraction(1, 2) and isinstance(ratio(3, 6), Fraction)
    assert rsqrt(64) == 0.125 and isinstance(rsqrt(64), float)
    assert math.isclose(rsqrt(3), 1 / math.sqrt(3), rel_tol=3e-16)
    for bad in (lambda: ratio(3, 0), lambda: rsqrt(0), lambda: rsqrt(-4)):
        with pytest.raises(ShapeError):
            bad()


def test_symbolic_and_plain_sizes_round_alike() -> None:
    d = DimScope().dim("D")
    for size in range(1, 300):
        assert evaluate(rsqrt(d), {"D": size}) == rsqrt(size)
        assert evaluate(ratio(1, d), {"D": size}) == float(ratio(1, size))


def test_mean_scale_of_a_shape() -> None:
    scope = DimScope()
    shape = (scope.dim("B"), scope.dim("T"), 768)
    scale = ratio(1, prod(shape))
    assert str(scale) == "1/(768*B*T)"
    assert evaluate((scale, 0.5, "mean"), {"B": 2, "T": 3}) == (1 / 4608, 0.5, "mean")


def test_values_that_do_not_exist() -> None:
    _, n = dims("N", "N >= 0")
    with pytest.raises(ShapeError, match="1/N is undefined where N is 0"):
        evaluate(1 / n, {"N": 0})
    with pytest.raises(ShapeError, match=r"sqrt\(3 - N\) is undefined where \(3 - N\) is -4"):
        evaluate((3 - n) ** 0.5, {"N": 7})
    with pytest.raises(ShapeError, match="the square root of -N is not real"):
        (-n) ** 0.5
    with pytest.raises(ShapeError, match="divided by 0"):
        (1 / n) / (n - n)
    with pytest.raises(MissingSizeError, match="dim N"):
        evaluate(1 / n, {"M": 1})
    assert evaluate((3 - n) ** 0.5, {"N": 2}) == 1.0


def test_a_symbolic_real_is_no_number() -> None:
    x = 1 / DimScope().dim("N")
    assert isinstance(x, DimFloat)
    for use in (float, int, math.sqrt, math.floor, math.exp):
        with pytest.raises(SymbolicDimError, match="1/N is symbolic"):
            use(x)
    with pytest.raises(UndecidedDimError, match="whether 1/N is 0 is not decided"):
        bool(x)
    with pytest.raises(TypeError, match="not supported between"):
        operator.lt(x, 3)
    with pytest.raises(TypeError, match="unsupported operand"):
        operator.add(x, "1")
    with pytest.raises(AttributeError, match="immutable"):
        x.terms = {}
    assert copy.deepcopy(x) is x and copy.copy(x) is x


def test_only_exact_operands_are_taken() -> None:
    _, n = dims("N")
    with pytest.raises(UsageError, match="cannot be combined exactly with inf"):
        n * math.inf
    with pytest.raises(UsageError, match="cannot be combined exactly with nan"):
        math.nan / n
    with pytest.raises(UsageError, match="an exponent that is a multiple of 1/2"):
        n**0.3
    with pytest.raises(UsageError, match="come from different scopes"):
        1 / n + 1 / DimScope().dim("M")
    assert np.float64(0.5) * n is 0.5 * n and np.int64(3) / n is 3 / n


def test_unknown_absorbs() -> None:
    n = DimScope().dim("N")
    for real in (
        ratio(UNKNOWN, 3),
        ratio(n, UNKNOWN),
        1 / n + UNKNOWN,
        rsqrt(UNKNOWN),
        UNKNOWN**-0.5,
        UNKNOWN / 2,
        1 / n * ratio(1, UNKNOWN),
        ratio(1, UNKNOWN) * (1 / n),
        -ratio(1, UNKNOWN),
        0.5 * ratio(1, UNKNOWN),
    ):
        assert isinstance(real, DimFloat) and str(real) == "?"
        with pytest.raises(UnknownDimError):
            evaluate(real, {"N": 1})
