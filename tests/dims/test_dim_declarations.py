"""Declaring facts about dims, and what comparisons in a program answer from them."""

from __future__ import annotations

import pytest

from opstage.ops.dims import DimScope, UndecidedDimError, Verdict, at_most, equal, witness
from opstage.ops.errors import UsageError


def test_the_default_low_end_gives_way_to_a_declared_one() -> None:
    scope = DimScope()
    n, m, z = scope.dim("N"), scope.dim("M"), scope.dim("Z")
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
        ("T <= 0", "no sizes satisfy the constraint 'T <= 0'"),
        ("T == -3", "no sizes satisfy"),
        ("2*T == 5", "no sizes satisfy"),
        ("T <= 4 <= 3", "the constraint 'T <= 4 <= 3' never holds"),
        ("3 <= 5", "always holds, so it says nothing"),
        ("T <= T + 1", "always holds, so it says nothing"),
        ("T % 2 == 2", "no sizes satisfy"),
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
    scope = DimScope()
    t = scope.dim("T")
    scope.declare("T >= 8")
    with pytest.raises(UsageError, match=r"no sizes satisfy the constraint 'T < 8' \(declared before: T >= 8;"):
        scope.declare("T < 8")
    assert at_most(8, t) is Verdict.proved and len(scope.facts) == 1


# ---------------------------------------------------------------------- comparisons in a program


def test_comparisons_answer_when_all_values_agree() -> None:
    scope = DimScope()
    b, t = scope.dim("B"), scope.dim("T")
    scope.declare("T <= 1024")
    assert t + 1 > t and t < 1025 and t <= 1024.0 and not t > 1024 and t >= 1 and b * t >= b
    assert t != t + 1 and t != 0 and t != 2048 and 2 * t != 5 and (b, t, 3) == (b, t, 3)
    assert t + b != b


def test_undecided_comparisons_say_how_to_decide_them() -> None:
    scope = DimScope()
    t, b = scope.dim("T"), scope.dim("B")
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
