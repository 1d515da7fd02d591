"""x[...] is what NumPy makes of it: on every interpreter, under derivatives, in loops, and for sizes that are names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.ops import transform
from opstage.ops.dims import evaluate
from opstage.ops.errors import DtypeError, ProgramError, RangeError, ShapeError
from opstage.training.session import Session

FLOAT64 = Options(dtype="float64")
COMPILED = FLOAT64.replace(backend="compiled")


class Key:
    def __getitem__(self, key: Any) -> Any:
        return key


K = Key()
X = np.random.default_rng(0).normal(size=(4, 3, 5))
KEYS = [
    *(K[0], K[-1], K[3], K[np.int64(2)], K[:, 0], K[:, -3], K[..., 0], K[..., -1], K[1, 2, 3], K[1, ..., 2]),
    *(K[:], K[...], K[()], K[:, :, :], K[1:], K[:-1], K[..., 1:], K[:, 1:2], K[1:5:2], K[::2], K[..., ::3], K[-2:]),
    *(K[-9:2], K[2:99], K[9:], K[3:1], K[:0], K[-1:-3], K[0:4:9], K[1:-1, 0, ::2]),
    *(K[::-1], K[..., ::-2], K[3:0:-2, ::-1], K[1::-1], K[9:-9:-3], K[0:2:-1], K[-2::-1, 0, None], K[::-9], K[:-9:-1]),
    *(K[[0, -1, 0]], K[:, np.array([[2, -3], [0, 0]])], K[..., []], K[1, [0, 2], ::-1], K[None, 1:, [[1]], 2]),
    *(K[[3], ..., None, 1:], K[::-1, 0, np.array(-1)], K[np.array([0, 3], np.uint8)]),
    *(K[None], K[:, None], K[..., None], K[0, None], K[None, 0, None, ..., 1:, None], K[:, None, 0, :, None]),
]


def random_key(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A basic index that NumPy takes."""

    def bound(n: int) -> Any:
        return None if rng.random() < 0.3 else int(rng.integers(-n - 2, n + 3))

    def entry(n: int) -> Any:
        if n and rng.random() < 0.4:
            return int(rng.integers(-n, n))
        return slice(bound(n), bound(n), None if rng.random() < 0.4 else int(rng.choice([-3, -2, -1, 1, 2, 3])))

    used = int(rng.integers(0, len(shape) + 1))
    front = int(rng.integers(0, used + 1))
    key = [entry(n) for n in shape[:front]]
    if rng.random() < 0.5 or front < used:
        key += [Ellipsis, *(entry(n) for n in shape[len(shape) - (used - front) :])]
    for _ in range(int(rng.integers(0, 3))):
        key.insert(int(rng.integers(0, len(key) + 1)), None)
    return tuple(key)


def same(actual: Any, expected: Any, why: Any) -> None:
    assert actual.shape == np.shape(expected), why
    np.testing.assert_array_equal(actual, expected, err_msg=str(why))


def scattered(key: Any, weights: Any) -> Any:
    """The gradient of <weights, x[key]>."""
    out = np.zeros_like(X)
    np.add.at(out, key, weights)
    return out


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_values_and_derivatives(key: Any) -> None:
    expected = X[key]
    weights = np.random.default_rng(1).normal(size=expected.shape)
    tangent = np.random.default_rng(2).normal(size=X.shape)

    def part(ops: Any, x: Any) -> Any:
        return x[key] + 0

    def loss(ops: Any, x: Any) -> Any:
        return ops.sum(x[key] * ops.const(weights))

    def slope(ops: Any, x: Any) -> Any:
        return transform.grad(ops, lambda ops, x: ops.sum(x[key] * x[key]), x)

    for options in (FLOAT64, COMPILED):
        same(opstage.run(part, X, options=options), expected, key)
        same(opstage.value_and_grad(loss, X, options=options)[1], scattered(key, weights), key)
        same(opstage.jvp(part, (X,), (tangent,), options=options)[1], tangent[key], key)
        same(opstage.run(slope, X, options=options), scattered(key, 2 * expected), key)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("key", KEYS[::3], ids=str)
def test_in_a_session(key: Any, backend: str) -> None:
    session = Session(FLOAT64.replace(backend=backend))
    leaf = session.leaf(X)
    out = leaf[key]
    same(session.get_value(out), X[key], key)
    session.backward(session.sum(out * out))
    same(session.grad(leaf), scattered(key, 2 * X[key]), key)


def test_in_a_loop() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.scan(lambda ops, c, row: (c + row[:, -1], row[1:, ::2] + c[0]), x[0, :, 0], x)[1]

    carry, rows = X[0, :, 0], []
    for row in X:
        rows.append(row[1:, ::2] + carry[0])
        carry = carry + row[:, -1]
    for options in (FLOAT64, COMPILED):
        np.testing.assert_allclose(opstage.run(program, X, options=options), np.stack(rows), rtol=1e-14)


@pytest.mark.parametrize("seed", range(150))
def test_random_indices(seed: int) -> None:
    """Of sizes that are numbers, and of names whose values are those: the checked shape is what NumPy gives."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 5, int(rng.integers(0, 4))))
    x = rng.normal(size=shape)
    key = random_key(rng, shape)
    same(opstage.run(lambda ops, x: x[key] + 0, x, options=FLOAT64), x[key], key)
    seen: list[Any] = []

    def program(ops: Any, x: Any) -> Any:
        seen.append(x[key].shape)
        return ops.sum(x)

    names = [f"N{i}" for i in range(len(shape))]
    where = [f"{name} >= {size}" for name, size in zip(names, shape)]
    report = opstage.check(program, Spec(" ".join(names), where=where))
    assert report.ok, report
    symbolic = seen[-1]
    for grown in (0, 1, 7):
        sizes = {name: size + grown for name, size in zip(names, shape)}
        larger = np.empty(tuple(sizes.values()))
        assert evaluate(tuple(symbolic), sizes) == larger[key].shape, (key, sizes, symbolic)


def test_sizes_of_shapes_are_bounds() -> None:
    def program(ops: Any, x: Any) -> Any:
        n = x.shape[0]
        return ops.sum(x[: n // 2] * x[n - n // 2 :]) + ops.sum(x[n - 1] - x[-1])

    assert opstage.check(program, Spec("T 4", where=["T >= 1"])).ok
    x = X[..., 0]
    np.testing.assert_allclose(opstage.run(program, x, options=FLOAT64), np.sum(x[:2] * x[2:]), rtol=1e-14)
    (error,) = opstage.check(lambda ops, x: ops.sum(x[: x.shape[0] - 4]), Spec("T 4")).errors
    assert "depends on the sizes" in error.reason


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (K[4], ShapeError, r"x\[4\]: index 4 is out of range on axis 0 of x, which is \(4, 3, 5\); expected -4 <= "),
        (K[:, -4], ShapeError, r"x\[:, -4\]: index -4 is out of range on axis 1"),
        (K[0, 0, 0, 0], ShapeError, r"x\[0, 0, 0, 0\] names 4 axes but x is \(4, 3, 5\), which has 3"),
        (K[..., 0, ...], ShapeError, r"has 2 times '\.\.\.'"),
        (K[::0], ShapeError, "the step on axis 0 must be an integer that is not 0 but is 0"),
        (K[:, [0, 3]], ShapeError, r"x\[:, idx\]: index 3 is out of range on axis 1 of x, which is \(4, 3, 5\)"),
        (K[:, [-4, 0]], ShapeError, r"x\[:, idx\]: index -4 is out of range on axis 1"),
        (K[[0], [1]], ProgramError, r"x\[idx, idx\] has 2 tensors of integers.*ops\.gather_vec"),
        (K[0, :, [1]], ProgramError, "index with the integer first, and the result with the tensor"),
        (K[[0.5]], ProgramError, r"integers, slices, None, \.\.\. and tensors of integers but got list"),
        (K[[[0], [1, 2]]], ProgramError, "tensors of integers but got list"),
        (K[[True, False]], ProgramError, r"ops\.select\(mask, x, y\)"),
        (K[X > 0], ProgramError, r"ops\.select\(mask, x, y\)"),
        (K[True], ProgramError, r"ops\.select\(mask, x, y\)"),
        (K[1.0], ProgramError, r"integers, slices, None, \.\.\. and tensors of integers but got 1\.0"),
        (K["w"], ProgramError, "one tensor, not a dict"),
        (K[1.5:], ProgramError, "a slice of a ref has integers and sizes as its bounds but has 1.5"),
    ],
    ids=str,
)
def test_what_is_no_basic_index_says_what_to_write(key: Any, error: type[Exception], message: str) -> None:
    for options in (FLOAT64, COMPILED):
        with pytest.raises(error, match=message):
            opstage.run(lambda ops, x: x[key], X, options=options)


INDICES = np.array([[0, -1, 2], [1, 1, -4]])
BY_TENSOR: dict[str, Callable[[Any, Any], Any]] = {
    "x[i]": lambda x, i: x[i],
    "x[:, i]": lambda x, i: x[:, i],
    "x[..., i, None]": lambda x, i: x[..., i, None],
    "x[1, i]": lambda x, i: x[1, i, ::-1],
    "x[None, 1:, i, 2]": lambda x, i: x[None, 1:, i, 2],
    "x[i[0, 0]]": lambda x, i: x[..., i[0, 0], :],
}


@pytest.mark.parametrize("take", BY_TENSOR.values(), ids=BY_TENSOR)
def test_tensors_as_indices(take: Callable[[Any, Any], Any]) -> None:
    x = np.random.default_rng(3).normal(size=(4, 5, 6))
    expected = take(x, INDICES)
    weights = np.random.default_rng(4).normal(size=expected.shape)
    slope = np.zeros_like(x)
    places = take(np.arange(x.size).reshape(x.shape), INDICES)
    np.add.at(slope.reshape(-1), places, weights)
    for options in (FLOAT64, COMPILED):
        same(opstage.run(lambda ops, x, i: take(x, i), x, INDICES, options=options), expected, options)
        found = opstage.value_and_grad(lambda ops, x, i: ops.sum(take(x, i) * weights), x, INDICES, options=options)[1]
        np.testing.assert_allclose(found, slope, rtol=1e-13)
    seen: list[Any] = []
    report = opstage.check(
        lambda ops, x, i: seen.append(take(x, i).shape) or ops.sum(x),
        Spec("4 5 N", where=["N >= 6"]),
        Spec("2 3", "int64"),
    )
    assert report.ok, report
    assert evaluate(tuple(seen[0]), {"N": 6}) == expected.shape


def test_an_index_in_a_tensor_that_is_out_of_range() -> None:
    for options in (FLOAT64, COMPILED):
        for index in (4, -5):
            with pytest.raises(RangeError, match="is out of range"):
                opstage.run(lambda ops, x, i: x[i], X, np.array([0, index]), options=options)
    report = opstage.check(lambda ops, x: ops.sum(x[[0, 3]]), Spec("T 4"))
    assert 'where=["T >= 4"]' in str(report)


def test_masks_and_tensors_as_bounds_are_no_indices() -> None:
    with pytest.raises(ProgramError, match=r"ops\.select"):
        opstage.run(lambda ops, x: x[x > 0], X)
    with pytest.raises(ProgramError, match="a slice of a ref has integers"):
        opstage.run(lambda ops, x, i: x[i:], X, np.array(2))
    with pytest.raises(ProgramError, match="tensors of integers but got"):
        opstage.run(lambda ops, x: x[x], X)


def test_a_tensor_of_an_inner_derivative_indexes_one_from_outside() -> None:
    def program(ops: Any, x: Any) -> Any:
        return transform.grad(ops, lambda ops, y: ops.sum(y * x[ops.cast(y, dtype="int64")]), x[:2])

    x = np.array([1.5, 2.5, 3.5, 0.0])
    same(opstage.run(program, x, options=FLOAT64), x[[1, 2]], "")


def test_a_ref_takes_no_assignment() -> None:
    def assigns(ops: Any, x: Any) -> Any:
        x[0] = 1
        return x

    def adds(ops: Any, x: Any) -> Any:
        x[0] += 1
        return x

    def deletes(ops: Any, x: Any) -> Any:
        del x[0]
        return x

    for program in (assigns, adds, deletes):
        with pytest.raises(ProgramError, match=r"ops\.select\(mask, y, x\).*ops\.concat.*ops\.scatter_add_row"):
            opstage.run(program, X)


def test_a_size_that_may_be_too_small_is_a_finding() -> None:
    report = opstage.check(lambda ops, x: ops.sum(x[3]), Spec("T 4"))
    assert 'where=["T >= 4"]' in str(report)
    assert opstage.check(lambda ops, x: ops.sum(x[3]), Spec("T 4", where=["T >= 4"])).ok


def test_errors_are_found_in_one_run() -> None:
    report = opstage.check(lambda ops, x: ops.sum(x[:, 5]) + ops.sum(x[9, 9, 9]), Spec("T 4"))
    assert [error.reason[:7] for error in report.errors] == ["x[:, 5]", "x[9, 9,"]


# Masks ----------------------------------------------------------------------------------------------------------------

MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
}
SOME, OTHER = X[0] > 0, X[1, :1] > 0


@pytest.mark.parametrize("options", [FLOAT64, COMPILED], ids=["eager", "compiled"])
@pytest.mark.parametrize("symbol", MASKS)
def test_masks_meet_as_in_numpy(symbol: str, options: Options) -> None:
    f = MASKS[symbol]
    same(opstage.run(lambda ops, a, b: f(a, b), SOME, OTHER, options=options), f(SOME, OTHER), symbol)
    for other in (True, False, OTHER):
        same(opstage.run(lambda ops, a: f(a, other), SOME, options=options), f(SOME, other), symbol)
        same(opstage.run(lambda ops, a: f(other, a), SOME, options=options), f(other, SOME), symbol)
    same(opstage.run(lambda ops, a: ~a, SOME, options=options), ~SOME, "~")


@pytest.mark.parametrize("symbol", MASKS)
def test_bits_of_numbers_are_no_masks(symbol: str) -> None:
    f = MASKS[symbol]
    for x in (np.arange(3), np.ones(3)):
        with pytest.raises(DtypeError, match="takes two masks but got"):
            opstage.run(lambda ops, x: f(x, x), x)
    with pytest.raises(DtypeError, match=r"binds tighter than <"):
        opstage.run(lambda ops, a, x: f(a, x), SOME[0], X[0, 0])
    with pytest.raises(DtypeError):
        opstage.run(lambda ops, x: ~x, np.arange(3))
    with pytest.raises(ShapeError, match=rf"^\{symbol} at .*: x is \(3, 5\) but y is \(2, 5\): axis 0 has 3 and 2"):
        opstage.run(lambda ops, a: f(a, a[:2]), SOME)
