"""Minima and maxima of sizes, and the windows that shape rules make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec
from opstage.ops.dims import (
    DimScope,
    Verdict,
    at_most,
    equal,
    evaluate,
    maximum,
    minimum,
    ratio,
    require_at_most,
    require_equal,
    witness,
)
from opstage.ops.errors import ShapeError, UsageError
from opstage.ops.types import show_shape
from tests.dims.dim_cases import dims


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("min(1024, T)", "min(T, 1024)"),
        ("max(T, S, 8)", "max(S, T, 8)"),
        ("min(T, T)", "T"),
        ("min(7, 3, 5)", "3"),
        ("min(T + 3, 8)", "min(T, 5) + 3"),
        ("min(2*T, T + 4)", "T + min(T, 4)"),
        ("min(6*T, 9*S)", "3*min(2*T, 3*S)"),
        ("min(B*T, 8*B)", "B*min(T, 8)"),
        ("min(T, T + S)", "T"),
        ("max(T, T//2 + T)", "T + T//2"),
        ("min(T, min(S, 8))", "min(S, T, 8)"),
        ("min(A, B) + max(A, B)", "A + B"),
        ("max(T - 8, 0)", "T - min(T, 8)"),
        ("-max(-T, -8)", "min(T, 8)"),
        ("B*max(T, 8) + 1", "B*max(T, 8) + 1"),
        ("max(A, B, C) - A", "max(A, B, C) - A"),
        ("max(min(T, 8), 4)", "min(T, 8) - min(T, 4) + 4"),
        ("min(max(T, 4), 8)", "min(T, 8) - min(T, 4) + 4"),
        ("min(T, 8)//2", "min(T//2, 4)"),
        ("(min(T, 8) + 1)//2", "min((T + 1)//2, 4)"),
        ("N//min(T, 8)", "N//min(T, 8)"),
        ("N//max(T, 8)", "N//(max(T, 8))"),
        ("min(T, 8)**2", "min(T, 8)**2"),
    ],
)
def test_text(text: str, canonical: str) -> None:
    scope = DimScope()
    assert str(scope.parse(text)) == canonical
    assert scope.parse(canonical) == scope.parse(text)


@pytest.mark.parametrize("text", ["min()", "min(T, key=T)", "min(*T)", "sum(T, S)", "min.max(T)", "min(T, 1.5)"])
def test_bad_calls_say_what_is_wrong(text: str) -> None:
    with pytest.raises(UsageError, match="neither a name, an integer, min, max nor one of"):
        DimScope().parse(text)


def test_min_and_max_may_be_names_too() -> None:
    assert str(DimScope().parse("min(min, max)")) == "min(max, min)"


def test_minima_of_facts_and_of_texts() -> None:
    scope, t, s = dims("T S")
    assert str(minimum(t, 1024)) == "min(T, 1024)" and str(maximum(t, s)) == "max(S, T)"
    assert minimum(t, t // 2) is t // 2 and maximum(1, t) is t
    scope.declare("T <= 1024")
    assert minimum(t, 1024) is t and maximum(t, 1024) == 1024
    # what is written stays as it is written, so that texts are read back as the same objects whatever was declared
    assert str(scope.parse("min(T, 1024)")) == "min(T, 1024)"
    assert equal(scope.parse("min(T, 1024)"), t) is Verdict.proved
    assert evaluate(maximum(t, s) * 2, {"T": 3, "S": 5}) == 10


@pytest.mark.parametrize(
    ("where", "claim"),
    [
        ([], "min(T, S) <= T"),
        ([], "T <= max(T, S)"),
        ([], "min(T, S) >= 1"),
        ([], "B*min(T, 8) <= 8*B"),
        ([], "min(T, 8)*min(S, 8) <= 64"),
        ([], "T//2 + (T + 1)//2 == T"),
        ([], "(T + 2)//3 + (T + 1)//3 + T//3 == T"),
        ([], "T - T//2 == (T + 1)//2"),
        ([], "max(T - 8, 0) + min(T, 8) == T"),
        ([], "min(max(T, 4), 8) == max(min(T, 8), 4)"),
        ([], "min(A, max(B, C)) == max(min(A, B), min(A, C))"),
        ([], "min(T//2, S//2) == min(T, S)//2"),
        (["T >= 8"], "min(T, 8) == 8"),
        (["T >= S"], "max(S, T) == T"),
        (["min(T, S) >= 8"], "T >= 8"),
        (["max(T, S) <= 8"], "S <= 8"),
        (["T == min(L, 1024)"], "T <= L"),
        (["T == min(L, 1024)", "L >= 2000"], "T == 1024"),
        (["T == min(L, 1024)", "L % 2 == 0"], "T % 2 == 0"),
        (["D == H*K", "H == 2*G"], "D == 2*G*K"),
        (["D == H*K", "H == 2*G"], "D % G == 0"),
        (["D == H*K", "H == 2*G", "K % 3 == 0"], "D % 6 == 0"),
        (["D == H*K"], "B*T*D % H == 0"),
        (["D == H*K"], "B*D//K == B*H"),
        (["H*K <= D", "K >= 4"], "4*H <= D"),
        (["A*B == A*C"], "B == C"),
        (["A*B <= 4*A"], "B <= 4"),
        (["D == H*K", "D <= 1024"], "H <= 1024"),
        (["B*T <= 4096", "B >= 8"], "T <= 512"),
        (["S <= T"], "T//S >= 1"),
        (["S <= T"], "T % S <= T - S"),
        (["A <= B"], "A//C <= B//C"),
        (["A <= B"], "C//B <= C//A"),
        ([], "C*((T + C - 1)//C) >= T"),
        (["K <= 3"], "K*(K - 1)*(K - 2) == 6*(K//3)"),
        (["1 <= K <= 4"], "(K*K + K) % 2 == 0"),
    ],
)
def test_claims_that_follow(where: list[str], claim: str) -> None:
    scope = DimScope()
    for name in "ABCDGHKLST":
        scope.dim(name)
    for constraint in where:
        scope.declare(constraint)
    ((left, sign, right),) = [claim.partition(sign) for sign in (" == ", " <= ", " >= ") if sign in claim]
    a, b = scope.parse(left), scope.parse(right)
    verdict = {" == ": lambda: equal(a, b), " <= ": lambda: at_most(a, b), " >= ": lambda: at_most(b, a)}[sign]
    assert verdict() is Verdict.proved


def test_witnesses_know_the_numbers_within() -> None:
    scope, t = dims("T")
    assert witness(scope.parse("min(T, 1000)"), "==", t) == {"T": 1001}
    assert witness(scope.parse("T//min(T, 777)"), "==", 1) == {"T": 1554}


# ---------------------------------------------------------------------- suggestions and conditions


@pytest.mark.parametrize(
    ("left", "right", "constraint"),
    [
        ("min(T, 8)", "T", "T <= 8"),
        ("max(T, 8)", "8", "T <= 8"),
        ("min(M, 8)", "min(N, 8)", "min(M, 8) == min(N, 8)"),
        ("3*(N//3)", "N", "N % 3 == 0"),
        ("T", "T + 1", None),
    ],
)
def test_errors_carry_the_constraint_that_is_missing(left: str, right: str, constraint: str | None) -> None:
    scope = DimScope()
    a, b = scope.parse(left), scope.parse(right)
    with pytest.raises(ShapeError) as caught:
        require_equal(a, b, "the sizes differ")
    assert caught.value.constraint == constraint
    if constraint is not None:
        assert caught.value.reason.endswith(f'add where=["{constraint}"]')
        scope.declare(constraint)
        require_equal(a, b, "unused")


def test_no_constraint_is_suggested_that_no_size_satisfies() -> None:
    _, n, m = dims("N M", "N % 4 == 1", "M*M <= 10")
    with pytest.raises(ShapeError) as caught:
        require_equal(n % 2, m, "odd")  # N % 2 is 1, which one value of M satisfies
    assert caught.value.constraint is not None
    with pytest.raises(ShapeError) as caught:
        require_equal(4 * m * m, n + 1, "even")  # never: N + 1 leaves 2 when divided by 4
    assert caught.value.constraint is None and "add where" not in caught.value.reason
    with pytest.raises(ShapeError) as plain:
        require_equal(3, 4, "plain")
    assert plain.value.constraint is None


def test_conditions_that_earlier_ones_imply_are_not_listed() -> None:
    scope, x, y, z = dims("X Y Z")
    for constraint in ("X*X*X + Y*Y*Y == 1729", "X < Y", "X >= 2", "Z*Z*Z + 1 == X*X*X"):
        scope.declare(constraint)
    require_at_most(8, x, "long enough")
    require_at_most(7, x, "follows")
    require_equal(2 * x, 18, "all of it")
    require_equal(y * x, 9 * y, "follows")
    require_equal(y * (x // 3), 3 * y, "follows")
    assert [condition.relation for condition in scope.conditions] == ["X >= 8", "X == 9"]
    assert equal(x, 9) is Verdict.undecided  # a condition is no fact
    assert z is not y


def test_facts_are_told_as_they_were_declared() -> None:
    scope = DimScope()
    scope.dim("N")
    scope.dim("M")
    scope.declare("N >= 0")
    scope.declare("M*N <= 4*M")
    assert [fact.relation for fact in scope.facts] == ["N >= 0", "M*N <= 4*M"]


# ---------------------------------------------------------------------- in programs


def test_specs_and_programs_take_minima() -> None:
    def last(ops: opstage.Ops, x: opstage.Ref) -> opstage.Ref:
        window = minimum(x.shape[1], 16)
        return ops.slice(x, axis=1, start=x.shape[1] - window, length=window)

    report = opstage.check(last, Spec("B T 8"))
    assert report.ok and show_shape(report.outputs.shape) == "(B, min(T, 16), 8)"
    same = opstage.check(lambda ops, x, y: ops.add(x, y), Spec("B min(T, 16)"), Spec("B S", where=["S == min(T, 16)"]))
    assert same.ok
    assert not opstage.check(lambda ops, x, y: ops.add(x, y), Spec("B min(T, 16)"), Spec("B T")).ok


def test_reals_of_minima_are_exact() -> None:
    _, t = dims("T")
    mean = ratio(1, minimum(t, 8))
    assert str(mean) == "1/min(T, 8)" and evaluate(mean, {"T": 4}) == 0.25
    assert mean * minimum(t, 8) == 1


# Convolutions and pools over sizes that are not known: forward, backward and twice backward, with nothing assumed -----

KERNEL, BIAS = Spec("O C 3 3"), Spec("O")
IMAGES = Spec("B C H W", where=["H >= 4", "W >= 4"])


def _score(ops: Any, kernel: Any, bias: Any, x: Any) -> Any:
    features = ops.conv(kernel, bias, x, stride=2, padding=1)
    pooled = ops.max_pool(features, kernel=(2, 2), stride=1)
    return ops.sum(ops.avg_pool(ops.mul(pooled, pooled), kernel=(2, 1), stride=1, padding=(1, 0)))


def _gradient(ops: Any, *refs: Any) -> Any:
    return opstage.transform.grad(ops, _score, *refs)


def _second(ops: Any, *refs: Any) -> Any:
    def squared(inner: Any, *inner_refs: Any) -> Any:
        total = inner.full(shape=(), value=0.0)
        for g in _gradient(inner, *inner_refs):
            total = inner.add(total, inner.sum(inner.mul(g, g)))
        return total

    return opstage.transform.grad(ops, squared, *refs)


@pytest.mark.parametrize("program", [_gradient, _second])
def test_gradients_have_the_shapes_of_what_they_are_taken_by(program: Any) -> None:
    report = opstage.check(program, KERNEL, BIAS, IMAGES)
    assert report.ok, report
    assert not report.conditions, report
    assert [show_shape(t.shape) for t in report.outputs] == ["(O, C, 3, 3)", "(O,)", "(B, C, H, W)"]


def _strided(ops: Any, kernel: Any, bias: Any, x: Any) -> Any:
    return ops.conv(kernel, bias, x, stride=(3, 2), dilation=(1, 2))


@pytest.mark.parametrize(("height", "width"), [(3, 5), (5, 6), (6, 9), (8, 8)])
def test_symbolic_shapes_hold_at_every_size(height: int, width: int) -> None:
    report = opstage.check(_strided, KERNEL, BIAS, Spec("B C H W", where=["H >= 3", "W >= 5"]))
    assert report.ok, report
    promised = evaluate(report.outputs.shape, {"O": 2, "C": 1, "B": 3, "H": height, "W": width})
    arrays = [np.zeros(shape, np.float32) for shape in ((2, 1, 3, 3), (2,), (3, 1, height, width))]
    assert opstage.run(_strided, *arrays).shape == promised


def test_a_kernel_that_may_not_fit_is_refuted_with_an_example() -> None:
    report = opstage.check(lambda ops, k, x: ops.conv(k, None, x), Spec("8 3 5 5"), Spec("B 3 H 32"))
    assert not report.ok
    assert 'add where=["H >= 5"]' in str(report)
