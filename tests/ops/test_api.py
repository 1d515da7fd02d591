"""The functions at the door: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.ops.errors import DtypeError, OpstageError, ProgramError, ShapeError, UsageError
from opstage.ops.types import TensorType

FLOAT64 = Options(dtype="float64")
EXACT = Options(dtype="exact")


def half_square(ops: Any, x: Any) -> Any:
    return 0.5 * ops.sum(x * x)


# Trees --------------------------------------------------------------------------------------------------------------


@dataclass
class Layer:
    weight: Any
    bias: Any


class Pair(NamedTuple):
    first: Any
    second: Any


def tree() -> dict[str, Any]:
    return {
        "layers": [Layer(np.full((2, 3), 2.0), np.ones(2)), Layer(np.full((1, 2), 3.0), None)],
        "pair": Pair(np.array(4.0), (np.array(5.0), np.arange(3))),
        "nothing": None,
    }


def of_tree(ops: Any, p: Any, x: Any) -> Any:
    first, second = p["layers"]
    h = ops.linear(first.weight, first.bias, x)
    out = ops.linear(second.weight, second.bias, h)
    a, (b, indices) = p["pair"]
    return ops.sum(out) * a + b * ops.sum(ops.cast(indices, dtype=ops.dtype))


def test_gradients_are_shaped_like_the_tree() -> None:
    x = np.array([[1.0, 2.0, 3.0]])
    value, grads = opstage.value_and_grad(of_tree, tree(), x, options=FLOAT64)
    hidden = np.array([13.0, 13.0])  # 2·(1 + 2 + 3) + 1
    out = 3 * hidden.sum()
    assert float(value) == out * 4.0 + 5.0 * 3.0
    first, second = grads["layers"]
    assert isinstance(first, Layer) and isinstance(grads["pair"], Pair)
    np.testing.assert_array_equal(first.weight, 4.0 * 3.0 * np.repeat(x, 2, axis=0))
    np.testing.assert_array_equal(first.bias, [12.0, 12.0])
    np.testing.assert_array_equal(second.weight, [4.0 * hidden])
    assert second.bias is None and grads["nothing"] is None
    assert float(grads["pair"].first) == out
    assert float(grads["pair"].second[0]) == 3.0
    assert grads["pair"].second[1] is None  # integers have no gradient


def test_results_are_trees() -> None:
    def program(ops: Any, x: Any) -> Any:
        return {"a": (x, [ops.neg(x)]), "b": Layer(x + 1.0, None), "c": Pair(x, ()), "d": None}

    out = opstage.run(program, np.ones(2))
    np.testing.assert_array_equal(out["a"][1][0], -np.ones(2))
    np.testing.assert_array_equal(out["b"].weight, 2 * np.ones(2))
    assert isinstance(out["b"], Layer) and out["b"].bias is None
    assert isinstance(out["c"], Pair) and out["c"].second == () and out["d"] is None


def test_derivatives_of_trees_agree_with_each_other() -> None:
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((2, 3)), "b": [rng.standard_normal(2), None]}
    args = (params, rng.standard_normal(3), np.arange(2))
    move = ({"w": rng.standard_normal((2, 3)), "b": [rng.standard_normal(2), None]}, None, None)

    def program(ops: Any, p: Any, x: Any, rows: Any) -> Any:
        return {"y": ops.tanh(ops.gather_rows(ops.linear(p["w"], p["b"][0], x), rows)), "rows": rows}

    value, tangent = opstage.jvp(program, args, move, options=FLOAT64)
    slope = 1 - np.tanh(args[0]["w"] @ args[1] + args[0]["b"][0]) ** 2
    np.testing.assert_allclose(tangent["y"], slope * (move[0]["w"] @ args[1] + move[0]["b"][0]), rtol=1e-12)
    assert tangent["rows"] is None
    np.testing.assert_array_equal(value["rows"], args[2])

    same, pullback = opstage.vjp(program, *args, options=FLOAT64)
    np.testing.assert_array_equal(same["y"], value["y"])
    u = rng.standard_normal(2)
    p, x, rows = pullback({"y": u, "rows": None})
    np.testing.assert_allclose(p["w"], np.outer(u * slope, args[1]), rtol=1e-12)
    np.testing.assert_allclose(p["b"][0], u * slope, rtol=1e-12)
    np.testing.assert_allclose(x, args[0]["w"].T @ (u * slope), rtol=1e-12)
    assert p["b"][1] is None and rows is None


def test_wrt_is_one_argument_or_several() -> None:
    def program(ops: Any, x: Any, i: Any, y: Any) -> Any:
        return ops.sum(ops.gather_vec(x, i)) * y

    args = (np.array([1.0, 2.0]), np.array([1, 1, 0]), np.array(3.0))
    assert opstage.value_and_grad(program, *args)[1].tolist() == [3.0, 6.0]
    assert float(opstage.value_and_grad(program, *args, wrt=2)[1]) == 5.0
    y, i, x = opstage.value_and_grad(program, *args, wrt=(2, 1, 0))[1]
    assert float(y) == 5.0 and i is None and x.tolist() == [3.0, 6.0]
    assert opstage.value_and_grad(program, *args, wrt=())[1] == ()
    for wrong, message in [
        (3, r"wrt=3 is out of range: the program got 3 arguments"),
        (-1, r"wrt=-1 is out of range"),
        ("x", r"wrt is the position of an argument, or a tuple of positions, not 'x'"),
        ((0, None), r"wrt is the position"),
    ]:
        with pytest.raises(UsageError, match=message):
            opstage.value_and_grad(program, *args, wrt=wrong)  # type: ignore[arg-type]


def test_hvp_is_the_hessian_on_a_vector() -> None:
    rng = np.random.default_rng(1)
    a, x, v = rng.standard_normal((4, 4)), rng.standard_normal(4), rng.standard_normal(4)

    def quartic(ops: Any, x: Any, a: Any) -> Any:
        y = ops.reshape(ops.matmul(a, ops.unsqueeze(x, axis=1)), shape=(4,))
        return ops.sum(ops.pow(y, exponent=4))

    hx, ha = opstage.hvp(quartic, (x, a), (v, None), options=FLOAT64)
    y, dy = a @ x, a @ v
    np.testing.assert_allclose(hx, a.T @ (12 * y**2 * dy), rtol=1e-10)
    np.testing.assert_allclose(ha, np.outer(12 * y**2 * dy, x) + np.outer(4 * y**3, v), rtol=1e-10)
    (h, i) = opstage.hvp(lambda ops, x, i: ops.sum(ops.gather_vec(x * x, i)), (x, np.array([2, 2])), (v, None))
    np.testing.assert_allclose(h, [0, 0, np.float32(4 * v[2]), 0], rtol=1e-6)
    assert i is None


# Scalars and structure that do not fit ------------------------------------------------------------------------------


def test_a_gradient_needs_one_float_scalar() -> None:
    for program, args, error, message in [
        (lambda ops, x: x, (np.ones(2),), ShapeError, r"must return a scalar but returned \(2,\); reduce it"),
        (lambda ops, x: (x, x), (np.ones(()),), ProgramError, "must return one scalar; it returned 2 tensors"),
        (lambda ops, x: None, (np.ones(()),), ProgramError, "must return one scalar; it returned 0 tensors"),
        (lambda ops, x: ops.sum(x), (np.arange(3),), ProgramError, "must return a float, not int64"),
    ]:
        with pytest.raises(error, match=message):
            opstage.value_and_grad(program, *args)  # type: ignore[arg-type]
        with pytest.raises(error, match=message):
            opstage.hvp(program, args, (None,))  # type: ignore[arg-type]


def test_cotangents_and_tangents_must_fit() -> None:
    x = np.ones(2)
    _, pullback = opstage.vjp(lambda ops, x: {"y": ops.sum(x)}, x)
    with pytest.raises(ShapeError, match=r"a cotangent is \(2,\) float32 but its tensor is \(\) float32"):
        pullback({"y": np.ones(2)})
    with pytest.raises(ShapeError, match=r"a cotangent is \(\) int64 but its tensor is \(\) float32"):
        pullback({"y": 1})
    with pytest.raises(ShapeError, match="the cotangent is not built like what it belongs to"):
        pullback({"z": 1.0})
    with pytest.raises(ShapeError, match=r"the cotangent has a dict where \(\) is expected"):
        pullback({"y": {"z": 1.0}})
    assert pullback({"y": None})[0].tolist() == [0.0, 0.0]
    double = lambda ops, x: x + x  # noqa: E731
    with pytest.raises(ShapeError, match="expected 1 tangents, one for each argument, got 0"):
        opstage.jvp(double, (x,), ())
    with pytest.raises(ShapeError, match=r"a tangent is \(3,\) float32 but its tensor is \(2,\) float32"):
        opstage.jvp(double, (x,), (np.ones(3),))
    with pytest.raises(ShapeError, match="the tangent is not built like"):
        opstage.jvp(lambda ops, p: p["a"], ({"a": x},), ([x],))
    assert opstage.jvp(double, (x,), (None,))[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, x: opstage.jvp(f, x, x), r"jvp takes arguments as a tuple, not an ndarray: jvp\(program, \(x,\)"),
        (lambda f, x: opstage.jvp(f, (x,), x), "jvp takes tangents as a tuple, not an ndarray"),
        (lambda f, x: opstage.hvp(f, x, x), "hvp takes arguments as a tuple"),
        (
            lambda f, x: opstage.value_and_grad(f)(x),
            "value_and_grad returns values, not a function: give the arguments",
        ),
        (lambda f, x: opstage.vjp(f), "vjp returns values, not a function"),
        (lambda f, x: opstage.jacobian(f)(x), "jacobian returns values, not a function"),
        (lambda f, x: opstage.hessian(f)(x), "jacobian returns values, not a function"),
    ],
)
def test_calls_as_in_other_libraries_say_what_to_write(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(lambda ops, x: ops.sum(x), np.ones(2))


# Memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        lambda ops, x: x,
        lambda ops, x: ops.detach(x),
        lambda ops, x: ops.reshape(x, shape=(4,)),
        lambda ops, x: ops.transpose2d(x),
        lambda ops, x: ops.broadcast_to(ops.unsqueeze(x, axis=0), shape=(3, 2, 2)),
        lambda ops, x: ops.slice(x, axis=0, start=0, length=1),
    ],
    ids=["identity", "detach", "reshape", "transpose", "broadcast", "slice"],
)
def test_results_own_their_memory(program: Any) -> None:
    x = np.arange(4.0, dtype=np.float32).reshape(2, 2)
    out = opstage.run(program, x)
    before = out.copy()
    x[...] = 9.0
    np.testing.assert_array_equal(out, before)
    out[...] = 7.0  # writable, too
    np.testing.assert_array_equal(x, np.full((2, 2), 9.0))


def test_two_results_and_two_gradients_share_nothing() -> None:
    x = np.ones(2, np.float32)
    first, second = opstage.run(lambda ops, x: (x, x), x)
    first[...] = 5.0
    assert second.tolist() == x.tolist() == [1.0, 1.0]
    _, (a, b) = opstage.value_and_grad(lambda ops, x, y: ops.sum(x + y), x, x, wrt=(0, 1))
    a[...] = 5.0
    assert b.tolist() == [1.0, 1.0]


def test_a_pullback_stands_where_its_value_was_taken() -> None:
    x = np.array([1.0, 2.0], np.float32)
    value, pullback = opstage.vjp(half_square, x)
    x[...] = 100.0
    assert float(value) == 2.5
    assert pullback(np.float32(1.0))[0].tolist() == [1.0, 2.0]
    assert pullback(np.float32(2.0))[0].tolist() == [2.0, 4.0]  # as often as one likes


# train= -------------------------------------------------------------------------------------------------------------


def test_train_reaches_a_program_that_declares_it() -> None:
    def program(ops: Any, x: Any, *, train: bool) -> Any:
        return ops.sum(ops.scale(x, c=2.0 if train else 1.0))

    x = np.ones(3)
    assert [float(opstage.run(program, x, train=t)) for t in (False, True)] == [3.0, 6.0]
    assert float(opstage.run(program, x)) == 3.0
    assert opstage.value_and_grad(program, x, train=True)[1].tolist() == [2.0] * 3
    value, pullback = opstage.vjp(program, x, train=True)
    assert float(value) == 6.0 and pullback(np.float32(1))[0].tolist() == [2.0] * 3
    assert float(opstage.jvp(program, (x,), (x,), train=True)[1]) == 6.0
    assert opstage.hvp(program, (x,), (x,), train=True)[0].tolist() == [0.0] * 3
    assert float(opstage.run(lambda ops, x: ops.sum(x), x, train=True)) == 3.0  # not declared, not passed


def test_train_reaches_a_program_behind_others() -> None:
    """Whatever its code names: what counts is the signature that is seen."""

    def program(ops: Any, x: Any, train: bool = False) -> Any:
        return ops.sum(ops.scale(x, c=2.0 if train else 1.0))

    @functools.wraps(program)
    def wrapped(*args: Any, **named: Any) -> Any:
        return program(*args, **named)

    def signed(*args: Any, **named: Any) -> Any:
        return program(*args, **named)

    signed.__signature__ = inspect.signature(program)  # type: ignore[attr-defined]

    class Loss:
        def __call__(self, ops: Any, x: Any, train: bool = False) -> Any:
            return program(ops, x, train)

        method = __call__

    def inner(ops: Any, x: Any) -> Any:
        train = 3.0  # a name of its own
        return ops.sum(ops.scale(x, c=train))

    x = np.ones(3)
    for declares in (program, wrapped, signed, Loss(), Loss().method, functools.partial(program)):
        assert [float(opstage.run(declares, x, train=t)) for t in (False, True)] == [3.0, 6.0], declares
    assert float(opstage.run(inner, x, train=True)) == 9.0


# Numbers that go in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("given", [np.float16, np.float32, np.float64, np.longdouble, float])
def test_floats_take_the_dtype_of_the_options(dtype: str, given: Any) -> None:
    out = opstage.run(lambda ops, x: x * 2.0, given(1.5), options=Options(dtype=dtype))
    assert out.dtype == np.dtype(dtype) and float(out) == 3.0


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.int64, "int64"),
        (np.int32, "int32"),
        (np.bool_, "bool"),
        (np.int8, "int64"),
        (np.uint8, "int64"),
        (np.uint32, "int64"),
        (np.uint64, "int64"),
    ],
)
def test_integers_and_masks_keep_their_kind(given: Any, kept: str) -> None:
    for dtype in ("float32", "float64", "exact"):
        out = opstage.run(lambda ops, x: x, np.array([0, 1], given), options=Options(dtype=dtype))
        assert out.dtype == np.dtype(kept) and out.tolist() == [0, 1]
    assert opstage.run(lambda ops, n: n, 3).dtype == np.int64
    assert opstage.run(lambda ops, b: b, True).dtype == np.bool_


def test_nan_and_infinities_pass_through() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -1.0, 0.0])
    out = opstage.run(lambda ops, x: (x, ops.log(x), ops.sqrt(x), ops.div(x, x)), x)
    np.testing.assert_array_equal(out[0], x.astype(np.float32))
    np.testing.assert_array_equal(out[1], [np.nan, np.inf, np.nan, np.nan, -np.inf])
    np.testing.assert_array_equal(out[2], [np.nan, np.inf, np.nan, np.nan, 0.0])
    np.testing.assert_array_equal(out[3], [np.nan, np.nan, np.nan, 1.0, np.nan])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("text", r"argument x\.a: a tensor must hold numbers; got dtype <U4"),
        (np.array(["a"]), r"argument x\.a: a tensor must hold numbers; got dtype <U1"),
        (object(), r"argument x\.a: a tensor must hold numbers; got an array of object"),
        (np.array([[1, 2], [3]], dtype=object), r"argument x\.a: a tensor must hold numbers; got an array of list"),
        (1j, r"argument x\.a: a tensor must hold numbers; got dtype complex128"),
        (np.datetime64("2020-01-01"), r"argument x\.a: a tensor must hold numbers; got dtype datetime64"),
        (np.array([2**63], np.uint64), r"argument x\.a: integers are at most 2\^63 - 1 \(int64\)"),
        (b"bytes", r"argument x\.a: a tensor must hold numbers"),
    ],
)
def test_what_is_no_tensor_is_refused_by_its_path(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        opstage.run(lambda ops, x: x["a"], {"a": given})


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda ops, x: 3.0, "an op got a float where it needs a ref"),
        (lambda ops, x: np.ones(2), "an op got an ndarray where it needs a ref"),
        (lambda ops, x: ops.exp(1.0), "an op got a float where it needs a ref; make one with ops.const"),
        (lambda ops, x: ops.add(x, np.ones(())), "an op got an ndarray where it needs a ref"),
        (lambda ops, x: bool(x), r"the truth value of a ref is not supported.*ops.select"),
        (lambda ops, x: x if x > 0 else -x, "the truth value of a ref is not supported"),
        (lambda ops, x: x if x == 1.0 else -x, "the truth value of a ref is not supported"),
        (lambda ops, x: float(x), "the number of a ref is not available inside a program"),
        (lambda ops, x: np.asarray(x), "a ref is not an array"),
        (lambda ops, x: list(x), "a ref cannot be iterated"),
        (lambda ops, x: len(x), r"len\(…\) does not support refs: x.shape\[0\] is the size"),
    ],
)
def test_what_is_no_ref_is_refused(program: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        opstage.run(program, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "eagre"}, r"unknown backend 'eagre' \(did you mean 'eager'\?\); here are "),
        ({"device": "cuda"}, r"device 'cuda' needs (an NVIDIA driver|the package numba-cuda)"),
        ({"device": "cuba"}, r"device: 'cuba' is not one of 'cpu', 'cuda' \(did you mean 'cuda'\?\)"),
        (
            {"matmul_precision": "tf32"},
            r"^matmul_precision 'tf32' needs device 'cuda'; the CPU multiplies in the dtype its",
        ),
        ({"matmul_precision": "bf16", "dtype": "float64"}, r"^matmul_precision 'bf16' needs .*: leave it at 'fp32'$"),
        ({"dtype": "float46"}, r"dtype: 'float46' is not one of .*did you mean 'float64'"),
    ],
)
def test_unknown_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        opstage.run(half_square, np.ones(2), options=Options(**options))


def test_a_check_for_a_device_takes_that_devices_precision() -> None:
    dry = Options(backend="shape_check", device="cuda", matmul_precision="tf32")
    assert opstage.check(half_square, opstage.Spec("n"), options=dry).ok
    assert str(opstage.run(half_square, np.ones(2), options=dry)) == "() float32"


def test_unknown_dtype_inside_a_program() -> None:
    with pytest.raises(UsageError, match=r"unknown dtype 'flaot32' \(did you mean 'float32'\?\)"):
        opstage.run(lambda ops, x: ops.cast(x, dtype="flaot32"), 1.0)


# dtype exact --------------------------------------------------------------------------------------------------------


def test_a_rational_program_is_exact_end_to_end() -> None:
    third = np.array([Fraction(1, 3), Fraction(-2, 7)], dtype=object)

    def program(ops: Any, x: Any) -> Any:
        mean = ops.reduce_mean(x * x)
        return mean / 3 + ops.sum(ops.inv(x)) - 0.5

    value, grad = opstage.value_and_grad(program, third, options=EXACT)
    assert value.item() == (Fraction(1, 9) + Fraction(4, 49)) / 6 + 3 - Fraction(7, 2) - Fraction(1, 2)
    assert grad.tolist() == [x / 3 - 1 / x**2 for x in third]
    assert all(type(g) is Fraction for g in grad)
    (h,) = opstage.hvp(program, (third,), (np.array([1, 0]) * Fraction(1),), options=EXACT)
    assert h.tolist() == [Fraction(1, 3) + 2 * 27, 0]
    assert opstage.run(lambda ops, x: x, 0.1, options=EXACT).item() == Fraction(0.1)  # the float as it is


def test_exact_refuses_what_is_not_rational() -> None:
    for op in ("exp", "log", "sqrt", "tanh", "sigmoid", "erf"):
        message = rf"{op} at .*test_api.py:\d+.*does not support \w+ in dtype exact"
        with pytest.raises(opstage.UnsupportedError, match=message):
            opstage.run(lambda ops, x: getattr(ops, op)(x), Fraction(1, 3), options=EXACT)
    for number in (math.nan, math.inf):
        with pytest.raises(UsageError, match="argument x: dtype exact holds fractions alone"):
            opstage.run(lambda ops, x: x, number, options=EXACT)
        with pytest.raises(DtypeError, match=r"value (nan|inf) is not a value of exact"):
            opstage.run(lambda ops, x: ops.full(shape=(2,), value=number), 0.0, options=EXACT)


def test_a_number_that_the_dtype_does_not_hold_is_refused() -> None:
    for value, dtype in [(0.5, "int64"), (2**70, "int64"), (-(2**31) - 1, "int32"), (math.nan, "int64"), (2, "bool")]:
        with pytest.raises(DtypeError, match=f"is not a value of {dtype}"):
            opstage.run(lambda ops, x: ops.full(shape=(2,), value=value, dtype=dtype), 0.0)
    assert opstage.run(lambda ops, x: ops.full(shape=(), value=2.0, dtype="int32"), 0.0).dtype == np.int32


def test_backend_shape_check_gives_types() -> None:
    dry = Options(backend="shape_check")
    assert opstage.run(lambda ops, x: ops.matmul(x, x), np.ones((2, 2)), options=dry) == TensorType(
        (2, 2), np.dtype(np.float32)
    )
    assert opstage.value_and_grad(half_square, np.ones((4,)), options=dry)[1].shape == (4,)
    with pytest.raises(OpstageError, match=r"matmul at .*test_api.py:\d+"):
        opstage.run(lambda ops, x: ops.matmul(x, x), np.ones((2, 3)), options=dry)
