"""Relations of dims: what is proved, refuted, required and declared."""

from __future__ import annotations

import pytest

from opstage.ops.dims import (
    DimScope,
    UndecidedDimError,
    Verdict,
    at_most,
    equal,
    require_at_most,
    require_divides,
    require_equal,
    witness,
)
from opstage.ops.errors import ShapeError, UsageError
from tests.dims.dim_cases import NAMES, dims, verdict_on


@pytest.mark.parametrize(
    ("where", "left", "right"),
    [
        ([], "2*(B + 1)", "2*B + 2"),
        (["N % 3 == 0"], "3*(N//3)", "N"),
        (["N % 3 == 1"], "3*(N//3) + 1", "N"),
        (["N % 4 == 0", "N % 6 == 0"], "N", "12*(N//12)"),
        (["(2*N) % 4 == 2"], "N % 2", "1"),
        (["D == H*K"], "B*T*D", "B*T*H*K"),
        (["D == H*K"], "D//H", "K"),
        (["D == H*K", "D == 768"], "H*K", "768"),
        (["H*K == 768"], "768//H", "K"),
        (["H*K == 768"], "B*H*K", "768*B"),
        (["D % H == 0"], "H*(D//H)", "D"),
        (["D % 8 == 0", "D == H*K"], "8*(D//8)", "H*K"),
        (["4 % H == 0"], "256 % H", "0"),
        (["4 % H == 0"], "(8*T + 4) % H", "0"),
        (["4 % H == 0"], "(256*T*T)//H*H", "256*T**2"),
        (["2*M == 3*N"], "N", "2*(M//3)"),
        (["(N*H) % 3 == 0"], "(B*N*H)//3", "B*((N*H)//3)"),
        (["N//3 == 5", "N % 3 == 0"], "N", "15"),
        (["T == S + 1", "S == 7"], "T", "8"),
        (["M <= N", "N <= M"], "M", "N"),
        (["T <= 8", "T >= 8"], "T", "8"),
        (["1 <= T <= 2"], "(T + 1)//2", "1"),
    ],
)
def test_equalities_that_follow(where: list[str], left: str, right: str) -> None:
    scope = DimScope()
    a, b = scope.parse(left), scope.parse(right)
    assert equal(a, b) is not Verdict.proved or not where
    for constraint in where:
        for name in "BDHKMNST":
            scope.dim(name)
        scope.declare(constraint)
    assert equal(a, b) is Verdict.proved
    assert (a == b) is True and (a != b) is False


@pytest.mark.parametrize(
    ("where", "small", "large"),
    [
        ([], "1", "B*T"),
        ([], "T//2", "T"),
        ([], "1", "(T + 1)//2"),
        ([], "H*(D//H)", "D"),
        ([], "D - H + 1", "H*(D//H)"),
        ([], "N % 3", "2"),
        (["4 % H == 0"], "H", "4"),
        (["4 % H == 0"], "1", "256//H"),
        ([], "B", "B*T"),
        (["K <= T"], "B*K", "B*T"),
        (["K <= T"], "0", "(T - K)//2"),
        (["K <= T", "T <= S"], "K", "S"),
        (["2*M <= N"], "M + 1", "N"),
        (["T <= 1024"], "T*T", "1024*T"),
        (["T <= 1024"], "0", "T*(1024 - T)"),
        (["T <= 1023"], "T//2", "511"),
        (["N//3 >= 5"], "2", "N//3 - 3"),
        (["T >= 3"], "2", "T - 1"),
        (["D == H*K", "H >= 2"], "2*K", "D"),
    ],
)
def test_inequalities_that_follow(where: list[str], small: str, large: str) -> None:
    scope = DimScope()
    a, b = scope.parse(small), scope.parse(large)
    for name in "BDHKMNST":
        scope.dim(name)
    assert at_most(a, b) is not Verdict.proved or not where
    for constraint in where:
        scope.declare(constraint)
    assert at_most(a, b) is Verdict.proved
    assert at_most(b + 1, a) is not Verdict.proved


def test_names_differ() -> None:
    _, m, n = dims("M N")
    assert equal(m, n) is Verdict.refuted and equal(m * n, n * m) is Verdict.proved
    assert witness(m, "==", n) == {"M": 2, "N": 3}
    assert witness(m, "<=", 1024) == {"M": 1025}
    assert witness(m, "==", m) is None and witness(3, "==", 4) == {} and witness(3, "<", 4) is None
    with pytest.raises(UsageError, match="one of ==, <=, <, >=, >, not '!='"):
        witness(m, "!=", n)


def test_witnesses_obey_the_facts() -> None:
    _, d, h = dims("D H", "D % H == 0", "D % 1009 == 7", "D >= 100000")
    found = witness(d, "<=", 200000)
    assert found is not None and found["D"] > 200000 and found["D"] % 1009 == 7 and found["D"] % found["H"] == 0
    assert witness(h * (d // h), "==", d) is None


# ---------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("left", "right", "ending"),
    [
        ("M", "N", 'fails at M=2, N=3; add where=["M == N"]'),
        ("B*M", "B*N", 'fails at B=2, M=3, N=5; add where=["M == N"]'),
        ("3*(N//3)", "N", 'fails at N=2; add where=["N % 3 == 0"]'),
        ("2*(N//6)", "N//3", 'fails at N=3; add where=["(N//3) % 2 == 0"]'),
        ("B*H*(D//H)", "B*D", 'fails at B=2, D=3, H=5; add where=["D % H == 0"]'),
        ("T", "4", 'fails at T=2; add where=["T == 4"]'),
        ("H*K", "D", 'fails at D=2, H=3, K=5; add where=["D == H*K"]'),
        ("T", "T + 1", "fails at every allowed size"),
        ("2*T", "5", "fails at every allowed size, for instance T=2"),
        ("T + 1", "1", "fails at every allowed size, for instance T=2"),
    ],
)
def test_refuted_equalities_show_values_and_the_missing_constraint(left: str, right: str, ending: str) -> None:
    scope = DimScope()
    with pytest.raises(ShapeError) as caught:
        require_equal(scope.parse(left), scope.parse(right), lambda: "the sizes differ.")
    assert caught.value.reason == f"the sizes differ; {ending}"
    assert caught.value.source is not None and caught.value.source.file == __file__


def test_refuted_bounds_and_divisions() -> None:
    _, t = dims("T")
    with pytest.raises(ShapeError, match=r'too long; fails at T=1025; add where=\["T <= 1024"\]'):
        require_at_most(t, 1024, "too long")
    with pytest.raises(ShapeError, match=r'too short; fails at T=2; add where=\["T >= 3"\]'):
        require_at_most(1, t - 2, "too short")
    with pytest.raises(ShapeError, match=r'heads; fails at T=2; add where=\["T % 3 == 0"\]'):
        require_divides(3, t, "heads")
    with pytest.raises(ShapeError, match="T is divided by 0"):
        require_divides(0, t, "heads")


def test_plain_ints_say_the_message_alone() -> None:
    for require in (
        lambda: require_equal(3, 4, "plain"),
        lambda: require_at_most(4, 3, lambda: "plain"),
        lambda: require_divides(3, 4, "plain"),
    ):
        with pytest.raises(ShapeError) as caught:
            require()
        assert caught.value.reason == "plain"
    require_equal(3, 3, "unused")
    require_at_most(3, 3, "unused")
    require_divides(3, 6, "unused")


def test_messages_are_made_only_for_failures() -> None:
    def fail() -> str:
        raise AssertionError("a message was made for a relation that holds")

    _, t = dims("T")
    require_equal(3, 3, fail)
    require_equal(t, 2 * t - t, fail)
    require_at_most(1, t, fail)
    require_divides(2, 2 * t, fail)


# ---------------------------------------------------------------------- conditions


def test_undecided_relations_become_conditions_once_and_in_order() -> None:
    scope = DimScope()
    x = scope.parse("X + Y - Y")
    scope.declare("X*X*X + Y*Y*Y == 1729")
    scope.declare("X < Y")
    scope.declare("X >= 2")
    assert equal(x, 9) is Verdict.undecided
    require_equal(2 * x, 18, "first")
    require_at_most(9, x, lambda: "second")
    require_equal(x, 9, "the first again")
    assert [str(condition) for condition in scope.conditions] == ["X == 9"]  # X >= 9 follows
    first = scope.conditions[0]
    assert first.relation == "X == 9" and first.message == "first"
    assert first.source is not None and first.source.file == __file__
    assert first.holds({"X": 9, "Y": 10}) and not first.holds({"X": 8})
    with pytest.raises(UsageError, match="the value of dim X is missing"):
        first.holds({"Y": 10})
    with pytest.raises(UndecidedDimError):
        bool(x == 9)


def test_a_condition_fails_where_it_is_undefined() -> None:
    scope = DimScope()
    scope.dim("T")
    scope.dim("S")
    scope.declare("T >= S + 1")
    scope.declare("8 // (T - S) == 2")
    assert scope.facts[1].holds({"T": 7, "S": 3}) and not scope.facts[1].holds({"T": 3, "S": 3})


def test_verdicts_follow_later_declarations() -> None:
    scope, n = dims("N")
    assert equal(3 * (n // 3), n) is Verdict.refuted
    scope.declare("N % 3 == 0")
    assert equal(3 * (n // 3), n) is Verdict.proved
    assert [str(fact) for fact in scope.facts] == ["N % 3 == 0"]


def test_a_declared_fact_is_proved() -> None:
    for left, sign, right in (
        ("C//(A + B)", "==", "B"),
        ("A % (B + C)", "==", "1"),
        ("A*A*B", "<=", "C*C"),
        ("A - B", "<", "C*B - 7*A"),
    ):
        scope = DimScope()
        for name in NAMES:
            scope.dim(name)
        scope.declare(f"{left} {sign} {right}")
        assert verdict_on(scope.parse(left), sign, scope.parse(right)) is Verdict.proved


@pytest.mark.parametrize("of", [2, 4, 6, 12])
@pytest.mark.parametrize("goal", ["6 % H", "12 % H", "(4*T) % H", "(6*T + 12) % H", "(12*T*T - 6) % H"])
def test_what_divides_a_number_divides_its_multiples_and_no_others(of: int, goal: str) -> None:
    """Proved only where it holds for every divisor, refuted only where it fails for one: counted out."""
    scope = DimScope()
    scope.dim("H"), scope.dim("T")
    scope.declare(f"{of} % H == 0")
    found = equal(scope.parse(goal), 0)
    holds = {eval(goal, {"H": h, "T": t}) == 0 for h in range(1, 40) if of % h == 0 for t in range(1, 25)}
    assert found is not (Verdict.refuted if holds == {True} else Verdict.proved)
    if holds == {True}:
        assert found is Verdict.proved


# Declaring facts about dims, and what comparisons in a program answer from them ---------------------------------------


def test_the_default_low_end_gives_way_to_a_declared_one() -> None:
    scope, n, m, z = dims("N M Z")
    assert at_most(1, n) is Verdict.proved and bool(n) is True
    scope.declare("N >= 0")
    assert at_most(1, n) is Verdict.refuted and witness(1, "<=", n) == {"N": 0}
    assert at_most(0, n) is Verdict.proved
    scope.declare("M > -5")
    assert at_most(0, m) is Verdict.proved and at_most(1, m) is Verdict.refuted
    scope.declare("Z == 0")
    assert equal(z, 0) is Verdict.proved and bool(z) is False
    with pytest.raises(UndecidedDimError, match="whether N != 0 is not decided"):
        bool(n)


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        ("Bacth <= 4", "unknown dim 'Bacth' (did you mean 'Batch'?); the dims are: Batch, T"),
        ("T", "a relation is wanted, such as 'T <= 1024'"),
        ("T != 3", "only ==, <=, <, >= and > are understood"),
        ("T in 3", "only ==, <=, <, >= and > are understood"),
        ("T <= 3.5", "'3.5' is neither a name, an integer"),
        ("T / 2 == 1", "sizes divide with //"),
        ("T <", "write names, integers"),
        ("T <= 0", "the constraint 'T <= 0' cannot be satisfied"),
        ("T == -3", "cannot be satisfied"),
        ("2*T == 5", "cannot be satisfied"),
        ("T <= 4 <= 3", "the constraint 'T <= 4 <= 3' never holds"),
        ("3 <= 5", "always holds; remove it"),
        ("T <= T + 1", "always holds; remove it"),
        ("T % 2 == 2", "cannot be satisfied"),
    ],
)
def test_bad_constraints_say_what_is_wrong_and_change_nothing(constraint: str, reason: str) -> None:
    scope = DimScope()
    scope.dim("Batch")
    t = scope.dim("T")
    with pytest.raises(UsageError) as caught:
        scope.declare(constraint)
    assert reason in str(caught.value)
    assert scope.facts == [] and scope.names == ("Batch", "T") and at_most(t, 0) is Verdict.refuted


def test_contradictions_name_what_was_declared() -> None:
    scope, t = dims("T", "T >= 8")
    with pytest.raises(UsageError, match=r"the constraint 'T < 8' cannot be satisfied \(declared before: T >= 8;"):
        scope.declare("T < 8")
    assert at_most(8, t) is Verdict.proved and len(scope.facts) == 1


# ---------------------------------------------------------------------- comparisons in a program


def test_comparisons_answer_when_all_values_agree() -> None:
    _, b, t = dims("B T", "T <= 1024")
    assert t + 1 > t and t < 1025 and t <= 1024.0 and not t > 1024 and t >= 1 and b * t >= b
    assert t != t + 1 and t != 0 and t != 2048 and 2 * t != 5 and (b, t, 3) == (b, t, 3)
    assert t + b != b


def test_undecided_comparisons_say_how_to_decide_them() -> None:
    _, t, b = dims("T B")
    with pytest.raises(UndecidedDimError) as caught:
        bool(t > 128)
    assert caught.value.reason == (
        "whether T > 128 is not decided by what is declared: it holds at T=129 and fails at T=2. Decide it with "
        'where=["T > 128"] or its opposite, or write the program so that it does not depend on it; the smaller of two '
        "sizes is dims.minimum, the greater dims.maximum"
    )
    assert caught.value.source is not None and caught.value.source.file == __file__
    with pytest.raises(
        UndecidedDimError, match=r"whether T != B is not decided.*it holds at B=2, T=3 and fails at B=1"
    ):
        bool(t != b)
    with pytest.raises(UndecidedDimError):
        (t, 3) == (b, 3)  # noqa: B015  # the comparison itself raises
    assert isinstance(caught.value, TypeError)
