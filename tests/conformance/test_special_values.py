"""Elementwise ops at signed zeros, infinities, nan and the ends of the integers: NumPy's or Python's result.

Every op runs on few elements, on many (machine code in vectors), and with either operand a number that the compiler
knows. Zeros are compared with their signs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import special

import opstage
from opstage import derived
from opstage.options import Options

INF = math.inf
FLOATS = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 6.0, 7.5, 1e-30, 1e30, INF]
FLOATS = [*FLOATS, *[-x for x in FLOATS], math.nan]
RTOL = {"float64": 1e-12, "float32": 2e-6}
MANY = 1 << 13
RUNS = [Options(), Options(backend="compiled"), Options(fast_kernels=False)]


def _sigmoid(x: Any) -> Any:
    return special.expit(x)


def _softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


UNARY: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(np, name) for name in ("abs", "sqrt", "exp", "log", "sin", "cos", "tanh", "floor", "ceil")},
    **{name: getattr(np, name) for name in ("trunc", "expm1", "log1p", "exp2", "log2", "log10", "tan", "sinh")},
    **{name: getattr(np, name) for name in ("cosh", "isnan", "isinf", "isfinite")},
    **{name: getattr(np, f"arc{name[1:]}") for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "neg": np.negative,
    "inv": np.reciprocal,
    "round": np.rint,
    "sign": lambda x: np.where(x == 0, x, np.sign(x)),
    "detach": lambda x: x,
    "erf": special.erf,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "log_sigmoid": lambda x: -_softplus(-x),
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "tanhshrink": lambda x: x - np.tanh(x),
    "relu": lambda x: np.where(x <= 0, 0, x),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardshrink": lambda x: np.where(np.abs(x) <= 0.5, 0, x),
    "leaky_relu": lambda x: np.where(x > 0, x, x * x.dtype.type(0.01)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mod": np.mod,
    "fmod": np.fmod,
    "floor_divide": np.floor_divide,
    "power": np.power,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
}
INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "maximum": max,
    "minimum": min,
    "mod": lambda x, y: x % y if y else 0,
    "fmod": lambda x, y: int(math.copysign(1, x)) * (abs(x) % abs(y)) if y else 0,
    "floor_divide": lambda x, y: x // y if y else 0,
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "neg": lambda x, _: -x,
    "abs": lambda x, _: abs(x),
    "sign": lambda x, _: (x > 0) - (x < 0),
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "equal": lambda x, y: x == y,
}


def assert_same(found: Any, expected: Any, rtol: float, what: str, *operands: Any) -> None:
    """Equal up to rtol; infinities, nan, and zeros with their signs, exactly."""
    if expected.dtype == bool:
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    with np.errstate(all="ignore"):
        same = (found == expected) & (np.signbit(found) == np.signbit(expected)) | np.isnan(found) & np.isnan(expected)
        same |= (expected != 0) & np.isfinite(expected) & (np.abs(found - expected) <= rtol * np.abs(expected))
    wrong = np.flatnonzero(~same)[:5]
    assert same.all(), [(what, *[x[i] for x in operands], found[i], expected[i]) for i in wrong]


def runs(dtype: str) -> Iterator[Options]:
    return iter([options.replace(dtype=dtype) for options in RUNS])


def pairs(values: Any) -> tuple[Any, Any]:
    x, y = np.meshgrid(values, values, indexing="ij")
    return x.ravel(), y.ravel()


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("op", UNARY)
def test_function_at_special_values_is_numpys(op: str, dtype: str) -> None:
    for x in (np.array(FLOATS, dtype), np.resize(np.array(FLOATS, dtype), MANY)):
        with np.errstate(all="ignore"):
            expected = np.asarray(UNARY[op](x))
        for options in runs(dtype):
            found = opstage.run(lambda ops, x: getattr(ops, op)(x), x, options=options)
            assert_same(found, expected, RTOL[dtype], f"{op} {options.backend}", x)


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("op", BINARY)
def test_binary_op_at_special_values_is_numpys(op: str, dtype: str) -> None:
    few = pairs(np.array(FLOATS, dtype))
    for x, y in (few, tuple(np.resize(side, MANY) for side in few)):
        with np.errstate(all="ignore"):
            expected = BINARY[op](x, y)
        for options in runs(dtype):
            found = opstage.run(lambda ops, x, y: getattr(ops, op)(x, y), x, y, options=options)
            assert_same(found, expected, RTOL[dtype], f"{op} {options.backend}", x, y)


@pytest.mark.parametrize("op", BINARY)
def test_binary_op_with_a_known_special_value_is_numpys(op: str) -> None:
    x = np.array(FLOATS)

    def program(ops: Any, x: Any) -> Any:
        return tuple((getattr(ops, op)(c, x), getattr(ops, op)(x, c)) for c in FLOATS)

    for options in runs("float64"):
        for c, found in zip(FLOATS, opstage.run(program, x, options=options)):
            y = np.full(x.shape, c)
            with np.errstate(all="ignore"):
                for result, (a, b) in zip(found, ((y, x), (x, y))):
                    assert_same(result, BINARY[op](a, b), 1e-12, f"{op} {options.backend}", a, b)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op", INTEGER)
def test_op_at_the_ends_of_the_integers_wraps(op: str, dtype: str) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    few = pairs(np.array([least, least + 1, -7, -2, -1, 0, 1, 2, 5, 7, 31, 63, most - 1, most], dtype))
    one = op in ("neg", "abs", "sign")
    for x, y in (few, tuple(np.resize(side, MANY) for side in few)):
        exact = [INTEGER[op](a, b) for a, b in zip(x.tolist(), y.tolist())]
        masks = isinstance(exact[0], bool)
        expected = np.array(exact if masks else [(each - least) % 2 ** (8 * x.itemsize) + least for each in exact])
        for options in RUNS:
            found = opstage.run(lambda ops, *xs: getattr(ops, op)(*xs), *((x,) if one else (x, y)), options=options)
            assert found.dtype == (bool if masks else x.dtype)
            np.testing.assert_array_equal(found, expected, err_msg=f"{op} {options.backend}")


@pytest.mark.parametrize("options", RUNS, ids=lambda o: f"{o.backend}-{o.fast_kernels}")
def test_slopes_of_fmod_are_those_of_its_formula(options: Options) -> None:
    x, y = np.array([7.5, -7.5, 7.5, -0.0, 0.0, -6.0]), np.array([2.0, 2.0, -2.0, 3.0, -3.0, 3.0])
    _, pullback = opstage.vjp(lambda ops, x, y: ops.fmod(x, y), x, y, options=options.replace(dtype="float64"))
    by_x, by_y = pullback(np.ones(6))
    np.testing.assert_array_equal(by_x, np.ones(6))
    np.testing.assert_array_equal(by_y, -np.trunc(x / y))


@pytest.mark.parametrize("options", RUNS, ids=lambda o: f"{o.backend}-{o.fast_kernels}")
def test_products_keep_the_sign_of_zero(options: Options) -> None:
    x = np.array([[0.0, -0.0, 2.0], [-0.0, 1.0, 2.0], [-0.0, -1.0, 2.0], [3.0, -0.0, -0.0]])
    products, product = opstage.run(
        lambda ops, x: (ops.cumprod(x, axis=1), ops.reduce_prod(x, axis=1)), x, options=options
    )
    assert_same(products.ravel(), np.cumprod(x, 1).ravel(), 0.0, "cumprod")
    assert_same(product, np.prod(x, 1), 0.0, "reduce_prod")


QUANTILES = [
    ([-INF, 1.0], 0.25, -INF),
    ([-INF, 1.0], 0.5, -INF),
    ([-INF, 1.0], 1.0, 1.0),
    ([1.0, INF], 0.75, INF),
    ([1.0, INF], 0.0, 1.0),
    ([-INF, -INF, 3.0], 0.25, -INF),
    ([-INF, INF], 0.5, math.nan),
    ([-3e38, 3e38], 0.5, 0.0),
    ([-3e38, 3e38], 0.75, 1.5e38),
    ([1.0, 2.0, 4.0], 0.75, 3.0),
    ([-INF, 2.0, 4.0, INF], 0.5, 3.0),
    ([math.nan, 1.0], 0.5, math.nan),
]


@pytest.mark.parametrize(("x", "q", "expected"), QUANTILES)
def test_quantile_between_far_numbers_is_their_mean_by_weights(x: list[float], q: float, expected: float) -> None:
    for options in runs("float32"):
        found = opstage.run(lambda ops, x: derived.quantile(ops, x, q=q, axis=0), np.array(x), options=options)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        if q == 0.5:
            middle = opstage.run(lambda ops, x: derived.median(ops, x, axis=0), np.array(x), options=options)
            np.testing.assert_allclose(middle, expected, rtol=1e-6)


def test_gradient_of_a_median_beside_infinity_is_half() -> None:
    x = np.array([-INF, 2.0, 4.0, INF])
    value, pullback = opstage.vjp(lambda ops, x: derived.median(ops, x), x)
    assert value == 3.0
    np.testing.assert_array_equal(pullback(np.array(1.0))[0], [0.0, 0.5, 0.5, 0.0])
