"""Functions over ops against NumPy: values, gradients by central differences, symbolic shapes and errors."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp as scipy_logsumexp

import opstage
from opstage.ops import derived
from opstage.ops.errors import ShapeError
from opstage.options import Options

FLOAT64 = Options(dtype="float64")
EXACT = Options(dtype="exact")


def run(program: Callable[..., Any], *args: Any, options: Options = FLOAT64) -> Any:
    return opstage.run(program, *args, options=options)


def assert_gradient(program: Callable[..., Any], *args: Any) -> None:
    """The gradient of <weights, program> for every float operand, against central differences along a direction."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal(run(program, *args).shape)

    def scalar(ops: Any, *refs: Any) -> Any:
        return ops.sum(ops.mul(program(ops, *refs), ops.const(weights)))

    for i, x in enumerate(args):
        if x.dtype.kind != "f":
            continue
        _, gradient = opstage.value_and_grad(scalar, *args, wrt=i, options=FLOAT64)
        direction, h = rng.standard_normal(x.shape), 1e-5
        ahead = run(scalar, *args[:i], x + h * direction, *args[i + 1 :])
        behind = run(scalar, *args[:i], x - h * direction, *args[i + 1 :])
        np.testing.assert_allclose(np.sum(gradient * direction), (ahead - behind) / (2 * h), rtol=1e-7, atol=1e-8)


# einsum ---------------------------------------------------------------------------------------------------------------

_SIZES = dict(zip("abcdefghij", (2, 3, 4, 5, 1, 3, 2, 2, 3, 4)))


@pytest.mark.parametrize(
    "equation",
    [
        "ab->ba",
        "abc->b",
        "abc->",
        "ab",
        "ba",
        "a->a",
        "->",
        "aa->a",
        "aa",
        "aab->ba",
        "aaa->a",
        "abab->ba",
        "ab,bc->ac",
        "ab,bc",
        "ab,cb->ca",
        "ab,b->a",
        "a,a->",
        "a,a->a",
        "a,b->ba",
        "ab,ab->ab",
        "ab,ab->",
        "ab,a->ba",
        "abc,acd->abd",
        "abcd,abed->aecb",
        "ab,cd->",
        "ab,->ba",
        ",ab->ab",
        "abe,ec->abc",
        "aab,b->a",
        "abcd,bd->ac",
        "dbc,ad->abc",
        "ab,bc,cd->ad",
        "a,a,a->a",
        "ab,bc,ca->",
        "ab,ab,bc,cd->d",
        " a b , b c -> a c ",
    ],
)
def test_einsum_is_numpys(equation: str) -> None:
    terms = equation.replace(" ", "").split("->")[0].split(",")
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal([_SIZES[c] for c in term]) for term in terms]
    program = lambda ops, *refs: derived.einsum(ops, equation, *refs)  # noqa: E731
    np.testing.assert_allclose(run(program, *arrays), np.einsum(equation, *arrays), rtol=1e-12, atol=1e-13)
    assert_gradient(program, *arrays)


def test_einsum_of_empty_axes() -> None:
    x, y = np.ones((2, 0)), np.ones((0, 3))
    product = run(lambda ops, x, y: derived.einsum(ops, "ab,bc->ac", x, y), x, y)
    np.testing.assert_array_equal(product, np.zeros((2, 3)))


def test_einsum_keeps_symbols() -> None:
    def attention_scores(ops: Any, q: Any, k: Any) -> Any:
        return derived.einsum(ops, "bqhd,bkhd->bhqk", q, k)

    report = opstage.check(attention_scores, opstage.Spec("B T 4 8"), opstage.Spec("B S 4 8"))
    assert report.ok and not report.conditions, report
    assert [str(d) for d in report.outputs.shape] == ["B", "4", "T", "S"]
    trace = opstage.check(lambda ops, x: derived.einsum(ops, "nn->", x), opstage.Spec("N N"))
    assert trace.ok and not trace.conditions, trace


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ab,bc->ac", [(2, 3)], "is about 2 operands but got 1"),
        ("abc->a", [(2, 3)], r"the 3 axes 'abc' but its shape is \(2, 3\)"),
        ("ab,bc->ac", [(2, 3), (4, 5)], "b is 3 but operand 1, .*has 4 there"),
        ("aa->a", [(2, 3)], "a is 2 but operand 0"),
        ("ab->ac", [(2, 3)], "'c' in the result but in no operand"),
        ("ab->aa", [(2, 3)], "'a' twice in the result"),
        ("a...->a", [(2, 3)], "ellipsis"),
        ("a1->a", [(2, 3)], "'1' where a letter"),
    ],
)
def test_einsum_errors(equation: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ShapeError, match=f"^einsum at .*{message}"):
        run(lambda ops, *refs: derived.einsum(ops, equation, *refs), *[np.ones(shape) for shape in shapes])


# dropout --------------------------------------------------------------------------------------------------------------


def test_dropout_is_the_identity_outside_of_training() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    np.testing.assert_array_equal(run(lambda ops, x: derived.dropout(ops, x, 0.5, False), x), x)
    np.testing.assert_array_equal(run(lambda ops, x: derived.dropout(ops, x, 0.0, True), x), x)


def test_dropout_drops_and_rescales() -> None:
    x = np.random.default_rng(0).standard_normal(20_000) + 5
    y = run(lambda ops, x: derived.dropout(ops, x, 0.2, True), x)
    kept = y != 0
    np.testing.assert_allclose(y[kept], x[kept] / 0.8, rtol=1e-15)
    assert abs(kept.mean() - 0.8) < 5 * np.sqrt(0.16 / x.size)


def test_dropout_draws_anew_at_each_call_and_for_each_seed() -> None:
    def program(ops: Any, x: Any) -> Any:
        return [derived.dropout(ops, x, 0.5, True), derived.dropout(ops, x, 0.5, True, seed=1), x]

    first, other, x = run(program, np.ones(100))
    again, _, _ = run(program, np.ones(100))
    assert (first != other).any() and (first != x).any()
    np.testing.assert_array_equal(first, again)


def test_dropout_of_everything() -> None:
    def program(ops: Any, x: Any) -> Any:
        return derived.dropout(ops, x, 1.0, True)

    np.testing.assert_array_equal(run(program, np.ones(5)), np.zeros(5))
    assert_gradient(program, np.ones(5))


def test_dropout_gradient_is_its_mask() -> None:
    assert_gradient(lambda ops, x: derived.dropout(ops, x, 0.4, True), np.random.default_rng(0).standard_normal((4, 5)))


def test_dropout_is_rational() -> None:
    x = np.array([Fraction(1, 3)] * 8, dtype=object)
    y = run(lambda ops, x: derived.dropout(ops, x, Fraction(1, 4), True), x, options=EXACT)
    assert set(y) <= {Fraction(0), Fraction(4, 9)}


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_dropout_needs_a_probability(p: float) -> None:
    with pytest.raises(ShapeError, match=r"dropout at .*p must be a probability"):
        run(lambda ops, x: derived.dropout(ops, x, p, True), np.ones(3))


# The others -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [np.array([2, 0, 1]), np.array(1), np.array([[0, 3], [-1, 2]], np.int32)])
def test_one_hot(labels: Any) -> None:
    expected = np.array(labels[..., None] == np.arange(3), np.float64)
    np.testing.assert_array_equal(run(lambda ops, i: derived.one_hot(ops, i, classes=3), labels), expected)


def test_one_hot_takes_the_dtype_it_is_given() -> None:
    assert run(lambda ops, i: derived.one_hot(ops, i, classes=2), np.array([1])).dtype == np.float64
    assert run(lambda ops, i: derived.one_hot(ops, i, classes=2, dtype="int32"), np.array([1])).dtype == np.int32


def test_embedding() -> None:
    table, idx = np.random.default_rng(0).standard_normal((5, 3)), np.array([[0, 4], [4, 1]])
    np.testing.assert_array_equal(run(derived.embedding, table, idx), table[idx])
    assert_gradient(derived.embedding, table, idx)
    beyond = run(lambda ops, t, i: derived.embedding(ops, t, i, mode="zero"), table, np.array([5]))
    np.testing.assert_array_equal(beyond, np.zeros((1, 3)))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
def test_logsumexp(axis: Any, keepdims: bool) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    program = lambda ops, x: derived.logsumexp(ops, x, axis=axis, keepdims=keepdims)  # noqa: E731
    expected = scipy_logsumexp(x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(run(program, x), expected, rtol=1e-14)
    assert_gradient(program, x)


def test_logsumexp_at_the_edges() -> None:
    inf = np.inf
    x = np.array([[1e4, 1e4], [-1e4, -1e4], [-inf, -inf], [-inf, 3.0], [inf, 0.0], [np.nan, 0.0]])
    expected = np.array([1e4 + np.log(2), -1e4 + np.log(2), -inf, 3.0, inf, np.nan])
    np.testing.assert_allclose(run(lambda ops, x: derived.logsumexp(ops, x, axis=1), x), expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("shape", "spatial", "axes"),
    [((3, 4, 5), 2, (1, 2)), ((2, 3, 4, 5), 2, (2, 3)), ((2, 3, 4), 1, (2,)), ((3, 2, 2, 2), 3, (1, 2, 3))],
)
def test_global_avg_pool(shape: tuple[int, ...], spatial: int, axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    program = lambda ops, x: derived.global_avg_pool(ops, x, spatial=spatial)  # noqa: E731
    np.testing.assert_allclose(run(program, x), x.mean(axis=axes), rtol=1e-14)
    assert_gradient(program, x)


def test_global_avg_pool_needs_channels() -> None:
    with pytest.raises(ShapeError, match=r"global_avg_pool at .*of rank 3 or 4, but is \(2, 2\)"):
        run(derived.global_avg_pool, np.ones((2, 2)))


@pytest.mark.parametrize(
    ("logits", "labels", "ignore_index", "correct", "counted"),
    [
        (np.array([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]]), np.array([1, 0, 0]), -100, 2, 3),
        (np.array([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]]), np.array([1, -100, 0], np.int32), -100, 1, 2),
        (np.array([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]]), np.array([1, 0, 1]), 0, 2, 2),
        (np.array([0.0, 5.0, 1.0]), np.array(1), -100, 1, 1),
        (np.array([[[1.0, 0.0], [2.0, -1.0]]]), np.array([[1, 1]]), -100, 1, 2),
    ],
)
def test_accuracy(logits: Any, labels: Any, ignore_index: int, correct: int, counted: int) -> None:
    def both(ops: Any, logits: Any, labels: Any) -> Any:
        count = derived.correct_count(ops, logits, labels, ignore_index=ignore_index)
        return count, derived.accuracy(ops, logits, labels, ignore_index=ignore_index)

    count, share = run(both, logits, labels)
    assert (count, share) == (correct, correct / counted)
